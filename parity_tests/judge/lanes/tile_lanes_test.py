"""Every lane passes a right kernel and fails every way to be wrong."""

import dataclasses

import jax
import numpy as np
import pytest

from hpmoe.parity_tests.ascend import host
from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.case import inputs as inputs_lib
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.judge import bench as bench_lib
from hpmoe.parity_tests.judge import check
from hpmoe.parity_tests.judge import controls_testing
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.lanes import equality
from hpmoe.parity_tests.judge.lanes import tile_lanes
from hpmoe.parity_tests.judge.lanes import tolerance_lanes
from hpmoe.parity_tests.judge.limits import golden as golden_lib
from hpmoe.parity_tests.judge.limits import ulp
from hpmoe.reference import layer
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import storage
from hpmoe.reference.contract import tensors

# No test here is of the roundings that a failure is put down to.
pytestmark = pytest.mark.verdict_alone

DTYPES = ('float32', 'bfloat16')
OPTIONS = granularity.Options(row_block=4)
# 13 tokens: no multiple of the block; capacity leaves padding.
REQUEST = check.Request(
  case_lib.Case(preset='tiny', ranks=2, tokens=13, routing='zipf'),
  host.Megakernel(options=OPTIONS),
)


@pytest.fixture(scope='module', params=DTYPES)
def bench(request):
  case = dataclasses.replace(REQUEST.case, dtype=request.param)
  return bench_lib.Bench(case, keep=True)


@pytest.fixture(
  scope='module',
  params=[(d, p) for d in DTYPES for p in ('combine', 'before_down')],
  ids='-'.join,
)
def grad_bench(request):
  dtype, placement = request.param
  case = dataclasses.replace(
    REQUEST.case,
    direction='backward',
    routing='empty_experts',
    dtype=dtype,
    placement=placement,
  )
  return bench_lib.Bench(case, keep=True)


def _wide(a):
  return a.astype(np.float32)


def _drop_slots(is_lost):
  """Returns what gives tokens y without slots `is_lost` of `[R, T, K]`."""

  def spoil(case, computed, name):
    weights = case.inputs.arrays['topk_weights'] * ~is_lost(
      case.tiling.topk_ids
    )
    y = (_wide(computed['returned']) * weights[..., None]).sum(axis=2)
    bad = is_lost(case.tiling.topk_ids).any(axis=-1, keepdims=True)
    return np.where(bad, y.astype(computed[name].dtype), computed[name])

  return spoil


def _misplaced_weight(case, computed, name):
  wrong_tensor = _wide(computed[name])
  weights = np.roll(case.inputs.arrays['topk_weights'][0, 7], 1)
  wrong_tensor[0, 7] = weights @ _wide(computed['returned'][0, 7])
  return wrong_tensor


def _swapped_return(case, computed, name):
  wrong_tensor = computed[name].copy()
  wrong_tensor[0, [3, 4], 0] = wrong_tensor[0, [4, 3], 0]
  return wrong_tensor


def _written_padding(case, computed, name):
  wrong_tensor = computed[name].copy()
  wrong_tensor[0, -1, 2] = 1e-30
  return wrong_tensor


def _dropped_weight_tile(case, computed, name):
  rank, local, _ = controls_testing.busy(case.tiling)
  wrong_tensor = computed[name].copy()
  wrong_tensor[rank, local, :8, :8] = 0
  return wrong_tensor


def _swapped_weight_grads(case, computed, name):
  rank, local, _ = controls_testing.busy(case.tiling)
  wrong_tensor = computed[name].copy()
  wrong_tensor[rank, [local, local ^ 1]] = wrong_tensor[
    rank, [local ^ 1, local]
  ]
  return wrong_tensor


def _drop_summed_row(case, computed, name):
  rank, local, rows = controls_testing.busy(case.tiling)
  left = _wide(case.inputs.arrays['activation'][rank, rows])
  right = _wide(computed['d_expert_out'][rank, rows])
  # Of wide data some rows add nothing.
  row = np.argmax(left.any(axis=-1) & right.any(axis=-1))
  wrong_tensor = _wide(computed[name])
  wrong_tensor[rank, local] -= np.outer(left[row], right[row])
  return wrong_tensor


def _empty_expert_not_zeroed(case, computed, name):
  rows = case.tiling.counts.sum(axis=0)
  expert = int(np.argmin(rows))
  assert not rows[expert]
  wrong_tensor = computed[name].copy()
  wrong_tensor[divmod(expert, case.tiling.config.experts_per_rank)][3, 5] = 0.25
  return wrong_tensor


