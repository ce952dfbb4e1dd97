"""Large drawn arrays are known by their recipe, and nothing made of them is."""

import gc

import numpy as np
import pytest

from hpmoe.parity_tests.cache import array_recipes
from hpmoe.parity_tests.cache import cache_folder
from hpmoe.parity_tests.cache import cached_results
from hpmoe.parity_tests.case.values import exact_data
from hpmoe.parity_tests.case.values import magnitudes
from hpmoe.parity_tests.case.values import real_data
from hpmoe.parity_tests.case.values import wide_data
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import precision

_CONFIG = config_lib.MoEConfig(
  num_ranks=1, num_tokens=4, num_experts=4, top_k=2, d_model=32, d_ff=16
)


@pytest.fixture(autouse=True)
def every_array_is_large(monkeypatch):
  monkeypatch.setattr(array_recipes, 'LEAST_BYTES', 1)


def test_what_is_made_of_an_array_has_no_recipe():
  array = array_recipes.note(np.ones((4, 4), np.float32), 'ones', 4)
  assert array_recipes.find(array) is not None
  for other in (array.copy(), array[:2], array.T, array.view(np.int32)):
    assert array_recipes.find(other) is None
  with pytest.raises(ValueError, match='read-only'):
    array[0, 0] = 2


def test_a_recipe_ends_with_its_array():
  key = id(array_recipes.note(np.ones(9), 'ones'))
  gc.collect()
  assert key not in array_recipes._digest_by_id


def test_other_recipes_shapes_and_dtypes_are_told_apart():
  arrays = [
    array_recipes.note(np.ones(shape, dtype), name, seed)
    for shape in (4, 8)
    for dtype in (np.float32, np.float16)
    for name in ('gate', 'up')
    for seed in (0, 1)
  ]
  assert len({array_recipes.find(array) for array in arrays}) == len(arrays)


def _draw(kind: str, seed: int, limit: float) -> dict[str, np.ndarray]:
  policy = precision.PrecisionPolicy(activation='absolute')
  ids = np.array([[[0, 1], [1, 2], [2, 3], [3, 0]]], np.int32)
  if kind == 'real':
    dtype = np.dtype('float32')
    scales = magnitudes.plan_magnitudes(_CONFIG, dtype, limit)
    return real_data.draw_weights(_CONFIG, dtype, seed, scales)
  if kind == 'wide':
    return wide_data.make(_CONFIG, policy, ids, seed)[0]
  return exact_data.make(_CONFIG, policy, ids, seed, backward=kind == 'both')[0]


def test_equal_recipes_are_equal_bytes_of_every_kind_of_data():
  bytes_by_recipe: dict[bytes, bytes] = {}
  for kind in ('real', 'exact', 'both', 'wide', 'real'):
    for seed in (0, 1, 0):
      for limit in (0.0, 7.0):
        arrays = _draw(kind, seed, limit)
        for name in ('w_gate_up', 'w_down'):
          recipe = array_recipes.find(arrays[name])
          assert recipe is not None
          data = arrays[name].tobytes()
          assert bytes_by_recipe.setdefault(recipe, data) == data
  assert len(set(bytes_by_recipe.values())) >= 14


def test_a_result_of_a_large_array_is_found_by_its_recipe(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(cached_results, 'MAX_BYTES', 64)
  computed = []

  def compute(array: np.ndarray) -> np.ndarray:
    computed.append(array)
    return array[:1]

  def ask(array: np.ndarray):
    return cached_results.get_or_compute(
      'hpmoe.parity_tests.cache', ('first',), [array], lambda: compute(array)
    )

  with cache_folder.activate(tmp_path):
    for seed in (0, 1, 0, 1):
      array = array_recipes.note(np.full(99, seed, np.float32), 'full', seed)
      assert ask(array)[0] == seed
    assert len(computed) == 2
    ask(np.zeros(99, np.float32))
    ask(np.zeros(99, np.float32))
  assert len(computed) == 4
