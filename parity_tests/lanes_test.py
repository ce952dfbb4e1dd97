"""Every lane passes a right kernel and fails every way to be wrong."""

import dataclasses

import jax
import numpy as np
import pytest

from parity_tests import candidates
from parity_tests import check
from parity_tests import golden as golden_lib
from parity_tests import lanes
from parity_tests import ulp
from reference import layer
from reference import tensors
from reference import test_util

DTYPES = ('float32', 'bfloat16')
# 13 tokens: no multiple of the block; capacity leaves padding.
REQUEST = check.Request(
    preset='tiny',
    ranks=2,
    tokens=13,
    routing='zipf',
    options=dataclasses.replace(check.Request().options, row_block=4),
)


@pytest.fixture(scope='module', params=DTYPES)
def bench(request):
  wanted = dataclasses.replace(REQUEST, dtype=request.param)
  return check.Bench(wanted, keep=True)


def _wide(a):
  return a.astype(np.float32)


def _combined(made, answer, rank, token, weights):
  rows = _wide(answer['returned'][rank, token])
  y = (rows * weights[:, None]).sum(axis=0)
  return y.astype(answer['y'].dtype)


def _copy(answer, name):
  answer[name] = answer[name].copy()
  return answer[name]


def _busy_expert(tiling):
  """Returns (rank, local expert, its rows) of the fullest expert."""
  config = tiling.config
  expert = int(np.argmax(tiling.counts.sum(axis=0)))
  rank, local = divmod(expert, config.experts_per_rank)
  begin = int(
      tiling.counts.sum(axis=0)[rank * config.experts_per_rank : expert].sum()
  )
  return rank, local, slice(begin, begin + int(tiling.counts[:, expert].sum()))


# Each control spoils what a right kernel answered and says in which stage.
def all_zeros(made, tiling, answer):
  for name in tensors.STAGES:
    answer[name] = np.zeros_like(answer[name])
  return 'expert_in'


def dropped_tile(made, tiling, answer):
  rank, _, rows = _busy_expert(tiling)
  _copy(answer, 'expert_out')[rank, rows.start : rows.start + 4] = 0
  return 'expert_out'


def unwritten_tile(made, tiling, answer):
  rank, _, rows = _busy_expert(tiling)
  _copy(answer, 'gate_up')[rank, rows.start : rows.start + 4] = np.nan
  return 'gate_up'


def swapped_experts(made, tiling, answer):
  rank, local, rows = _busy_expert(tiling)
  other = made.arrays['w_gate_up'][rank, local ^ 1]
  x = _wide(answer['expert_in'][rank, rows])
  _copy(answer, 'gate_up')[rank, rows] = x @ _wide(other)
  return 'gate_up'


def stale_row(made, tiling, answer):
  rank, _, rows = _busy_expert(tiling)
  held = _copy(answer, 'expert_in')
  held[rank, rows.start + 1] = held[rank, rows.start + 2]
  return 'expert_in'


def lost_k_slot(made, tiling, answer):
  weights = made.arrays['topk_weights'][1, 5].copy()
  weights[0] = 0
  _copy(answer, 'y')[1, 5] = _combined(made, answer, 1, 5, weights)
  return 'y'


def misplaced_weight(made, tiling, answer):
  weights = np.roll(made.arrays['topk_weights'][0, 7], 1)
  _copy(answer, 'y')[0, 7] = _combined(made, answer, 0, 7, weights)
  return 'y'


def swapped_return(made, tiling, answer):
  home = _copy(answer, 'returned')
  home[0, 3, 0], home[0, 4, 0] = home[0, 4, 0].copy(), home[0, 3, 0].copy()
  return 'returned'


def written_padding(made, tiling, answer):
  _copy(answer, 'activation')[0, -1, 2] = 1e-30
  return 'activation'


CONTROLS = (
    all_zeros, dropped_tile, unwritten_tile, swapped_experts, stale_row,
    lost_k_slot, misplaced_weight, swapped_return, written_padding,
)  # fmt: skip


