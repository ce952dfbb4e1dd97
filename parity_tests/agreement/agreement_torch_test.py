"""Two runs of transformers that msprobe dumped: where they part, and why.

`make test-torch` runs it; HPMOE_TORCH_PYTHON names a Python that has torch,
transformers and mindstudio-probe.
"""

import os
import pathlib
import subprocess

import pytest

from hpmoe.parity_tests.agreement import agreement
from hpmoe.parity_tests.agreement import choices as choices_lib

_SCRIPT = pathlib.Path(__file__).with_name('agreement_torch_testing.py')


def _run(folder: pathlib.Path, dtype: str, bug: str = 'none') -> str:
  subprocess.run(
    [os.environ['HPMOE_TORCH_PYTHON'], '-I', _SCRIPT, folder, dtype, bug],
    check=True,
  )
  return str(folder)


@pytest.fixture(scope='module')
def left(tmp_path_factory) -> str:
  """Returns the dump of a run in float32."""
  return _run(tmp_path_factory.mktemp('runs') / 'left', 'float32')


def test_rounding_explains_a_run_in_bfloat16(tmp_path, left):
  right = _run(tmp_path / 'right', 'bfloat16')
  options = agreement.Options(model=f'{left}.model')
  result = agreement.compare(left, right, options)
  assert result.verdict == 'pass', result.faults
  assert result.rule == 'renormalize_naive'
  reasons = [reason for row in result.rows for reason in row.choices.reasons]
  assert reasons and {*reasons} <= {choices_lib.TIE, choices_lib.UPSTREAM}
  first = result.rows[0]
  assert first.y_replayed < 0.3 * first.y_apart
  replay = result.places[0].replay
  assert replay is not None and replay.rest < 0.8 * replay.runs


@pytest.mark.parametrize(
  ('bug', 'text'),
  [
    ('router', 'router weights: rows 0 and 1 are exchanged'),
    ('experts', 'experts 3 and 4 are exchanged, but the router is not'),
    ('scores', 'router of right: ignores its own logits in 248 tokens'),
    ('norm', 'its input differs by 0.2 of its size'),
    ('both', ''),
  ],
)
def test_a_planted_bug_is_named(tmp_path, left, bug, text):
  right = _run(tmp_path / 'right', 'bfloat16', bug)
  result = agreement.compare(left, right, agreement.Options())
  assert (result.verdict == 'pass') == (not text), result.faults
  if text:
    _, layer, fault = result.faults[0]
    assert layer == 'model.layers.1.mlp' and text in fault
  else:  # experts and router alike: the same function
    assert 'rows 3 and 4 are exchanged, alike' in result.rows[1].notes[0]