def _weight_grads_of_swapped_slots(case, computed, name):
  wrong_tensor = computed[name].copy()
  apart = np.abs(wrong_tensor[0] - wrong_tensor[0, :, ::-1]).max(axis=-1)
  token = np.argmax(apart)
  wrong_tensor[0, token] = wrong_tensor[0, token, ::-1].copy()
  return wrong_tensor


def _controls(case):
  """Returns those of `controls_testing`, and more, by name."""
  control = controls_testing.Control
  own_controls = (
    control('unwritten tile', ('gate_up', 'd_activation'), _NAN),
    control('weights of other slots', ('y',), _misplaced_weight),
    control('swapped return', ('returned', 'd_returned'), _swapped_return),
    control('written padding', ('activation', 'd_gate_up'), _written_padding),
    control('lost expert', ('y',), _drop_slots(lambda ids: ids == 3)),
    control('dropped weight tile', ('d_w_gate_up',), _dropped_weight_tile),
    control('swapped weight grads', ('d_w_down',), _swapped_weight_grads),
    control('row missing from a sum', ('d_w_down',), _drop_summed_row),
    control('expert not zeroed', ('d_w_gate_up',), _empty_expert_not_zeroed),
    control(
      'slots swapped', ('d_topk_weights',), _weight_grads_of_swapped_slots
    ),
  )
  return {c.name: c for c in (*controls_testing.controls(case), *own_controls)}


_NAN = controls_testing.tile_of(np.nan)
# Of one pass or the other; all others are of both.
_FORWARD = ('weights of other slots', 'lost expert')
_BACKWARD = (
  *('dropped weight tile', 'swapped weight grads', 'row missing from a sum'),
  *('expert not zeroed', 'slots swapped'),
)


def _names(bench, layer_pass, other_names):
  """Returns the names of a pass's controls."""
  case = bench.case(SpoiledOracle(bench), layer_pass, bench.real_inputs)
  return [name for name in _controls(case) if name not in other_names]


def _data_of(bench, arrays):
  """Returns which of a bench's inputs these are: 'real', 'exact' or 'wide'."""
  return next(
    data
    for data in reversed(inputs_lib.DATA)
    if bench.inputs(data).arrays['w_down'] is arrays['w_down']
  )


class SpoiledOracle(candidates.Candidate):
  """A right kernel, the oracle itself, and one way to be wrong."""

  name = 'oracle'
  options = OPTIONS

  def __init__(self, bench, control=None, keep=None):
    self._bench, self.control, self._keep = bench, control, keep
    self.stage = None

  def _right(self, config, policy, inputs, layer_pass):
    data = _data_of(self._bench, inputs)
    layer_inputs = dataclasses.replace(
      self._bench.real_inputs, policy=policy, arrays=inputs, data=data
    )
    return layer_inputs, self._bench.answer(layer_inputs, layer_pass)

  def run(
    self, config, policy, inputs, layer_pass=passes.FORWARD, oracle_tensors=None
  ):
    layer_inputs, answer = self._right(config, policy, inputs, layer_pass)
    if self.control is not None:
      case = self._bench.case(self, layer_pass, layer_inputs)
      control = _controls(case).get(self.control, self.control)
      for name in reversed(controls_testing.spoils(case, control)):
        self.stage = name
        wrong_tensor = control.spoil(case, answer, name)
        answer[name] = wrong_tensor.astype(answer[name].dtype)
    kept_names = self._keep or answer
    return {name: answer[name] for name in kept_names}

  @property
  def serial(self):
    if self._keep is not None:
      return None
    return lambda *arguments: self._right(*arguments)[1]


def _judge(bench, candidate, **changes):
  return bench.judge(REQUEST.but(candidate=candidate, **changes))


def _judge_grad(bench, candidate, **changes):
  return _judge(bench, candidate, direction='backward', **changes)


@pytest.mark.few(1)
def test_all_lanes_pass_a_right_kernel_and_fail_every_control(bench):
  _check_right(_judge(bench, SpoiledOracle(bench)))
  for control in _names(bench, passes.FORWARD, _BACKWARD):
    candidate = SpoiledOracle(bench, control)
    _check_control(candidate, _judge(bench, candidate))
  for control in ('stale row', 'swapped return'):
    candidate_of_outputs = SpoiledOracle(
      bench, control, keep=passes.FORWARD.outputs
    )
    _check_moved(
      candidate_of_outputs,
      _judge(bench, candidate_of_outputs, lanes=('bitwise',)),
    )