class Spoiled:
  """A right kernel, the oracle itself, and one way to be wrong."""

  name = 'oracle'

  def __init__(self, bench, control=None, keep=None):
    self._bench, self._control, self._keep = bench, control, keep
    self.stage = None

  def run(self, config, policy, inputs):
    made = dataclasses.replace(
        self._bench.made, policy=policy, arrays=inputs
    )
    answer = self._bench.answer(made)
    tiling = check.tiling_of(REQUEST, made, answer)
    if self._control is not None:
      self.stage = self._control(made, tiling, answer)
    kept = self._keep or answer
    return {name: answer[name] for name in kept}

  @property
  def serial(self):
    if self._keep is not None:
      return None
    return lambda config, policy, inputs: self._bench.answer(self._bench.made)


def _judge(bench, candidate, **changes):
  return bench.judge(dataclasses.replace(REQUEST, **changes), candidate)


def test_all_lanes_pass_a_right_kernel(bench):
  results = _judge(bench, Spoiled(bench))

  assert {r.lane for r in results} == set(lanes.LANES)
  for result in results:
    assert (result.verdict, result.failed) == (lanes.PASS, 0), result
    assert result.tiles > 0
    assert result.failure is None
    assert (result.worst_element is None) == (result.worst_abs == 0)


@pytest.mark.parametrize('lane', lanes.LANES)
@pytest.mark.parametrize('control', CONTROLS, ids=lambda c: c.__name__)
def test_every_lane_fails_every_control_in_its_stage(bench, control, lane):
  candidate = Spoiled(bench, control)

  results = _judge(bench, candidate, lanes=(lane,))

  failures = [r.failure for r in results if r.verdict == lanes.FAIL]
  assert failures, 'nothing failed'
  first = min(failures, key=lanes.Failure.order)
  assert first.stage == candidate.stage
  assert first.lane == lane
  assert first.got != first.expected or np.isnan(first.got)


@pytest.mark.parametrize(
    'control', (stale_row, swapped_return), ids=lambda c: c.__name__
)
def test_bits_that_moved_wrong_are_seen_without_a_serial_run(bench, control):
  candidate = Spoiled(bench, control, keep=candidates.OUTPUTS)

  results = _judge(bench, candidate, lanes=('bitwise',))

  failed = [r.stage for r in results if r.verdict == lanes.FAIL]
  assert failed == [candidate.stage]


def test_a_failure_says_where_what_and_how_to_see_it_again(bench):
  results = _judge(bench, Spoiled(bench, stale_row), lanes=('bitwise',))

  first = min(
      (r.failure for r in results if r.failure), key=lanes.Failure.order
  )

  made = bench.made
  answer = bench.answer(made)
  tiling = check.tiling_of(REQUEST, made, answer)
  rank, local, rows = _busy_expert(tiling)
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
  assert first.pattern == "holds another row's values"
  assert first.replay.endswith('--lane=bitwise')


def test_what_is_not_returned_is_not_judged_and_does_not_pass(bench):
  results = _judge(bench, Spoiled(bench, keep=('y',)))

  by_lane = {
      (r.stage, r.lane): r.verdict for r in results if r.lane != 'standard'
  }
  assert by_lane['gate_up', 'bounded'] == lanes.NOT_JUDGED
  assert by_lane['expert_in', 'exact'] == lanes.NOT_JUDGED
  assert by_lane['y', 'bounded'] == lanes.PASS
  assert by_lane[lanes.LAYER, 'bounded'] == lanes.PASS


@pytest.mark.parametrize('lane', ('exact', 'bounded', 'standard'))
@pytest.mark.parametrize(
    'control', (lost_k_slot, misplaced_weight), ids=lambda c: c.__name__
)
def test_a_wrong_y_alone_is_caught_too(bench, control, lane):
  results = _judge(
      bench, Spoiled(bench, control, keep=('y',)), lanes=(lane,)
  )

  assert any(r.verdict == lanes.FAIL for r in results)


