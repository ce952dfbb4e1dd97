"""A kernel that clamps what it reads or computes fails, wherever it clamps."""

import dataclasses
import functools

import numpy as np
import pytest

from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.judge import bench as bench_lib
from hpmoe.parity_tests.judge import numpy_testing
from hpmoe.parity_tests.judge import quantised_testing
from hpmoe.parity_tests.judge import trial_testing as trial

# No test here is of the roundings that a failure is put down to.
pytestmark = pytest.mark.verdict_alone

LANES = ('bounded',)
# GPT-OSS's clamp, and others that a kernel may have.
LIMITS = {'x': (4, 6), 'gate': (7, 60), 'up': (7,), 'activation': (7, 1000)}
# silu of less is 0 in any dtype beside what it is added to.
LEAST_GATE = -7
PRESETS = ('tiny', 'odd', 'small')


@dataclasses.dataclass(frozen=True)
class Clamped(trial.Kernel):
  """A kernel that clamps one tensor.

  Attributes:
    tensor: its name; gate and up are each one.
    floor, ceiling: the limits.
  """

  tensor: str = ''
  floor: float = -np.inf
  ceiling: float = np.inf

  def forward(self, config, policy, arrays):
    return super().forward(config, policy, self._read(arrays))

  def backward(self, config, policy, arrays):
    return super().backward(config, policy, self._read(arrays))

  def _unweighted(self, policy, gate, up):
    gate, up = self._clamp('gate', gate), self._clamp('up', up)
    product = super()._unweighted(policy, gate, up)
    return self._clamp('activation', product)

  def _read(self, arrays):
    if self.tensor not in arrays or self.tensor == 'activation':
      return arrays
    return {
      **arrays,
      self.tensor: self._clamp(self.tensor, arrays[self.tensor]),
    }

  def _clamp(self, name, array):
    if name != self.tensor:
      return array
    floor, ceiling = (array.dtype.type(v) for v in (self.floor, self.ceiling))
    return np.clip(array, floor, ceiling)


class Layer:
  """A layer's data, and what they reach."""

  def __init__(self, preset, dtype, direction):
    ranks = dict(preset=preset, ranks=2, dtype=dtype)
    self.case = case_lib.Case(direction=direction, **ranks)
    self.bench = bench_lib.Bench(self.case, keep=True)

  @functools.cached_property
  def largest(self):
    """The least and the largest of each tensor."""
    inputs = self.bench.real_inputs
    arrays = {**inputs.arrays, **self.bench.answer(inputs)}
    values = {n: a.astype(np.float64) for n, a in arrays.items()}
    values['gate'], values['up'] = np.split(values['gate_up'], 2, axis=-1)
    return {n: (a.min(), a.max()) for n, a in values.items()}

  def refuses(self, everything, **clamp):
    candidate = numpy_testing.Numpy(Clamped(**clamp), everything)
    return numpy_testing.list_refused(self.bench, self.case, candidate, *LANES)


@pytest.fixture(
  scope='module',
  params=[
    pytest.param(
      (preset, dtype),
      id=f'{preset}-{dtype}',
      marks=() if preset == 'tiny' else pytest.mark.slow,
    )
    for preset in PRESETS
    for dtype in ('float32', 'bfloat16', 'float16')
  ],
)
def layer(request):
  return Layer(*request.param, 'forward')


@pytest.mark.parametrize('everything', [True, False], ids=['all', 'y'])
@pytest.mark.parametrize('name', LIMITS)
@pytest.mark.few(2)
def test_a_known_clamp_fails(layer, name, everything):
  limits = LIMITS[name]
  # float16 has less room.
  for limit in limits[:1] if layer.case.dtype == 'float16' else limits:
    floor = LEAST_GATE if name == 'gate' else -limit
    assert layer.refuses(everything, tensor=name, floor=floor)
    assert layer.refuses(everything, tensor=name, ceiling=limit)


@pytest.mark.parametrize(
  'name', ['x', 'gate', 'up', 'activation', 'w_gate_up', 'w_down']
)
@pytest.mark.few(3)
def test_any_clamp_fails_that_real_data_reach(layer, name):
  smallest, largest = layer.largest[name]
  for share in (1, 8):
    assert layer.refuses(False, tensor=name, ceiling=largest / share / 2)
    # A gate that is more negative gives 0 all the same.
    if name != 'gate':
      assert layer.refuses(False, tensor=name, floor=smallest / share / 2)


def test_a_clamp_of_routing_weights_fails(layer):
  smallest, largest = layer.largest['topk_weights']
  assert largest > 3 and smallest < -0.1
  assert layer.refuses(False, tensor='topk_weights', ceiling=largest / 2)
  assert layer.refuses(False, tensor='topk_weights', floor=smallest / 2)


@pytest.mark.parametrize('everything', [True, False], ids=['all', 'dx'])
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16', 'float16'])
@pytest.mark.few(1)
def test_a_clamp_of_dy_fails(dtype, everything):
  layer = Layer('tiny', dtype, 'backward')
  for limit in (6, 10):
    assert layer.refuses(everything, tensor='dy', floor=-limit)
    assert layer.refuses(everything, tensor='dy', ceiling=limit)


def test_no_clamp_passes(layer):
  assert not layer.refuses(True)
  assert not layer.refuses(False)


def test_values_reach_far(layer):
  # Beyond what float16 holds, where the dtype holds more.
  reach = 8 if layer.case.dtype == 'float16' else 2.0**20
  for name in ('x', 'up', 'activation', 'dy'):
    floor, ceiling = layer.largest[name]
    assert floor < -reach and ceiling > reach, name


@dataclasses.dataclass(frozen=True)
class CodesClamped(quantised_testing.Kernel):
  """A kernel of codes that clamps up as GPT-OSS does."""

  limit: float = np.inf

  def _gated(self, policy, gate_up):
    gate, up, passes = super()._gated(policy, gate_up)
    return gate, np.clip(up, -self.limit, self.limit), passes


@pytest.mark.parametrize('form', ['e4m3_128x128', 'int4_128'])
@pytest.mark.few(1)
def test_a_clamp_of_up_fails_where_weights_are_codes(form):
  case = case_lib.Case(
    preset='small', ranks=2, dtype='bf16', quantised=form, direction='forward'
  )
  bench = bench_lib.Bench(case, keep=True)

  def refuses(limit):
    candidate = numpy_testing.Numpy(CodesClamped(limit=limit), False)
    return numpy_testing.list_refused(bench, case, candidate, *LANES)

  assert refuses(7)
  assert not refuses(np.inf)
