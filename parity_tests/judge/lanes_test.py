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
from hpmoe.parity_tests.judge import equality
from hpmoe.parity_tests.judge import lanes
from hpmoe.parity_tests.judge import tolerance_lanes
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.limits import golden as golden_lib
from hpmoe.parity_tests.judge.limits import ulp
from hpmoe.reference import layer
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import storage
from hpmoe.reference.contract import tensors

DTYPES = ('float32', 'bfloat16')
OPTIONS = granularity.Options(row_block=4)
# 13 tokens: no multiple of the block; capacity leaves padding.
REQUEST = check.Request(
  case_lib.Case(preset='tiny', ranks=2, tokens=13, routing='zipf'),
  host.Megakernel(options=OPTIONS),
)


@pytest.fixture(scope='module', params=DTYPES)
def bench(request):
  wanted = dataclasses.replace(REQUEST.case, dtype=request.param)
  return bench_lib.Bench(wanted, keep=True)


@pytest.fixture(
  scope='module',
  params=[(d, p) for d in DTYPES for p in ('combine', 'before_down')],
  ids='-'.join,
)
def grad_bench(request):
  dtype, placement = request.param
  wanted = dataclasses.replace(
    REQUEST.case,
    direction='backward',
    routing='empty_experts',
    dtype=dtype,
    placement=placement,
  )
  return bench_lib.Bench(wanted, keep=True)


def _wide(a):
  return a.astype(np.float32)


def _without(lost):
  """Returns what gives tokens y without slots `lost` of `[R, T, K]`."""

  def spoil(case, made, name):
    weights = case.inputs.arrays['topk_weights'] * ~lost(case.tiling.topk_ids)
    y = (_wide(made['returned']) * weights[..., None]).sum(axis=2)
    bad = lost(case.tiling.topk_ids).any(axis=-1, keepdims=True)
    return np.where(bad, y.astype(made[name].dtype), made[name])

  return spoil


def _misplaced_weight(case, made, name):
  held = _wide(made[name])
  weights = np.roll(case.inputs.arrays['topk_weights'][0, 7], 1)
  held[0, 7] = weights @ _wide(made['returned'][0, 7])
  return held


def _swapped_return(case, made, name):
  home = made[name].copy()
  home[0, [3, 4], 0] = home[0, [4, 3], 0]
  return home


def _written_padding(case, made, name):
  held = made[name].copy()
  held[0, -1, 2] = 1e-30
  return held


def _dropped_weight_tile(case, made, name):
  rank, local, _ = controls_testing.busy(case.tiling)
  held = made[name].copy()
  held[rank, local, :8, :8] = 0
  return held


def _swapped_weight_grads(case, made, name):
  rank, local, _ = controls_testing.busy(case.tiling)
  held = made[name].copy()
  held[rank, [local, local ^ 1]] = held[rank, [local ^ 1, local]]
  return held


def _row_missing_from_a_sum(case, made, name):
  rank, local, rows = controls_testing.busy(case.tiling)
  left = _wide(case.inputs.arrays['activation'][rank, rows])
  right = _wide(made['d_expert_out'][rank, rows])
  # Of wide data some rows add nothing.
  at = np.argmax(left.any(axis=-1) & right.any(axis=-1))
  held = _wide(made[name])
  held[rank, local] -= np.outer(left[at], right[at])
  return held


def _empty_expert_not_zeroed(case, made, name):
  rows = case.tiling.counts.sum(axis=0)
  expert = int(np.argmin(rows))
  assert not rows[expert]
  held = made[name].copy()
  held[divmod(expert, case.tiling.config.experts_per_rank)][3, 5] = 0.25
  return held


def _weight_grads_of_swapped_slots(case, made, name):
  held = made[name].copy()
  apart = np.abs(held[0] - held[0, :, ::-1]).max(axis=-1)
  token = np.argmax(apart)
  held[0, token] = held[0, token, ::-1].copy()
  return held