def test_a_lane_with_nothing_to_judge_is_refused(bench):
  with pytest.raises(check.NothingToJudge, match='lane: expected one that'):
    _judge(bench, Spoiled(bench, keep=('y',)), lanes=('bitwise',))


def test_the_sign_of_zero_matters_to_bits_and_not_to_values(bench):
  answer = bench.answer(bench.exact_inputs())
  tiling = check.tiling_of(REQUEST, bench.made, answer)
  zero = np.zeros_like(answer['y'])

  results = [
      lanes.compare('y', lane, 'rule', -zero, zero, tiling)
      for lane in ('exact', 'bitwise')
  ]

  assert [r.verdict for r in results] == [lanes.PASS, lanes.FAIL]


@pytest.mark.parametrize('placement', ('combine', 'before_down'))
def test_golden_rows_are_the_oracles_in_float64(placement):
  # Given a layer in float32, when each stage is computed from x alone,
  request = dataclasses.replace(REQUEST, placement=placement)
  made = check.make_inputs(request)
  with test_util.x64():
    arguments = (jax.numpy.asarray(made.arrays[n]) for n in tensors.INPUTS)
    expected = layer.forward(made.config, made.policy.golden(), *arguments)
    expected = {name: np.asarray(a) for name, a in expected.items()}
  tiling = check.tiling_of(request, made, expected)
  golden = golden_lib.Golden(tiling, made.policy, made.arrays, {})

  # then values are the oracle's under its golden policy.
  for name in tensors.STAGES:
    if name == 'returned':
      continue
    for rank in range(2):
      right = tiling.rows(name, expected[name], rank)
      got = golden.rows(name, rank, 0, len(right))
      np.testing.assert_allclose(got.value, right, rtol=1e-11, atol=1e-12)


class OnlySwiglu(Spoiled):
  """A right kernel that has no other activation."""

  def run(self, config, policy, inputs):
    if policy.activation != 'swiglu':
      raise candidates.CannotJudge('it does swiglu only')
    return super().run(config, policy, inputs)


def test_lane_exact_is_not_judged_where_the_kernel_does_swiglu_only(bench):
  results = _judge(bench, OnlySwiglu(bench), lanes=('exact', 'bounded'))

  exact, *others = results
  assert (exact.lane, exact.verdict) == ('exact', 'not judged')
  assert exact.why == 'it does swiglu only'
  assert {r.verdict for r in others} == {lanes.PASS}


def lost_expert(made, tiling, answer):
  sent = tiling.topk_ids == 3
  for rank, token in np.argwhere(sent.any(axis=-1)):
    weights = made.arrays['topk_weights'][rank, token] * ~sent[rank, token]
    _copy(answer, 'y')[rank, token] = _combined(
        made, answer, rank, token, weights
    )
  return 'y'


@pytest.mark.parametrize(
    ('control', 'hint'),
    [
        (lost_expert, 'all bad tokens, and no others, went to expert 3'),
        (
            lost_k_slot,
            'return expert_in, gate_up, activation, expert_out, returned to '
            'locate it nearer',
        ),
    ],
    ids=lambda v: getattr(v, '__name__', ''),
)
def test_a_wrong_y_alone_gets_a_hint(bench, control, hint):
  spoiled = Spoiled(bench, control, keep=('y',))

  results = _judge(bench, spoiled, lanes=('exact', 'bounded'))

  failures = [r.failure for r in results if r.failure]
  assert {f.hint for f in failures} == {hint}


def test_a_right_kernel_uses_a_share_of_the_bound(bench):
  results = _judge(bench, Spoiled(bench), lanes=('bounded',))

  shares = [r.values['error_of_bound'] for r in results]
  assert all(0 <= share <= 1 for share in shares) and max(shares) > 0
