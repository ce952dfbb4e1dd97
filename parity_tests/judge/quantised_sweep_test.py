"""Right kernels of every form of weights pass on many random layers.

The kernels read codes and scales in steps of numpy of their own, and know the
table of forms by its groups alone.
"""

import dataclasses

import numpy as np
import pytest

from hpmoe.parity_tests.judge import quantised_testing as testing
from hpmoe.parity_tests.judge import trial_testing as trial
from hpmoe.parity_tests.judge import trial_verdicts_testing as trial_verdicts
from hpmoe.parity_tests.judge import verdicts
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import quantised

# Random layers of a form; the first few take no long time.
_FORWARD, _BACKWARD = 300, 100
_QUICK = 2
_DTYPES = ('float32', 'bfloat16', 'float16')
SLOW = pytest.mark.slow


def _draw(form: str, seed: int):
  """Returns inputs of a layer of random sizes, with codes."""
  rng = np.random.default_rng(seed)
  words = max(2, quantised.FORMS[form].codes_in_word)
  ranks, local = (int(n) for n in rng.integers(1, 3, 2))
  config = config_testing.make_config(
    r=ranks,
    t=int(rng.integers(1, 9)),
    e=ranks * local,
    k=int(rng.integers(1, ranks * local + 1)),
    d=words * int(rng.integers(4, 97 if words == 2 else 33)),
    f=words * int(rng.integers(4, 81 if words == 2 else 33)),
  )
  policy = precision.PrecisionPolicy(_DTYPES[seed % 3])
  return trial_verdicts.draw(config, policy, seed).with_codes(form)


def _read_weights(inputs) -> dict[str, np.ndarray]:
  """Returns arrays with both weights as float32 numbers of their codes."""
  arrays, form = dict(inputs.arrays), inputs.policy.quantised
  for name in ('w_gate_up', 'w_down'):
    home = arrays[f'{name}_codes'].shape[:2]
    matrices = [
      _read_matrix(arrays, form, name, place) for place in np.ndindex(*home)
    ]
    arrays[name] = np.stack(matrices).reshape(*home, *matrices[0].shape)
  return arrays


def _read_matrix(arrays, form: str, name: str, place) -> np.ndarray:
  codes = testing._codes(form, arrays[f'{name}_codes'][place])
  scales = testing._wide(arrays[f'{name}_scales'][place])
  if f'{name}_tensor_scales' in arrays:
    scales = scales * arrays[f'{name}_tensor_scales'][place]
  groups = {scales.shape: scales}
  zeros = arrays.get(f'{name}_zeros')
  for axis, unit in enumerate(testing._groups(form)):
    size = unit or codes.shape[axis]
    groups = {n: np.repeat(a, size, axis) for n, a in groups.items()}
    if zeros is not None:
      zeros = np.repeat(zeros, size, axis + 2)
  (scales,) = groups.values()
  if zeros is not None:
    codes = codes - zeros[place][: codes.shape[0], : codes.shape[1]]
  return codes * scales[: codes.shape[0], : codes.shape[1]]


@pytest.mark.parametrize('count', [_QUICK, pytest.param(_FORWARD, marks=SLOW)])
@pytest.mark.parametrize('form', quantised.OF_VALUES)
@pytest.mark.few(2)
def test_forward_passes_are_within_their_bounds(form, count):
  for seed in range(count):
    inputs = _draw(form, seed)
    kernel = testing.Kernel(('sums', 'terms')[seed // 3 % 2])
    assert not testing.list_failed_rules(inputs, kernel), (seed, inputs.config)


@pytest.mark.parametrize('count', [_QUICK, pytest.param(_BACKWARD, marks=SLOW)])
@pytest.mark.parametrize('form', quantised.OF_VALUES)
@pytest.mark.few(2)
def test_backward_passes_are_within_their_bounds(form, count):
  for seed in range(count):
    inputs = _draw(form, seed)
    values = _read_weights(inputs)
    inputs = trial_verdicts.with_saved(
      dataclasses.replace(inputs, arrays=values)
    )
    arguments = inputs.config, inputs.policy, inputs.arrays
    outputs = trial.Kernel().backward(*arguments)
    results = trial_verdicts.judge_stages(inputs, outputs).values()
    failed_stages = [r.stage for r in results if r.verdict == verdicts.FAIL]
    assert not failed_stages, (seed, inputs.config)


@pytest.mark.parametrize('form', ['nvfp4', 'e4m3_128x128', 'uint4_32'])
def test_weights_in_the_wrong_scale_are_refused(form):
  inputs = trial_verdicts.with_saved(_draw(form, 0))
  other = {**inputs.arrays, 'w_down': inputs.arrays['w_down'] * np.float32(2)}
  outputs = trial.Kernel().backward(inputs.config, inputs.policy, other)
  results = trial_verdicts.judge_stages(inputs, outputs).values()
  failed_stages = {r.stage for r in results if r.verdict == verdicts.FAIL}
  assert 'd_activation' in failed_stages