def _controls(case):
  """Returns those of `controls_testing`, and more, by name."""
  one = controls_testing.Control
  more = (
    one('unwritten tile', ('gate_up', 'd_activation'), _NAN),
    one('weights of other slots', ('y',), _misplaced_weight),
    one('swapped return', ('returned', 'd_returned'), _swapped_return),
    one('written padding', ('activation', 'd_gate_up'), _written_padding),
    one('lost expert', ('y',), _without(lambda ids: ids == 3)),
    one('dropped weight tile', ('d_w_gate_up',), _dropped_weight_tile),
    one('swapped weight grads', ('d_w_down',), _swapped_weight_grads),
    one('row missing from a sum', ('d_w_down',), _row_missing_from_a_sum),
    one('expert not zeroed', ('d_w_gate_up',), _empty_expert_not_zeroed),
    one('slots swapped', ('d_topk_weights',), _weight_grads_of_swapped_slots),
  )
  return {c.name: c for c in (*controls_testing.controls(case), *more)}


_NAN = controls_testing.tile_of(np.nan)
# Of one pass or the other; all others are of both.
_FORWARD = ('weights of other slots', 'lost expert')
_BACKWARD = (
  *('dropped weight tile', 'swapped weight grads', 'row missing from a sum'),
  *('expert not zeroed', 'slots swapped'),
)


def _names(bench, which, others):
  """Returns the names of a pass's controls."""
  case = bench.case(Spoiled(bench), which, bench.real_inputs)
  return [name for name in _controls(case) if name not in others]


def _data_of(bench, arrays):
  """Returns which of a bench's inputs these are: 'real', 'exact' or 'wide'."""
  return next(
    data
    for data in reversed(inputs_lib.DATA)
    if bench.inputs(data).arrays['w_down'] is arrays['w_down']
  )


class Spoiled(candidates.Candidate):
  """A right kernel, the oracle itself, and one way to be wrong."""

  name = 'oracle'
  options = OPTIONS

  def __init__(self, bench, control=None, keep=None):
    self._bench, self.control, self._keep = bench, control, keep
    self.stage = None

  def _right(self, config, policy, inputs, which):
    data = _data_of(self._bench, inputs)
    made = dataclasses.replace(
      self._bench.real_inputs, policy=policy, arrays=inputs, data=data
    )
    return made, self._bench.answer(made, which)

  def run(self, config, policy, inputs, which=passes.FORWARD, given=None):
    made, answer = self._right(config, policy, inputs, which)
    if self.control is not None:
      case = self._bench.case(self, which, made)
      control = _controls(case).get(self.control, self.control)
      for name in reversed(controls_testing.spoils(case, control)):
        self.stage = name
        held = control.spoil(case, answer, name)
        answer[name] = held.astype(answer[name].dtype)
    kept = self._keep or answer
    return {name: answer[name] for name in kept}

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
  _check_right(_judge(bench, Spoiled(bench)))
  for control in _names(bench, passes.FORWARD, _BACKWARD):
    candidate = Spoiled(bench, control)
    _check_control(candidate, _judge(bench, candidate))
  for control in ('stale row', 'swapped return'):
    kept = Spoiled(bench, control, keep=passes.FORWARD.outputs)
    _check_moved(kept, _judge(bench, kept, lanes=('bitwise',)))


@pytest.mark.few(2)
def test_all_lanes_pass_right_gradients_and_fail_every_control(grad_bench):
  results = _judge_grad(grad_bench, Spoiled(grad_bench))
  _check_right(results)
  assert {verdicts.tensor_of(r.stage) for r in results} == set(tensors.GRADS)
  for control in _names(grad_bench, passes.BACKWARD, _FORWARD):
    candidate = Spoiled(grad_bench, control)
    _check_control(candidate, _judge_grad(grad_bench, candidate))
  # With `combine` a weight is multiplied where rows of dy move.
  early = grad_bench.real_inputs.policy.placement == 'before_down'
  for control in ('swapped return', 'stale row')[: 1 + early]:
    kept = Spoiled(grad_bench, control, keep=passes.BACKWARD.outputs)
    _check_moved(kept, _judge_grad(grad_bench, kept, lanes=('bitwise',)))


