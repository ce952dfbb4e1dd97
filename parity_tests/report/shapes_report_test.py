"""A report of many shapes ends as a check of one does, and can be shown."""

import itertools
import json
import pathlib

import numpy as np
import pytest

from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import main
from hpmoe.parity_tests.judge import shapes

# No test here is of the roundings that a failure is put down to.
pytestmark = pytest.mark.verdict_alone

_KERNEL = """
import numpy as np
from hpmoe.parity_tests.judge import trial_testing as trial

def layer(inputs, config, policy):
  y = trial.Kernel().forward(config, policy, inputs)['y']
  if config.num_tokens == 15:
    {fault}
  return dict(y=y)

layer.activations = ('swiglu',)
"""
_CHECK = ('check', '--candidate=kernel.py:layer', '--preset=tiny', '--ranks=2')
_CRASH = "raise RuntimeError('no kernel\\\\n' + 'for this size ' * 50)"


@pytest.fixture
def check(tmp_path, monkeypatch):
  """Returns a function of a fault at 15 tokens: the exit code of --shapes."""
  whole_family = shapes.list_shapes

  def list_two(case, folder):
    return itertools.islice(whole_family(case, folder), 2)

  monkeypatch.setattr(shapes, 'list_shapes', list_two)
  monkeypatch.chdir(tmp_path)

  def run(fault):
    (tmp_path / 'kernel.py').write_text(_KERNEL.format(fault=fault))
    return main.main([*_CHECK, '--shapes', '--json=shapes.json'])

  return run


@pytest.mark.parametrize(
  ('fault', 'code'),
  [
    ('pass', cli.PARITY),
    ('y[0, 3] *= 2', cli.NO_PARITY),
    (_CRASH, cli.CANDIDATE_FAILED),
  ],
)
def test_shapes_end_with_the_code_of_one_check(check, capsys, fault, code):
  # when
  actual = check(fault)

  # then: and so does the report, which shows the same lines
  printed = capsys.readouterr().out
  assert actual == code
  assert max(map(len, printed.splitlines())) <= 300
  assert main.main(['report', 'shapes.json']) == code
  assert {*printed.splitlines()} <= {*capsys.readouterr().out.splitlines()}


def test_a_report_of_shapes_shows_the_first_that_fails(check, capsys):
  # given
  check('y[0, 3] *= 2')
  content = json.loads(pathlib.Path('shapes.json').read_text())

  # when
  main.main(['report', 'shapes.json'])

  # then
  printed = capsys.readouterr().out
  assert '\nT 15:\n' in printed and 'got = 2 * expected' in printed
  assert '--tokens=15' in printed
  element = content['first_failing']['report']['first_failure']['index']
  assert f'layer{element}' in printed
  assert np.shape(element) == (3,)


def test_a_report_of_shapes_is_compared_with_none(check, capsys):
  check('pass')

  assert main.main(['report', 'shapes.json', 'shapes.json']) == 2
  assert 'got one of --shapes' in capsys.readouterr().err


def test_a_report_of_one_check_is_shown_as_the_check_printed_it(
  tmp_path, monkeypatch, capsys
):
  # given
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'kernel.py').write_text(_KERNEL.format(fault='y[0, 3] *= 2'))
  options = ('--tokens=15', '--lane=bounded', '--json=check.json')
  code = main.main([*_CHECK, *options])
  printed = capsys.readouterr().out

  # when
  shown_code = main.main(['report', 'check.json'])

  # then: all but the map of tiles, which the file lacks
  report_text = capsys.readouterr().out
  assert shown_code == code == cli.NO_PARITY
  assert {*report_text.splitlines()} <= {*printed.splitlines()}
  assert 'first failure: y (bounded' in report_text
