"""A proof of entries finds what a proof of whole weights finds."""

import numpy as np
import pytest

from hpmoe.parity_tests.case import shared_memory
from hpmoe.parity_tests.case.values import exact_data
from hpmoe.parity_tests.case.values import exact_limits
from hpmoe.parity_tests.case.values import exact_proof
from hpmoe.parity_tests.case.values import sparse
from hpmoe.parity_tests.case.values import wide_data
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import precision

_CONFIG = config_lib.MoEConfig(
  num_ranks=2, num_tokens=9, num_experts=6, top_k=2, d_model=40, d_ff=24
)
_IDS = np.array(
  [[[t % 6, (t + 1 + r) % 6] for t in range(9)] for r in range(2)], np.int32
)


def draw(kind: str, dtype: str) -> dict[str, np.ndarray]:
  policy = precision.PrecisionPolicy(dtype, activation='absolute')
  module = dict(exact=exact_data, wide=wide_data)[kind]
  arrays, _ = module.make(_CONFIG, policy, _IDS, 1, backward=False)
  return {name: array for name, array in arrays.items() if name != 'dy'}


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
@pytest.mark.parametrize('kind', ['exact', 'wide'])
class TestEntries:
  @pytest.fixture(autouse=True)
  def every_array_is_large(self, monkeypatch):
    monkeypatch.setattr(shared_memory, 'LEAST_BYTES', 1)

  def test_are_the_whole_weight(self, kind, dtype):
    arrays = draw(kind, dtype)
    for name in ('w_gate_up', 'w_down'):
      entries = sparse.find(arrays[name])
      assert entries is not None
      weights = arrays[name].reshape(6, *arrays[name].shape[2:])
      unit = np.eye(weights.shape[1], dtype=np.float32)
      for weight, expert in zip(weights, entries, strict=True):
        np.testing.assert_array_equal(expert.multiply(unit), weight)

  def test_prove_what_whole_weights_prove(self, kind, dtype):
    policy = precision.PrecisionPolicy(dtype, activation='absolute')
    arrays = draw(kind, dtype)
    copies = {name: array.copy() for name, array in arrays.items()}
    assert sparse.find(copies['w_down']) is None
    assert exact_proof.prove(_CONFIG, policy, arrays) == exact_proof.prove(
      _CONFIG, policy, copies
    )

  def test_that_are_too_large_are_refused(self, kind, dtype):
    policy = precision.PrecisionPolicy(dtype, activation='absolute')
    arrays = draw(kind, dtype)
    arrays['x'] = arrays['x'] * np.array(2**12).astype(arrays['x'].dtype)
    with pytest.raises(exact_limits.ExactnessError):
      exact_proof.prove(_CONFIG, policy, arrays)


def test_two_experts_that_are_one_are_refused(monkeypatch):
  monkeypatch.setattr(shared_memory, 'LEAST_BYTES', 1)
  arrays = draw('exact', 'bfloat16')
  exact_proof.check_distinct(_CONFIG, arrays)
  # given: the first expert twice, its entries in another order
  weight = arrays['w_down'].copy()
  first, _, *rest = sparse.find(arrays['w_down'])
  reversed_expert = sparse.SparseWeight(
    first.rows[:, ::-1], first.values[:, ::-1]
  )
  sparse.note(weight, [first, reversed_expert, *rest])
  with pytest.raises(
    exact_limits.ExactnessError, match='w_down: expected 6 distinct .* got 5'
  ):
    exact_proof.check_distinct(_CONFIG, {**arrays, 'w_down': weight})


def test_two_entries_in_one_place_are_no_sparse_weight(monkeypatch):
  monkeypatch.setattr(shared_memory, 'LEAST_BYTES', 1)
  weight = np.zeros((1, 1, 3, 2), np.float32)
  twice = sparse.SparseWeight(np.array([[0, 0], [1, 2]]), np.ones((2, 2)))
  sparse.note(weight, [twice])
  assert sparse.find(weight) is None