def _check_right(results):
  assert {r.lane for r in results} == set(verdicts.LANES)
  for result in results:
    assert (result.verdict, result.failed) == (verdicts.PASS, 0), result
    assert result.tiles > 0
    assert result.failure is None
    assert (result.worst_element is None) == (result.worst_abs == 0)
    assert 0 <= result.values.get('error_of_bound', 0) <= 1


def _check_moved(candidate, results):
  """Bits that moved wrong are seen without a serial run."""
  failed = [r.stage for r in results if r.verdict == verdicts.FAIL]
  assert failed == [candidate.stage], candidate.control


def _check_control(candidate, results):
  # Lane exact has two cases, each with a rule of its own.
  cases = [(lane, None) for lane in verdicts.LANES if lane != 'exact']
  cases += [('exact', equality.ORACLE_RULE), ('exact', equality.WIDE_RULE)]
  for lane, rule in cases:
    mine = [r for r in results if r.lane == lane and rule in (None, r.rule)]
    failures = [r.failure for r in mine if r.verdict == verdicts.FAIL]
    if lane == 'standard' and candidate.stage not in {r.stage for r in mine}:
      continue  # What moves is judged by its bits.
    assert failures, (candidate.control, lane, rule)
    first = min(failures, key=verdicts.Failure.order)
    assert (first.stage, first.lane) == (candidate.stage, lane)
    assert first.got != first.expected or np.isnan(first.got)


@pytest.mark.few(2)
def test_a_row_missing_from_a_weight_gradient_is_named(grad_bench):
  spoiled = Spoiled(grad_bench, 'row missing from a sum')

  results = _judge_grad(grad_bench, spoiled, lanes=('exact',))

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
  spoiled = Spoiled(grad_bench, 'lost slot', keep=('dx',))

  results = _judge_grad(grad_bench, spoiled, lanes=('bounded',))

  # One bad token may leave its tile spread as it should be.
  told = {r.stage: r.verdict for r in results if r.rule != verdicts.SPREAD_RULE}
  assert told['dx'] == told['layer dx'] == verdicts.FAIL
  del told['dx'], told['layer dx']
  assert set(told.values()) == {verdicts.NOT_JUDGED}
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

  def run(self, config, policy, inputs, which=passes.FORWARD, given=None):
    answer = self._right.run(config, policy, inputs, which)
    if which is passes.FORWARD:
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

  failed = {r.stage for r in results if r.verdict == verdicts.FAIL}
  assert 'gate_up' in failed
  assert failed.isdisjoint(tensors.GRADS)
  assert not [stage for stage in failed if stage.startswith('layer ')]
  judged = [r.stage for r in results if r.verdict == verdicts.PASS]
  assert set(tensors.GRADS) <= set(judged)
  # Forward rows come first, whatever their lane.
  is_backward = [verdicts.pass_of(r.stage) is passes.BACKWARD for r in results]
  assert is_backward == sorted(is_backward)


def test_the_oracles_answer_stands_beside_what_read_the_same_bits(bench):
  case = bench.case(Spoiled(bench), passes.FORWARD, bench.real_inputs)
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
    _judge(bench, Spoiled(bench), direction='both')


def test_a_failure_says_where_what_and_how_to_see_it_again(bench):
  asked = REQUEST.but(candidate=Spoiled(bench, 'stale row'), lanes=('bitwise',))

  results = bench.examine(asked).results

  first = min(
    (r.failure for r in results if r.failure), key=verdicts.Failure.order
  )

  made = bench.real_inputs
  answer = bench.answer(made)
  tiling = bench_lib.cut_tiles(OPTIONS, made, answer)
  rank, local, rows = controls_testing.busy(tiling)
  right = answer['expert_in']
  assert (first.rank, first.row_block, first.col_block) == (rank, 0, 0)
  assert first.expert == rank * made.config.experts_per_rank + local
  assert first.index[:2] == (rank, rows.start + 1)
  assert first.expected == float(right[first.index])
  row = right[rank, rows.start + 2]
  assert first.got == float(row[first.index[2]])
  assert first.bad_rows == 1
  assert first.bad_cols == (right[rank, rows.start + 1] != row).sum()
  x = made.arrays['x'][first.source_rank, first.token]
  np.testing.assert_array_equal(ulp.bits(x), ulp.bits(right[first.index[:2]]))
  assert first.pattern == (
    'as if rows of expert_in were those of others of the same expert; in row '
    f'{rows.start + 1} alone, on rank 0 alone; look at the row that a slot is '
    'sent to'
  )
  assert first.replay.endswith('--lane=bitwise')