@pytest.mark.few(1)
def test_all_lanes_pass_right_gradients_and_fail_every_control(grad_bench):
  results = _judge_grad(grad_bench, SpoiledOracle(grad_bench))
  _check_right(results)
  assert {verdicts.tensor_of(r.stage) for r in results} == set(tensors.GRADS)
  for control in _names(grad_bench, passes.BACKWARD, _FORWARD):
    candidate = SpoiledOracle(grad_bench, control)
    _check_control(candidate, _judge_grad(grad_bench, candidate))
  # With `combine` a weight is multiplied where rows of dy move.
  early = grad_bench.real_inputs.policy.placement == 'before_down'
  for control in ('swapped return', 'stale row')[: 1 + early]:
    candidate_of_outputs = SpoiledOracle(
      grad_bench, control, keep=passes.BACKWARD.outputs
    )
    _check_moved(
      candidate_of_outputs,
      _judge_grad(grad_bench, candidate_of_outputs, lanes=('bitwise',)),
    )


def _check_right(results):
  assert {r.lane for r in results} == set(verdicts.LANES)
  for result in results:
    assert (result.verdict, result.failed_tiles) == (verdicts.PASS, 0), result
    assert result.tiles > 0
    assert result.failure is None
    assert (result.worst_element is None) == (result.worst_abs == 0)
    assert 0 <= result.values.get('error_of_bound', 0) <= 1


def _check_moved(candidate, results):
  """Bits that moved wrong are seen without a serial run."""
  failed_stages = [r.stage for r in results if r.verdict == verdicts.FAIL]
  assert failed_stages == [candidate.stage], candidate.control


def _check_control(candidate, results):
  # Lane exact has two cases, each with a rule of its own.
  cases = [(lane, None) for lane in verdicts.LANES if lane != 'exact']
  cases += [('exact', equality.ORACLE_RULE), ('exact', equality.WIDE_RULE)]
  for lane, rule in cases:
    lane_results = [
      r for r in results if r.lane == lane and rule in (None, r.rule)
    ]
    failures = [r.failure for r in lane_results if r.verdict == verdicts.FAIL]
    if lane == 'standard' and candidate.stage not in {
      r.stage for r in lane_results
    }:
      continue  # What moves is judged by its bits.
    assert failures, (candidate.control, lane, rule)
    first = min(failures, key=verdicts.Failure.order)
    assert (first.stage, first.lane) == (candidate.stage, lane)
    assert first.actual != first.expected or np.isnan(first.actual)


@pytest.mark.few(1)
def test_a_row_missing_from_a_weight_gradient_is_named(grad_bench):
  candidate = SpoiledOracle(grad_bench, 'row missing from a sum')

  results = _judge_grad(grad_bench, candidate, lanes=('exact',))

  failure = next(r.failure for r in results if r.failure)
  tiling = bench_lib.cut_tiles(OPTIONS, grad_bench.real_inputs, grad_bench.plan)
  rank, local, _ = controls_testing.busy(tiling)
  assert (failure.stage, failure.rank) == ('d_w_down', rank)
  assert failure.expert == rank * tiling.config.experts_per_rank + local
  assert failure.index[:2] == (rank, local) and len(failure.index) == 4
  assert (failure.token, failure.source_rank, failure.slot) == (None,) * 3
  if grad_bench.real_inputs.policy.storage == 'float32':
    assert failure.pattern.startswith('off by one outer product')


@pytest.mark.few(2)
def test_only_dx_is_judged_where_only_dx_came_back(grad_bench):
  candidate = SpoiledOracle(grad_bench, 'lost slot', keep=('dx',))

  results = _judge_grad(grad_bench, candidate, lanes=('bounded',))

  # One bad token may leave its tile spread as it should be.
  verdict_by_stage = {
    r.stage: r.verdict for r in results if r.rule != verdicts.SPREAD_RULE
  }
  assert verdict_by_stage['dx'] == verdict_by_stage['layer dx'] == verdicts.FAIL
  del verdict_by_stage['dx'], verdict_by_stage['layer dx']
  assert set(verdict_by_stage.values()) == {verdicts.NOT_JUDGED}
  assert all(
    'return d_expert_out, d_activation' in r.failure.hint
    for r in results
    if r.failure
  )


