"""Weights are the same however many threads and panels draw them."""

import dataclasses

import ml_dtypes
import numpy as np
import pytest

from hpmoe.parity_tests.cache import array_recipes
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.case import shared_memory
from hpmoe.parity_tests.case.values import magnitudes
from hpmoe.parity_tests.case.values import real_data
from hpmoe.reference.contract import checks
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import stable_random

_CONFIG = config_lib.MoEConfig(
  num_ranks=2, num_tokens=4, num_experts=8, top_k=2, d_model=40, d_ff=24
)


def draw(dtype: str = 'float32', **changes) -> dict[str, np.ndarray]:
  storage = np.dtype(dtype)
  scales = magnitudes.plan_magnitudes(_CONFIG, storage)
  for name, factor in changes.items():
    getattr(scales, name)[...] *= factor
  return real_data.draw_weights(_CONFIG, storage, 3, scales)


DTYPES = ['float32', 'bfloat16', 'float16']


@pytest.mark.parametrize('dtype', DTYPES)
def test_panels_and_threads_change_no_bit(monkeypatch, dtype):
  whole = draw(dtype)
  monkeypatch.setattr(shared_memory, 'LEAST_BYTES', 1)
  monkeypatch.setattr(real_data, '_PANEL', 100)
  monkeypatch.setattr(real_data, '_normals', None)

  parts = draw(dtype)

  for name, weight in whole.items():
    assert weight.tobytes() == parts[name].tobytes()
    checks.check_finite(name, weight)


@pytest.mark.parametrize('dtype', DTYPES)
@pytest.mark.parametrize('limit', [0.0, 7.0])
def test_each_weight_is_a_normal_value_times_its_factors(dtype, limit):
  # given: more elements than C++ draws together, and no multiple of it
  config = dataclasses.replace(_CONFIG, d_model=37, d_ff=67)
  storage = np.dtype(dtype)
  scales = magnitudes.plan_magnitudes(config, storage, limit)
  factors = dict(
    w_gate_up=scales.gate_up / scales.x[:, None] / np.sqrt(37),
    w_down=scales.down[:, None] / scales.dy / np.sqrt(67),
  )

  weights = real_data.draw_weights(config, storage, 3, scales)

  for name, factor in factors.items():
    for expert in range(config.num_experts):
      seed = stable_random.seed_of(name, expert, 3)
      values = stable_random.normal(seed, factor.shape) * factor
      values /= scales.experts[expert] if name == 'w_down' else 1
      weight = weights[name][divmod(expert, 4)]
      assert weight.tobytes() == values.astype(storage).tobytes()


needs_extension = pytest.mark.skipif(
  real_data._normals is None, reason='no extension module'
)


@needs_extension
def test_ties_go_to_even():
  seed, units = 7, np.ones(99)
  sums = stable_random.normal(seed, (99, 99)) * stable_random.DEVIATION
  values = np.zeros(sums.shape, np.uint16)
  state = stable_random.read_state(seed)
  real_data._normals.draw(state, units, units, 1.0, 1.0, values)
  right = np.rint(sums).astype(ml_dtypes.bfloat16)
  np.testing.assert_array_equal(values, right.view(np.uint16))


@needs_extension
@pytest.mark.parametrize('name', ['rows', 'columns'])
def test_factors_of_another_shape_are_refused(name):
  factors = dict(rows=np.ones(3), columns=np.ones(5))
  factors[name] = np.ones(4)
  values = np.zeros((3, 5), np.float32)
  with pytest.raises(ValueError, match=f'{name}: expected . factors, got 4'):
    real_data._normals.draw((0, 1, 0, 1), *factors.values(), 1.0, 1.0, values)


def test_weights_that_might_overflow_are_refused():
  scales = magnitudes.plan_magnitudes(_CONFIG, np.dtype('float16'))
  real_data.refuse_overflow(np.dtype('float16'), scales)
  scales.experts[1] = 2.0**-40
  with pytest.raises(ValueError, match='^w_down: .* float16 holds, got up'):
    real_data.refuse_overflow(np.dtype('float16'), scales)
  scales.gate[2] = 2.0**20
  with pytest.raises(ValueError, match='^w_gate_up: expected weights that'):
    real_data.refuse_overflow(np.dtype('float16'), scales)


def test_experts_without_rows_are_zeros_and_take_no_memory(monkeypatch):
  storage = np.dtype('float32')
  scales = magnitudes.plan_magnitudes(_CONFIG, storage)
  experts, layer = np.array([1, 6]), (_CONFIG, storage, 3, scales)
  whole = draw()
  # given: small weights, then: all are calls
  small = real_data.draw_weights(*layer, experts)
  assert small['w_down'].tobytes() == whole['w_down'].tobytes()
  # when: they are large
  monkeypatch.setattr(shared_memory, 'LEAST_BYTES', 1)
  monkeypatch.setattr(array_recipes, 'LEAST_BYTES', 1)
  part = real_data.draw_weights(*layer, experts)
  recipe = array_recipes.find(part['w_down'])
  # then: they are those of the whole layer, by another recipe
  for name, weight in part.items():
    for expert in range(8):
      place = divmod(expert, 4)
      right = whole[name][place] * (expert in experts)
      np.testing.assert_array_equal(weight[place], right)
  other = real_data.draw_weights(*layer, np.array([1, 7]))
  assert recipe not in (None, array_recipes.find(other['w_down']))


def test_real_weights_are_drawn_when_they_are_read(monkeypatch):
  calls = []
  draw = real_data.draw_weights

  def count(*arguments):
    calls.append(1)
    return draw(*arguments)

  monkeypatch.setattr(real_data, 'draw_weights', count)
  inputs = case_lib.Case(preset='tiny', dtype='bfloat16').make()
  assert 'w_down' in inputs.arrays and len(inputs.arrays) == len(
    [*inputs.arrays]
  )
  assert not calls
  arrays = dict(inputs.arrays)
  assert arrays['w_down'] is inputs.arrays['w_down']
  assert len(calls) == 1