def test_a_result_alone_is_judged_in_lane_bitwise_too(bench):
  results = _judge(bench, Spoiled(bench, keep=('y',)), lanes=('bitwise',))

  judged = {r.stage: r.lane for r in results if r.verdict == verdicts.PASS}
  by_edges = {'y': 'bounded'} if _storage(bench) != 'float32' else {}
  assert judged == {verdicts.LAYER: 'bounded'} | by_edges


def _storage(bench):
  return bench.real_inputs.policy.storage


def test_the_sign_of_zero_matters_to_bits_and_not_to_values(bench):
  answer = bench.answer(bench.inputs('exact'))
  tiling = bench_lib.cut_tiles(OPTIONS, bench.real_inputs, answer)
  zero = np.zeros_like(answer['y'])

  results = [
    lanes.compare('y', lane, 'rule', -zero, zero, tiling)
    for lane in ('exact', 'bitwise')
  ]

  assert [r.verdict for r in results] == [verdicts.PASS, verdicts.FAIL]


def test_golden_rows_are_the_oracles_in_float64():
  # Given a layer in float32, when each stage is computed from x alone,
  made = dataclasses.replace(REQUEST.case, placement='before_down').make()
  arguments = (made.arrays[n] for n in tensors.INPUTS)
  forward = jax.jit(layer.forward, static_argnums=(0, 1))
  expected = forward(made.config, made.policy.golden(), *arguments)
  expected = {name: np.asarray(a) for name, a in expected.items()}
  tiling = bench_lib.cut_tiles(OPTIONS, made, expected)
  golden = golden_lib.Golden(tiling, made.policy, made.arrays, {})

  # then values are the oracle's under its golden policy.
  for name in tensors.STAGES:
    if name == 'returned':
      continue
    for rank in range(2):
      right = tiling.rows(name, expected[name], rank)
      got = golden.rows(name, rank, 0, len(right))
      np.testing.assert_allclose(got.value, right, rtol=1e-11, atol=1e-12)


@pytest.fixture(scope='module', params=('float32', 'float16'))
def overflowing(request):
  """Inputs on which much of `gate_up` is an infinity."""
  made = bench_lib.Bench(
    dataclasses.replace(REQUEST.case, dtype=request.param), keep=True
  )
  arrays = dict(made.made.arrays)
  size = dict(float32=(1e20, 1e19), float16=(200, 200))[request.param]
  dtype = arrays['x'].dtype.type
  arrays['x'] = np.abs(arrays['x']) * dtype(size[0])
  # Columns of one sign each: no order of their terms gives another infinity.
  sign = np.array([size[1], -size[1], 1.0, -1.0] * 8, dtype)
  arrays['w_gate_up'] = np.abs(arrays['w_gate_up']) * sign
  made.made = dataclasses.replace(made.made, arrays=arrays)
  return made


@pytest.mark.parametrize('keep', (('gate_up', 'y'), passes.FORWARD.outputs))
def test_a_right_kernel_may_overflow(overflowing, keep):
  gate_up = overflowing.answer(overflowing.real_inputs)['gate_up']
  assert 0.05 < np.isinf(gate_up).mean() < 0.95

  results = _judge(
    overflowing,
    Spoiled(overflowing, keep=keep),
    lanes=('bitwise', 'bounded', 'standard'),
  )

  assert {r.verdict for r in results} - {verdicts.NOT_JUDGED} == {verdicts.PASS}


