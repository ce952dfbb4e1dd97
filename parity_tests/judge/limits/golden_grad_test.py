"""The backward golden is the oracle's in float64, however it is cut."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest

from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.case import inputs
from hpmoe.parity_tests.case import tiles
from hpmoe.parity_tests.judge import oracle as oracle_lib
from hpmoe.parity_tests.judge.limits import golden
from hpmoe.parity_tests.judge.limits import golden_grad
from hpmoe.reference import layer_grad
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import presets
from hpmoe.reference.contract import stable_random
from hpmoe.reference.contract import tensors

# Every choice once: each policy is two compilations.
_POLICIES = {
  '-'.join(p): precision.PrecisionPolicy(p[0], 'float32', *p[1:])
  for p in (
    ('float32', 'combine', 'absolute'),
    ('bfloat16', 'before_down', 'swiglu'),
  )
}


@dataclasses.dataclass(frozen=True)
class Case:
  """A layer and its gradients as the oracle computes them.

  Attributes:
    tiling: of its routing.
    policy: its precision.
    saved: inputs, dy and what the forward pass keeps.
    grads: the oracle's tensors of `GRADS`, writable.
  """

  tiling: tiles.Tiling
  policy: precision.PrecisionPolicy
  forward_tensors: dict[str, np.ndarray]
  grads: dict[str, np.ndarray]

  def golden(self, captured_tensors, **kwargs):
    return golden_grad.GoldenGrad(
      self.tiling, self.policy, self.forward_tensors, captured_tensors, **kwargs
    )

  def excess(self, name, actual, captured_tensors) -> float:
    """Returns the largest error of a gradient in units of its bound."""
    golden, worst = self.golden(captured_tensors), 0.0
    for rank in range(self.tiling.config.num_ranks):
      rows = self.tiling.rows(name, actual, rank).astype(np.float64)
      bounded = golden.rows(name, rank, 0, len(rows))
      error = np.abs(rows - bounded.value)
      wrong = error > 0
      ratio = error[wrong] / np.maximum(bounded.bound()[wrong], 1e-300)
      worst = max(worst, ratio.max(initial=0))
    return worst


@pytest.fixture(scope='module', params=_POLICIES)
def case(request) -> Case:
  """13 tokens are no multiple of a block; capacity leaves padding."""
  policy = _POLICIES[request.param]
  layer_inputs = inputs.make_inputs(
    presets.get('tiny'),
    2,
    13,
    policy.storage,
    'zipf',
    placement=policy.placement,
    capacity=56,
  )
  return _build_case(layer_inputs)


def _build_case(layer_inputs: inputs.LayerInputs) -> Case:
  policy = layer_inputs.policy
  oracle = oracle_lib.Oracle(layer_inputs.config, policy, layer_inputs.arrays)
  forward = {**layer_inputs.arrays, **oracle.forward()}
  dy = stable_random.normal(stable_random.seed_of('dy'), forward['x'].shape)
  dy = dy.astype(forward['x'].dtype)
  grads = oracle.backward(forward, dy)
  names = ('counts', 'row_of_slot', 'topk_ids')
  tiling = tiles.Tiling(
    layer_inputs.config, *(forward[n] for n in names), 4, 5, 3
  )
  read_tensors = {
    name: forward[name]
    for name in layer_grad.reads(layer_inputs.config, policy)
  }
  forward_tensors = {**layer_inputs.arrays, **read_tensors, 'dy': dy}
  return Case(
    tiling,
    policy,
    forward_tensors,
    {name: a.copy() for name, a in grads.items()},
  )


def _in_float64(case, **changes):
  """Returns the oracle's gradients of the same stored tensors in float64."""
  weights = case.forward_tensors['topk_weights'].astype(np.float64)
  names = layer_grad.reads(case.tiling.config, case.policy)
  read = {name: case.forward_tensors[name] for name in names}
  read.update(topk_weights=weights, **changes)
  grads = jax.jit(layer_grad.backward, static_argnums=(0, 1))(
    case.tiling.config, case.policy.golden(), read, case.forward_tensors['dy']
  )
  return {name: np.asarray(a) for name, a in grads.items()}


def _agree(case, golden, expected, names):
  for name in names:
    for rank in range(case.tiling.config.num_ranks):
      right = case.tiling.rows(name, expected[name], rank)
      actual = golden.rows(name, rank, 0, len(right))
      size = np.abs(right).max()
      np.testing.assert_allclose(
        actual.value, right, rtol=1e-12, atol=1e-13 * size
      )
      # The bound holds the golden's own rounding with much room.
      assert (np.abs(actual.value - right) <= actual.bound() / 1000).all()