class Blurred(candidates.Candidate):
  """Our backend, with some elements of one forward tensor replaced."""

  name = 'blurred'
  options = OPTIONS

  def __init__(self, value):
    self._right = host.Megakernel(OPTIONS)
    self._value = value

  def run(
    self, config, policy, inputs, layer_pass=passes.FORWARD, oracle_tensors=None
  ):
    answer = self._right.run(config, policy, inputs, layer_pass)
    if layer_pass is passes.FORWARD:
      answer['gate_up'][0, 0, :4] = self._value
    return answer


@pytest.mark.parametrize('value', (3.0, np.nan))
def test_a_forward_fault_does_not_spread_to_the_backward_pass(value):
  request = REQUEST.but(
    candidate=Blurred(value),
    direction='both',
    lanes=('bitwise', 'bounded', 'standard'),
  )

  results = bench_lib.Bench(request.case).judge(request)

  failed_stages = {r.stage for r in results if r.verdict == verdicts.FAIL}
  assert 'gate_up' in failed_stages
  assert failed_stages.isdisjoint(tensors.GRADS)
  assert not [stage for stage in failed_stages if stage.startswith('layer ')]
  passing_stages = [r.stage for r in results if r.verdict == verdicts.PASS]
  assert set(tensors.GRADS) <= set(passing_stages)
  # Forward rows come first, whatever their lane.
  is_backward = [verdicts.pass_of(r.stage) is passes.BACKWARD for r in results]
  assert is_backward == sorted(is_backward)


def test_the_oracles_answer_stands_beside_what_read_the_same_bits(bench):
  case = bench.case(SpoiledOracle(bench), passes.FORWARD, bench.real_inputs)
  answer = case.answer()

  beside = tolerance_lanes._recompute_beside(case, 'gate_up', answer, answer)
  assert beside is answer['gate_up']

  # when: a candidate dispatched twice the rows; then: beside it stands what
  # the oracle makes of those.
  doubled = answer | {'expert_in': 2 * answer['expert_in']}
  beside = tolerance_lanes._recompute_beside(case, 'gate_up', doubled, answer)
  np.testing.assert_array_equal(beside, 2 * answer['gate_up'])


def test_a_pass_that_a_bench_was_not_made_for_is_refused(bench):
  with pytest.raises(ValueError, match='direction: expected a pass of'):
    _judge(bench, SpoiledOracle(bench), direction='both')


def test_a_failure_says_where_what_and_how_to_see_it_again(bench):
  request = REQUEST.but(
    candidate=SpoiledOracle(bench, 'stale row'), lanes=('bitwise',)
  )

  results = bench.examine(request).results

  first = min(
    (r.failure for r in results if r.failure), key=verdicts.Failure.order
  )

  inputs = bench.real_inputs
  answer = bench.answer(inputs)
  tiling = bench_lib.cut_tiles(OPTIONS, inputs, answer)
  rank, local, rows = controls_testing.busy(tiling)
  right = answer['expert_in']
  assert (first.rank, first.row_block, first.col_block) == (rank, 0, 0)
  assert first.expert == rank * inputs.config.experts_per_rank + local
  assert first.index[:2] == (rank, rows.start + 1)
  assert first.expected == float(right[first.index])
  row = right[rank, rows.start + 2]
  assert first.actual == float(row[first.index[2]])
  assert first.bad_rows == 1
  assert first.bad_cols == (right[rank, rows.start + 1] != row).sum()
  x = inputs.arrays['x'][first.source_rank, first.token]
  np.testing.assert_array_equal(ulp.bits(x), ulp.bits(right[first.index[:2]]))
  assert first.pattern == (
    'as if rows of expert_in were other rows of the same expert; only in '
    f'row {rows.start + 1}, only on rank 0; look at the row that a slot is '
    'sent to'
  )
  assert first.replay.endswith('--lane=bitwise')


def test_a_result_alone_is_judged_in_lane_bitwise_too(bench):
  results = _judge(bench, SpoiledOracle(bench, keep=('y',)), lanes=('bitwise',))

  lane_by_stage = {
    r.stage: r.lane for r in results if r.verdict == verdicts.PASS
  }
  by_edges = {'y': 'bounded'} if _storage(bench) != 'float32' else {}
  assert lane_by_stage == {verdicts.LAYER: 'bounded'} | by_edges


def _storage(bench):
  return bench.real_inputs.policy.storage