@pytest.mark.parametrize('wrong', (np.nan, 'other sign', 'largest'))
def test_only_the_same_infinity_will_do(overflowing, wrong):
  # Given a kernel with something else in the place of one infinity,
  def spoil(case, made, name):
    held = made[name].copy()
    at = tuple(np.argwhere(np.isinf(held))[0])
    largest = storage.FORMATS[str(held.dtype)].largest
    held[at] = {'other sign': -held[at], 'largest': largest}.get(wrong, wrong)
    return held

  control = controls_testing.Control('another', ('gate_up',), spoil)
  spoiled = Spoiled(overflowing, control, keep=passes.FORWARD.outputs)

  # when it is judged, then that is wrong, and is what the report shows.
  for lane in ('bounded', 'standard'):
    results = _judge(overflowing, spoiled, lanes=(lane,))
    failed = [r for r in results if r.lane == lane and r.failure]
    assert failed[0].stage == 'gate_up' and np.isinf(failed[0].failure.expected)


class OnlySwiglu(Spoiled):
  """A right kernel that has no other activation."""

  def run(self, config, policy, inputs, which=passes.FORWARD, given=None):
    if policy.activation != 'swiglu':
      raise candidates.CannotJudge('it does swiglu only')
    return super().run(config, policy, inputs, which)


def test_lane_exact_is_not_judged_where_the_kernel_does_swiglu_only(bench):
  results = _judge(bench, OnlySwiglu(bench), lanes=('exact', 'bounded'))

  exact = [r for r in results if r.lane == 'exact']
  others = [r for r in results if r.lane != 'exact']
  rules = [equality.ORACLE_RULE, equality.WIDE_RULE]
  assert [r.rule for r in exact] == rules
  assert {r.verdict for r in exact} == {verdicts.NOT_JUDGED}
  assert {r.why for r in exact} == {'it does swiglu only'}
  assert {r.verdict for r in others} == {verdicts.PASS}
  # Asked for alone, it leaves the layer.
  results = _judge(bench, OnlySwiglu(bench), lanes=('exact',))
  layer = [r for r in results if r.stage == verdicts.LAYER]
  assert layer and {r.verdict for r in layer} == {verdicts.PASS}


RETURN_MORE = (
  'return expert_in, gate_up, activation, expert_out, returned to locate it '
  'nearer'
)


@pytest.mark.parametrize(
  ('control', 'hint'),
  [
    ('lost expert', 'all bad tokens, and no others, went to expert 3'),
    ('lost slot', RETURN_MORE),
  ],
)
def test_a_wrong_y_alone_gets_a_hint(bench, control, hint):
  spoiled = Spoiled(bench, control, keep=('y',))

  results = _judge(bench, spoiled, lanes=('exact', 'bounded'))

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
  got = expected.copy()
  got[0, 2, 1], got[-1, 0, 0] = np.nan, 99.0

  # when they are compared, then the NaN is told.
  result = lanes.compare('y', 'exact', 'rule', got, expected, _tiling(bench))
  assert np.isnan(result.worst_abs)
  assert result.worst_element == (0, 2, 1)


def test_a_rank_without_rows_has_a_grid_without_tiles():
  # Given a routing that sends every row to the last rank,
  empty_first = next(
    made
    for made in (
      bench_lib.Bench(
        dataclasses.replace(REQUEST.case, routing='one_rank', seed=seed)
      )
      for seed in range(9)
    )
    if _tiling(made).num_valid(0) == 0
  )
  tiling = _tiling(empty_first)
  expected = empty_first.answer(empty_first.real_inputs)['expert_in']
  got = expected.copy()
  got[1, 0, 0] += 1

  # when something is wrong there, then it is in that rank's grid.
  result = lanes.compare('expert_in', 'exact', 'rule', got, expected, tiling)
  assert [g.sum() for g in result.grids] == [0, 1]
  assert [len(e) for e in result.experts] == [len(g) for g in result.grids]
  assert result.grids[0].shape == (0, 1)


def _tiling(bench):
  return bench_lib.cut_tiles(OPTIONS, bench.real_inputs, bench.plan)