@pytest.mark.few(1)
def test_fused_golden_is_the_oracles_in_float64(case):
  expected = _in_float64(case)

  names = [name for name in tensors.GRADS if name != 'd_returned']
  _agree(case, case.golden({}), expected, names)


@pytest.mark.parametrize('placement', tensors.EARLY)
@pytest.mark.slow
def test_products_of_a_bias_are_rounded_where_others_are(placement):
  layer = case_lib.Case(
    preset='tiny',
    ranks=2,
    placement=placement,
    bias=True,
    policy=('d_weighted=bfloat16',),
  )
  case = _build_case(layer.make())

  grads = case.grads['d_topk_weights']

  assert case.excess('d_topk_weights', grads, case.grads) <= 1


def test_golden_of_a_captured_stage_starts_there(case):
  # Given a candidate that returned d_expert_in and d_gate_up alone,
  captured_tensors = {n: case.grads[n] for n in ('d_expert_in', 'd_gate_up')}
  golden = case.golden(captured_tensors)

  # when what follows them is computed, then it follows from what it returned;
  for rank in range(2):
    part = case.tiling.rows('dx', case.grads['dx'], rank)
    home = case.golden({'d_returned': case.grads['d_returned']})
    from_captured, other = (
      g.rows('dx', rank, 0, len(part)) for g in (golden, home)
    )
    np.testing.assert_allclose(
      from_captured.value, other.value, rtol=1e-12, atol=1e-12
    )
    np.testing.assert_allclose(
      from_captured.error, other.error, rtol=1e-12, atol=1e-30
    )
    returned_rows = golden.rows('d_returned', rank, 0, 26)
    right = case.tiling.rows('d_returned', case.grads['d_returned'], rank)
    np.testing.assert_array_equal(returned_rows.value, right.astype(np.float64))
  assert (
    case.excess('d_expert_in', case.grads['d_expert_in'], captured_tensors) <= 1
  )
  # and what comes before them from dy, as if nothing had been returned.
  before = ('d_expert_out', 'd_activation', 'd_w_down', 'd_topk_weights')
  _agree(case, golden, _in_float64(case), before)


@pytest.mark.few(1)
def test_what_a_candidate_saved_itself_may_be_as_far_off_as_it_may(case):
  # Given a candidate whose forward pass is right, but off by all that it may,
  stages = [n for n in case.forward_tensors if n in tensors.STAGES]
  hidden = dataclasses.replace(
    case,
    forward_tensors={
      n: a for n, a in case.forward_tensors.items() if n not in stages
    },
  )
  forward = golden.Golden(case.tiling, case.policy, hidden.forward_tensors, {})
  own = {name: case.forward_tensors[name].astype(np.float64) for name in stages}
  for name, rank in itertools.product(stages, range(2)):
    rows = case.tiling.rows(name, own[name], rank)
    bounded = forward.rows(name, rank, 0, len(rows))
    sign = np.where(np.arange(rows.size).reshape(rows.shape) % 3, 1, -1)
    rows[:] = bounded.value + sign * bounded.bound()

  # when gradients are computed from what it saved, then they are right,
  grads = _in_float64(case, **own)
  far = []
  for name in (n for n in tensors.GRADS if n != 'd_returned'):
    assert hidden.excess(name, grads[name], {}) <= 1, name
    far.append(case.excess(name, grads[name], {}) > 1)
  # which from what the oracle saved not all of them would be,
  assert any(far)
  # and a thousandth too much is not.
  name = 'd_w_down'
  assert hidden.excess(name, grads[name] * (1 + 2.0**-3), {}) > 1


def test_rows_do_not_depend_on_how_they_are_cut(case):
  for name in tensors.GRADS:
    captured_tensors = {} if name != 'd_returned' else case.grads
    golden = case.golden(captured_tensors, chunk=64)
    whole = case.golden(captured_tensors)
    cut = case.tiling.cut(name, 1)
    expected = whole.rows(name, 1, 0, cut.num_rows)
    for first, last in cut.chunks(100):
      lo, hi = int(cut.starts[first]), int(cut.starts[last])
      part = golden.rows(name, 1, lo, hi)
      # Sums of magnitudes are float32, rounded up by what they may lose.
      for actual, right, rtol in (
        (part.value, expected.value[lo:hi], 1e-9),
        (part.bound(), expected.bound()[lo:hi], 1e-3),
      ):
        np.testing.assert_allclose(actual, right, rtol=rtol, atol=1e-30)


def test_unknown_is_refused(case):
  with pytest.raises(ValueError, match="expected a gradient, got 'y'"):
    case.golden({}).rows('y', 0, 0, 1)