def test_the_sign_of_zero_matters_to_bits_and_not_to_values(bench):
  answer = bench.answer(bench.inputs('exact'))
  tiling = bench_lib.cut_tiles(OPTIONS, bench.real_inputs, answer)
  zero = np.zeros_like(answer['y'])

  results = [
    tile_lanes.compare('y', lane, 'rule', -zero, zero, tiling)
    for lane in ('exact', 'bitwise')
  ]

  assert [r.verdict for r in results] == [verdicts.PASS, verdicts.FAIL]


def test_golden_rows_are_the_oracles_in_float64():
  # Given a layer in float32, when each stage is computed from x alone,
  inputs = dataclasses.replace(REQUEST.case, placement='before_down').make()
  arguments = (inputs.arrays[n] for n in tensors.INPUTS)
  forward = jax.jit(layer.forward, static_argnums=(0, 1))
  expected = forward(inputs.config, inputs.policy.golden(), *arguments)
  expected = {name: np.asarray(a) for name, a in expected.items()}
  tiling = bench_lib.cut_tiles(OPTIONS, inputs, expected)
  golden = golden_lib.Golden(tiling, inputs.policy, inputs.arrays, {})

  # then values are the oracle's under its golden policy.
  for name in tensors.STAGES:
    if name == 'returned':
      continue
    for rank in range(2):
      right = tiling.rows(name, expected[name], rank)
      golden_rows = golden.rows(name, rank, 0, len(right))
      np.testing.assert_allclose(
        golden_rows.value, right, rtol=1e-11, atol=1e-12
      )


@pytest.fixture(scope='module', params=('float32', 'float16'))
def overflowing(request):
  """Inputs on which much of `gate_up` is an infinity."""
  bench = bench_lib.Bench(
    dataclasses.replace(REQUEST.case, dtype=request.param), keep=True
  )
  arrays = dict(bench.real_inputs.arrays)
  size = dict(float32=(1e20, 1e19), float16=(200, 200))[request.param]
  dtype = arrays['x'].dtype.type
  arrays['x'] = np.abs(arrays['x']) * dtype(size[0])
  # Columns of one sign each: no order of their terms gives another infinity.
  sign = np.array([size[1], -size[1], 1.0, -1.0] * 8, dtype)
  arrays['w_gate_up'] = np.abs(arrays['w_gate_up']) * sign
  bench.real_inputs = dataclasses.replace(bench.real_inputs, arrays=arrays)
  return bench


@pytest.mark.parametrize('keep', (('gate_up', 'y'), passes.FORWARD.outputs))
@pytest.mark.few(1)
def test_a_right_kernel_may_overflow(overflowing, keep):
  gate_up = overflowing.answer(overflowing.real_inputs)['gate_up']
  assert 0.05 < np.isinf(gate_up).mean() < 0.95

  results = _judge(
    overflowing,
    SpoiledOracle(overflowing, keep=keep),
    lanes=('bitwise', 'bounded', 'standard'),
  )

  assert {r.verdict for r in results} - {verdicts.NOT_JUDGED} == {verdicts.PASS}


@pytest.mark.parametrize('wrong', (np.nan, 'other sign', 'largest'))
def test_only_the_same_infinity_will_do(overflowing, wrong):
  # Given a kernel with something else in the place of one infinity,
  def spoil(case, computed, name):
    wrong_tensor = computed[name].copy()
    position = tuple(np.argwhere(np.isinf(wrong_tensor))[0])
    largest = storage.FORMATS[str(wrong_tensor.dtype)].largest
    wrong_tensor[position] = {
      'other sign': -wrong_tensor[position],
      'largest': largest,
    }.get(wrong, wrong)
    return wrong_tensor

  control = controls_testing.Control('another', ('gate_up',), spoil)
  candidate = SpoiledOracle(overflowing, control, keep=passes.FORWARD.outputs)

  # when it is judged, then that is wrong, and is what the report shows.
  for lane in ('bounded', 'standard'):
    results = _judge(overflowing, candidate, lanes=(lane,))
    failed_results = [r for r in results if r.lane == lane and r.failure]
    assert failed_results[0].stage == 'gate_up' and np.isinf(
      failed_results[0].failure.expected
    )


class OnlySwiglu(SpoiledOracle):
  """A right kernel that has no other activation."""

  def run(
    self, config, policy, inputs, layer_pass=passes.FORWARD, oracle_tensors=None
  ):
    if policy.activation != 'swiglu':
      raise candidates.CannotJudge('it does swiglu only')
    return super().run(config, policy, inputs, layer_pass)


