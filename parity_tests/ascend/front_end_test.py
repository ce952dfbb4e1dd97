"""`hpmoe check --frontend=jax`."""

import sys
from unittest import mock

import jax
import pytest

from hpmoe.backend_ascend import frontends
from hpmoe.backend_ascend.frontends import jax_layer
from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import main

TINY = ('--preset=tiny', '--ranks=2')


def check(capsys, *arguments) -> tuple[int, str]:
  """Returns the exit code and what was printed on either channel."""
  code = main.main(['check', *TINY, *arguments])
  return code, ''.join(capsys.readouterr())


def test_the_layer_is_judged_in_every_lane(capsys):
  code, output = check(capsys, '--frontend=jax')
  assert code == cli.PARITY, output
  assert output.startswith('jax_layer against the oracle')
  for name in ('y', 'dx', 'd_w_down', 'd_w_gate_up', 'd_topk_weights'):
    assert f'\n{name} ' in output


@pytest.mark.parametrize('name', ['y', 'dx', 'w_down', 'topk_weights'])
@pytest.mark.few(2)
def test_what_users_call_is_judged(capsys, name):
  # Given: launches that are right, and a value or a gradient twice too large.
  right = jax_layer.layer

  def spoilt(**inputs):
    if name == 'y':
      return 2 * right(**inputs)
    input_ = inputs[name.removeprefix('d')]
    twice = 2 * input_ - jax.lax.stop_gradient(input_)
    return right(**(inputs | {name.removeprefix('d'): twice}))

  # When.
  with mock.patch.object(jax_layer, 'layer', spoilt):
    code, output = check(capsys, '--frontend=jax', '--lane=exact')
  # Then.
  assert code == cli.NO_PARITY
  bad = name if name in ('y', 'dx') else f'd_{name}'
  (row,) = (line for line in output.splitlines() if line.startswith(f'{bad} '))
  assert '✕' in row


def test_without_mindspore_the_extra_is_named(capsys, monkeypatch):
  # Given: no MindSpore, wherever this runs.
  name = f'{frontends.__name__}.mindspore_layer'
  monkeypatch.delitem(sys.modules, name, raising=False)
  monkeypatch.delattr(frontends, 'mindspore_layer', raising=False)
  monkeypatch.setitem(sys.modules, 'mindspore', None)
  # When.
  code, output = check(capsys, '--frontend=mindspore')
  # Then.
  assert code == cli.WRONG_REQUEST
  assert "pip install 'hyperparallel-moe[mindspore]'" in output
  assert output.count('\n') == 1


def test_a_launch_that_stops_is_the_candidate_s_failure(capsys):
  stopped = jax.errors.JaxRuntimeError('deadline: no task ended')
  with mock.patch.object(jax_layer, 'forward', side_effect=stopped):
    code, output = check(capsys, '--frontend=jax')
  assert code == cli.CANDIDATE_FAILED
  assert 'jax_layer: deadline: no task ended' in output
