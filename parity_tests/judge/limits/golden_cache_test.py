"""Golden results of drawn layers are found again, with the same bits."""

import dataclasses

import numpy as np
import pytest

from hpmoe.parity_tests.cache import array_recipes
from hpmoe.parity_tests.cache import cache_folder
from hpmoe.parity_tests.cache import cached_results
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.judge import bench as bench_lib
from hpmoe.parity_tests.judge.lanes import pass_case
from hpmoe.parity_tests.judge.lanes import tolerance_lanes
from hpmoe.parity_tests.judge.limits import golden as golden_lib
from hpmoe.parity_tests.judge.limits import golden_cache
from hpmoe.reference.contract import granularity


@pytest.fixture(autouse=True)
def every_array_is_large(monkeypatch, tmp_path):
  monkeypatch.setattr(array_recipes, 'LEAST_BYTES', 1 << 10)
  with cache_folder.activate(tmp_path):
    yield


def build_case(seed: int = 0):
  case = case_lib.Case(preset='tiny', ranks=2, dtype='bfloat16', seed=seed)
  bench = bench_lib.Bench(case)
  inputs = bench.real_inputs
  tiling = bench_lib.cut_tiles(granularity.Options(), inputs, bench.plan)
  answer = lambda: bench.answer(inputs)
  return pass_case.PassCase(passes.FORWARD, inputs, tiling, answer)


def compute_limits(seed: int = 0) -> list[bytes]:
  """Returns what y may be in a new process, as bytes."""
  case = build_case(seed)
  expected = case.answer()
  y = case.golden({}).rows('y', 1, 0, 16)
  chain = tolerance_lanes.build_chain(case, 'y', {}, expected)
  interval = chain.interval('y', 1, 0, 16)
  arrays = [*y.arrays(), interval.low, interval.high, interval.is_finite]
  return [b'' if a is None else np.asarray(a).tobytes() for a in arrays]


def test_a_second_check_computes_no_row_of_an_expert(monkeypatch):
  first = compute_limits()

  def refuse(*_, **__):
    raise AssertionError('a row of an expert was computed')

  monkeypatch.setattr(golden_lib.Rows, 'gemm', refuse)

  assert compute_limits() == first


def test_no_stage_of_a_drawn_layer_is_hashed(monkeypatch):
  # given: the shapes of what is hashed
  shapes = []
  find = array_recipes.find

  def note_unknown(leaf):
    if (digest := find(leaf)) is None:
      shapes.append(leaf.shape)
    return digest

  monkeypatch.setattr(array_recipes, 'find', note_unknown)
  # when: the oracle runs twice, from the cache the second time
  answers = [build_case().answer() for _ in range(2)]
  # then: no stage was read to know what follows from it
  assert answers[0]['y'].tobytes() == answers[1]['y'].tobytes()
  stages = ('expert_in', 'gate_up', 'activation', 'expert_out', 'returned')
  assert not {answers[0][name].shape for name in stages} & {*shapes}


def test_other_data_are_computed_anew(monkeypatch):
  first = compute_limits()
  assert compute_limits(seed=1) != first
  assert compute_limits() == first


def test_what_a_candidate_returned_is_part_of_the_key():
  case = build_case()
  gate_up = case.answer()['gate_up']
  rows = case.golden({'gate_up': gate_up}).rows('y', 0, 0, 16)
  other = case.golden({'gate_up': gate_up * 2}).rows('y', 0, 0, 16)
  policy = dataclasses.replace(case.inputs.policy, placement='returned')
  third = case.golden({'gate_up': gate_up}, policy).rows('y', 0, 0, 16)

  assert not np.array_equal(rows.value, other.value)
  assert not np.array_equal(rows.variance, third.variance)


def test_layers_that_were_not_drawn_are_not_kept(tmp_path):
  case = build_case()
  arrays = {name: array.copy() for name, array in case.inputs.arrays.items()}
  computed = []

  def compute() -> dict[str, np.ndarray]:
    computed.append(1)
    return dict(y=arrays['x'])

  for _ in range(2):
    golden_cache.recall(('y',), arrays, compute)
  assert len(computed) == 2


def test_experts_of_a_large_layer_are_taken_whole_within_rounding(monkeypatch):
  # given: limits of y, rank by rank
  monkeypatch.setattr(golden_cache, 'recall', lambda facts, arrays, run: run())
  case = build_case()
  rows = case.golden({}).rows('y', 1, 0, 16)
  # when: a layer counts as large
  monkeypatch.setattr(golden_lib, '_MANY_PRODUCTS', 0)
  golden = case.golden({})
  parts = [*golden.iterate_packed()]
  by_expert = golden.rows('y', 1, 0, 16)
  # then: each expert is one part, and limits are the same but for float32
  experts = np.unique(case.inputs.arrays['topk_ids'])
  assert golden.has_many_products and len(parts) == len(experts)
  np.testing.assert_allclose(by_expert.value, rows.value, atol=1e-13)
  np.testing.assert_allclose(by_expert.error, rows.error, rtol=1e-5)
  np.testing.assert_allclose(by_expert.variance, rows.variance, rtol=1e-5)


def test_what_is_read_may_be_larger_than_what_is_kept(monkeypatch):
  limits = cached_results.Limits(arguments=1 << 40, result=1 << 20)
  monkeypatch.setattr(golden_cache, '_LIMITS', limits)
  monkeypatch.setattr(cached_results, 'MAX_BYTES', 0)
  tensor = np.ones((1 << 19, 4), np.float32)
  w_down = build_case().inputs.arrays['w_down']
  computed = []

  def recall():
    compute = lambda: computed.append(1) or {'sum': tensor.sum(0)}
    arrays = dict(tensor=tensor, w_down=w_down)
    return golden_cache.recall(('a sum',), arrays, compute)

  assert recall()['sum'].tobytes() == recall()['sum'].tobytes()
  assert len(computed) == 1