def test_lane_exact_is_not_judged_where_the_kernel_does_swiglu_only(bench):
  results = _judge(bench, OnlySwiglu(bench), lanes=('exact', 'bounded'))

  exact = [r for r in results if r.lane == 'exact']
  other_results = [r for r in results if r.lane != 'exact']
  rules = [equality.ORACLE_RULE, equality.WIDE_RULE]
  assert [r.rule for r in exact] == rules
  assert {r.verdict for r in exact} == {verdicts.NOT_JUDGED}
  assert {r.reason for r in exact} == {'it does swiglu only'}
  assert {r.verdict for r in other_results} == {verdicts.PASS}
  # Asked for alone, it leaves the layer.
  results = _judge(bench, OnlySwiglu(bench), lanes=('exact',))
  layer = [r for r in results if r.stage == verdicts.LAYER]
  assert layer and {r.verdict for r in layer} == {verdicts.PASS}


RETURN_MORE = (
  'return expert_in, gate_up, activation, expert_out, returned to locate it '
  'more closely'
)


@pytest.mark.parametrize(
  ('control', 'hint'),
  [
    (
      'lost expert',
      f'all bad tokens, and no others, went to expert 3; {RETURN_MORE}',
    ),
    ('lost slot', RETURN_MORE),
  ],
)
def test_a_wrong_y_alone_gets_a_hint(bench, control, hint):
  candidate = SpoiledOracle(bench, control, keep=('y',))

  results = _judge(bench, candidate, lanes=('exact', 'bounded'))

  # A tile with few bad tokens may be spread as it should be, and what changes
  # a token by less than the noise has no edge.
  hints = {
    (r.rule, r.failure.hint)
    for r in results
    if r.failure and r.rule not in (verdicts.SPREAD_RULE, verdicts.EDGES_RULE)
  }
  # Wide data weigh one slot of a token: an expert is lost to some of its own.
  assert hints == {
    (equality.ORACLE_RULE, hint),
    (verdicts.BOUND_RULE, hint),
    (equality.WIDE_RULE, RETURN_MORE),
  }


def test_nan_stays_the_worst_whatever_later_ranks_hold(bench):
  # Given a NaN on the first rank and a plain error on the last,
  answer = bench.answer(bench.real_inputs)
  expected = answer['y']
  actual = expected.copy()
  actual[0, 2, 1], actual[-1, 0, 0] = np.nan, 99.0

  # when they are compared, then the NaN is told.
  result = tile_lanes.compare(
    'y', 'exact', 'rule', actual, expected, _tiling(bench)
  )
  assert np.isnan(result.worst_abs)
  assert result.worst_element == (0, 2, 1)


def test_the_worst_element_has_one_distance(bench):
  # Given an element that is far off, and a tiny one of the wrong sign, from
  # which more stored values lie between,
  expected = bench.answer(bench.real_inputs)['y'].copy()
  expected[0, 2, :2] = 4, -(2.0**-9)
  actual = expected.copy()
  actual[0, 2, :2] = 7, 2.0**-9
  tiling = _tiling(bench)

  # when they are compared,
  result = tile_lanes.compare('y', 'exact', 'rule', actual, expected, tiling)

  # then table and failure tell the distance of the same element.
  distances = ulp.distance(actual, expected)
  assert distances[0, 2, 1] > distances[0, 2, 0]
  assert result.worst_element == result.failure.index == (0, 2, 0)
  assert result.worst_ulp == result.failure.ulp == distances[0, 2, 0]


def test_a_rank_without_rows_has_a_grid_without_tiles():
  # Given a routing that sends every row to the last rank,
  empty_first = next(
    bench
    for bench in (
      bench_lib.Bench(
        dataclasses.replace(REQUEST.case, routing='one_rank', seed=seed)
      )
      for seed in range(9)
    )
    if _tiling(bench).num_valid(0) == 0
  )
  tiling = _tiling(empty_first)
  expected = empty_first.answer(empty_first.real_inputs)['expert_in']
  actual = expected.copy()
  actual[1, 0, 0] += 1

  # when something is wrong there, then it is in that rank's grid.
  result = tile_lanes.compare(
    'expert_in', 'exact', 'rule', actual, expected, tiling
  )
  assert [g.sum() for g in result.grids] == [0, 1]
  assert [len(e) for e in result.experts] == [len(g) for g in result.grids]
  assert result.grids[0].shape == (0, 1)


def _tiling(bench):
  return bench_lib.cut_tiles(OPTIONS, bench.real_inputs, bench.plan)
