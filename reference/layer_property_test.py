"""The layer against a dumb serial loop over tokens and experts, in numpy.

Forward and backward.  The loop shares nothing with the oracle: it appends rows
to per-expert lists and multiplies one row at a time, in float64.  Each stage is
judged alone, from the oracle's own stored input to that stage, by a bound
counted from the operations; small integers are judged end to end, bit for bit.
"""

from collections.abc import Mapping
import itertools
import math

import jax
import ml_dtypes
import numpy as np
import pytest

from hpmoe.reference import layer
from hpmoe.reference import layer_grad
from hpmoe.reference import test_util
from hpmoe.reference.contract import checks
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import halved_testing
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors

SHAPES = {
  'plain': config_testing.make_config(r=2, t=5, e=4, k=2, d=6, f=3),
  'empty experts': config_testing.make_config(r=2, t=2, e=8, k=1, d=3, f=2),
  'one row': config_testing.make_config(r=1, t=1, e=1, k=1, d=1, f=1),
  'one rank gets all': config_testing.make_config(r=4, t=3, e=8, k=2, d=3, f=2),
  'K = E': config_testing.make_config(r=2, t=3, e=4, k=4, d=5, f=2),
  'R = 1': config_testing.make_config(r=1, t=4, e=5, k=3, d=4, f=3),
  'R = E': config_testing.make_config(r=3, t=3, e=3, k=2, d=2, f=4),
}
# High skew sends every token to the first K experts.
SKEWS = (0.0, 0.1, 0.5, 9.0)
# Share of slots that no expert serves.
UNUSED = (0.0, 0.3, 1.0)
POLICIES = tuple(
  precision.PrecisionPolicy(
    storage,
    'float64' if storage == 'float64' else 'float32',
    placement,
    activation,
  )
  for storage in ('float64', 'float32', 'bfloat16')
  for placement in (*precision.LAUNCHED_PLACEMENTS, 'input')
  for activation in precision.LAUNCHED_ACTIVATIONS
)
# Half of them hold every pair of storage, placement and activation; `make
# sweep` runs the others.
_PAIRWISE = (0, 3, 4, 7, 9, 10, 13, 14, 16, 19, 20, 23)
EVERY_POLICY = [
  pytest.param(policy, marks=() if i in _PAIRWISE else pytest.mark.slow)
  for i, policy in enumerate(POLICIES)
]
# For all shapes: every pair of shape and policy costs a compilation.
SOME_POLICIES = (
  precision.PrecisionPolicy('float32', activation='absolute'),
  precision.PrecisionPolicy('bfloat16', placement='before_down'),
)
# A library's exp is taken to be off by at most two units in the last place.
EXP_ROUNDINGS = 4
# Unit roundoff of each dtype.
UNIT = {'float64': 2.0**-53, 'float32': 2.0**-24, 'bfloat16': 2.0**-8}

GRAD_SPECS = {spec.name: spec for spec in tensors.BACKWARD}
DTYPES = dict(
  float64=np.float64, float32=np.float32, bfloat16=ml_dtypes.bfloat16
)


def run_passes(config, policy, inputs, dy):
  """Returns every tensor of a forward and a backward pass, and the inputs."""
  forward = inputs | layer.forward(config, policy, **inputs)
  grads = layer_grad.backward(config, policy, forward, dy)
  return forward | {'dy': dy} | grads


run = jax.jit(run_passes, static_argnums=(0, 1))


class Loop:
  """Token order, by appending (source rank, token, slot) to lists."""

  def __init__(self, config: config_lib.MoEConfig, ids: np.ndarray):
    self.lists = [[] for _ in range(config.num_experts)]
    for rank in range(config.num_ranks):
      for token in range(config.num_tokens):
        for slot in range(config.top_k):
          expert = ids[rank, token, slot]
          if expert >= 0:
            self.lists[expert].append((rank, token, slot))
    self.rows = []  # (owner, row, local expert, (rank, token, slot))
    per_rank = config.num_experts // config.num_ranks
    rows_of_owner = [0] * config.num_ranks
    for expert, sources in enumerate(self.lists):
      owner, local = expert // per_rank, expert % per_rank
      for source in sources:
        self.rows.append((owner, rows_of_owner[owner], local, source))
        rows_of_owner[owner] += 1


def plan_of(config: config_lib.MoEConfig, loop: Loop) -> dict[str, np.ndarray]:
  counts = np.zeros((config.num_ranks, config.num_experts), np.int32)
  # A rank that sends nothing to an expert stands where its rows would.
  row_base = np.zeros_like(counts)
  slots = config.num_ranks, config.num_tokens, config.top_k
  row_of_slot = np.full(slots, -1, np.int32)
  for _, row, _, source in loop.rows:
    row_of_slot[source] = row
  per_rank = config.num_experts // config.num_ranks
  for expert, sources in enumerate(loop.lists):
    before = loop.lists[expert // per_rank * per_rank : expert]
    for rank in range(config.num_ranks):
      counts[rank, expert] = sum(s[0] == rank for s in sources)
      row_base[rank, expert] = sum(map(len, before)) + sum(
        s[0] < rank for s in sources
      )
  return dict(counts=counts, row_base=row_base, row_of_slot=row_of_slot)


def move_rows(
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  loop: Loop,
  arrays: Mapping[str, np.ndarray],
) -> dict[str, np.ndarray]:
  """Returns the movement stages of `given` x and expert_out, bit for bit."""
  dims = config.dims()
  out = {
    name: np.zeros(tensors.SPECS[name].dims(**dims), arrays['x'].dtype)
    for name in ('expert_in', 'returned')
  }
  for owner, row, _, source in loop.rows:
    out['expert_in'][owner, row] = arrays['x'][source[:2]]
    out['returned'][source] = arrays['expert_out'][owner, row]
  return {name: out[name] for name in out if is_copy(policy, name)}


def is_copy(policy: precision.PrecisionPolicy, name: str) -> bool:
  return tensors.role(name, policy.placement) == 'movement'


def computed(
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  loop: Loop,
  arrays: Mapping[str, np.ndarray],
) -> dict[str, tuple[np.ndarray, np.ndarray, int]]:
  """Returns (value, sum of |terms|, roundings) of each computed stage.

  Float64, from the stage's input in `given`; `roundings` counts those that a
  term of the sum goes through in the accumulation dtype.
  """
  dims, place = config.dims(), policy.placement
  inner, after = place == 'before_down', place == 'epilogue'
  names = ('expert_in', 'gate_up', 'activation', 'expert_out', 'y')
  names = names[is_copy(policy, 'expert_in') :]
  zeros = {n: np.zeros(tensors.SPECS[n].dims(**dims)) for n in names}
  value, size = zeros, {name: a.copy() for name, a in zeros.items()}
  read = {name: np.asarray(a, np.float64) for name, a in arrays.items()}
  for owner, row, local, source in loop.rows:
    weight = read['topk_weights'][source]
    row_index, home = (owner, row), source[:2]
    if place == 'input':
      value['expert_in'][row_index] = weight * read['x'][home]
      size['expert_in'][row_index] = abs(weight * read['x'][home])
    for stage, a, w in (
      ('gate_up', 'expert_in', 'w_gate_up'),
      ('expert_out', 'activation', 'w_down'),
    ):
      value[stage][row_index] = read[a][row_index] @ read[w][owner, local]
      size[stage][row_index] = abs(read[a][row_index]) @ abs(
        read[w][owner, local]
      )
    value['expert_out'][row_index] *= weight if after else 1
    size['expert_out'][row_index] *= abs(weight) if after else 1
    gate = read['gate_up'][row_index][: config.d_ff]
    up = read['gate_up'][row_index][config.d_ff :]
    if policy.activation == 'swiglu':
      gate = gate / (1 + np.exp(-gate))
    else:
      gate = abs(gate)
    value['activation'][row_index] = gate * up * (weight if inner else 1)
    size['activation'][row_index] = abs(value['activation'][row_index])
    value_of_slot = read['returned'][source] * (
      weight if place == 'combine' else 1
    )
    value['y'][home] += value_of_slot
    size['y'][home] += abs(value_of_slot)
  exp = EXP_ROUNDINGS + 2 if policy.activation == 'swiglu' else 0
  roundings = dict(
    expert_in=1,
    gate_up=config.d_model,
    activation=exp + 1 + inner,
    expert_out=config.d_ff + after,
    y=config.top_k,
  )
  return {name: (value[name], size[name], roundings[name]) for name in names}


def bound_of(
  policy: precision.PrecisionPolicy, value, size, roundings: int
) -> np.ndarray:
  """Returns how far a stored stage may be from the loop's, both rounding."""
  accumulated = UNIT[policy.accumulate] + UNIT['float64']
  error = roundings * accumulated / (1 - roundings * accumulated) * size
  storage_unit = (
    0 if policy.storage == policy.accumulate else UNIT[policy.storage]
  )
  return error + storage_unit * (abs(value) + error)


def serial_layer(
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  loop: Loop,
  inputs: Mapping[str, np.ndarray],
) -> dict[str, np.ndarray]:
  """Returns the layer end to end: each stage fed the loop's own stages."""
  arrays = dict(inputs)
  dtype = inputs['x'].dtype
  for spec in tensors.FORWARD:
    if spec.name in tensors.STAGES:
      arrays[spec.name] = np.zeros(spec.dims(**config.dims()), dtype)
  for name in tensors.STAGES:
    if is_copy(policy, name):
      arrays[name] = move_rows(config, policy, loop, arrays)[name]
    else:
      arrays[name] = computed(config, policy, loop, arrays)[name][0].astype(
        dtype
      )
  return {name: arrays[name] for name in tensors.STAGES}


def assert_same_bits(actual: Mapping, expected: Mapping) -> None:
  for name, array in expected.items():
    assert actual[name].dtype == array.dtype, name
    np.testing.assert_array_equal(actual[name], array, err_msg=name)


def check_forward_stages(config, policy, loop, out) -> None:
  assert_same_bits(out, plan_of(config, loop))
  assert_same_bits(out, move_rows(config, policy, loop, out))
  for name, parts in computed(config, policy, loop, out).items():
    error = abs(np.asarray(out[name], np.float64) - parts[0])
    assert (error <= bound_of(policy, *parts)).all(), (name, error.max())


def check_forward_integers(config, policy, loop, out) -> None:
  assert_same_bits(out, plan_of(config, loop))
  assert_same_bits(out, serial_layer(config, policy, loop, out))


def sigmoid(a: np.ndarray) -> np.ndarray:
  return 1 / (1 + np.exp(-a))


class Terms:
  """Sums of terms and of their absolute values, side by side."""

  def __init__(self, config: config_lib.MoEConfig):
    dims = config.dims()
    self.value = {n: np.zeros(s.dims(**dims)) for n, s in GRAD_SPECS.items()}
    self.size = {n: a.copy() for n, a in self.value.items()}

  def add(self, name: str, place, value, size=None) -> None:
    self.value[name][place] += value
    self.size[name][place] += abs(value) if size is None else size


def row_stages(policy, read, terms, row) -> None:
  """Adds what one routed row contributes to every stage."""
  owner, n, local, source = row
  row_index, home, expert = (owner, n), source[:2], (owner, local)
  early = policy.placement in tensors.EARLY
  at_input = policy.placement == 'input'
  weight, width = read['topk_weights'][source], read['activation'].shape[-1]
  unweighted = early or at_input
  terms.add(
    'd_expert_out', row_index, read['dy'][home] * (1 if unweighted else weight)
  )
  for rows, d_out, w, d_rows, d_w in (
    ('activation', 'd_expert_out', 'w_down', 'd_activation', 'd_w_down'),
    ('expert_in', 'd_gate_up', 'w_gate_up', 'd_expert_in', 'd_w_gate_up'),
  ):
    d, a, m = read[d_out][row_index], read[rows][row_index], read[w][expert]
    terms.add(d_rows, row_index, m @ d, abs(m) @ abs(d))
    if policy.placement == 'epilogue' and d_w == 'd_w_down':
      d = as_operand(policy, weight, d)
    terms.add(d_w, expert, np.outer(a, d))
  gate, up = (
    read['gate_up'][row_index][:width],
    read['gate_up'][row_index][width:],
  )
  act, slope, slope_size = abs(gate), np.sign(gate), 1.0
  if policy.activation == 'swiglu':
    act = gate * sigmoid(gate)
    slope = sigmoid(gate) + act * sigmoid(-gate)
    slope_size = sigmoid(gate) + abs(act) * sigmoid(-gate)
  d = read['d_activation'][row_index] * (weight if early else 1)
  terms.add(
    'd_gate_up',
    row_index,
    np.concatenate([d * up * slope, d * act]),
    np.concatenate([abs(d * up) * slope_size, abs(d * act)]),
  )
  a, b = read['dy'][home], read['returned'][source]
  if early:
    a, b = read['d_activation'][row_index], read['activation'][row_index]
  if policy.placement == 'before_down':
    b = act * up
  if at_input:
    a, b = read['x'][home], read['d_returned'][source]
  terms.add('d_topk_weights', source, a @ b, abs(a) @ abs(b))
  terms.add('d_returned', source, read['d_expert_in'][row_index])
  terms.add(
    'dx', home, read['d_returned'][source] * (weight if at_input else 1)
  )


def as_operand(policy, weight: np.ndarray, d: np.ndarray) -> np.ndarray:
  """Returns rows times their weight, rounded once more to storage."""
  wide = DTYPES[policy.accumulate]
  weighted = wide(weight) * d.astype(wide)
  return stored_as(policy, 'd_expert_out', weighted).astype(np.float64)


def roundings_of(config, policy) -> dict[str, int]:
  """Returns how often a term of each stage is rounded in the accumulation."""
  early, at_input = (
    policy.placement in tensors.EARLY,
    policy.placement == 'input',
  )
  inner = policy.placement == 'before_down'
  exp = EXP_ROUNDINGS + 2 if policy.activation == 'swiglu' else 0
  length = config.d_ff if early else config.d_model
  # An expert's rows, and a sum with each of their blocks.
  rows = config.num_ranks * config.num_tokens
  return dict(
    d_expert_out=0 if early or at_input else 1,
    d_topk_weights=1 + math.ceil(math.log2(length)) + inner * (exp + 1),
    d_activation=config.d_model,
    d_w_down=rows + 1,
    d_gate_up=early + 2 + (2 * exp + 3 if exp else 0),
    d_expert_in=2 * config.d_ff,
    d_w_gate_up=rows + 1,
    d_returned=0,
    dx=config.top_k - 1 + at_input,
  )


def bounds_of(config, policy, terms) -> dict[str, np.ndarray]:
  """Returns how far each stored stage may be from the loop's."""
  bounds = {}
  for name, count in roundings_of(config, policy).items():
    unit = UNIT[policy.accumulate] + UNIT['float64']
    error = count * unit / (1 - count * unit) * terms.size[name]
    dtype = 'float32' if GRAD_SPECS[name].kind == 'f32' else policy.storage
    is_copy = GRAD_SPECS[name].role == 'movement' or not count
    rounds = dtype != policy.accumulate and not is_copy
    last = UNIT[dtype] * (abs(terms.value[name]) + error)
    bounds[name] = error + rounds * last
  return bounds


def stored_as(policy, name: str, a: np.ndarray) -> np.ndarray:
  kind = GRAD_SPECS[name].kind
  return a.astype(DTYPES['float32' if kind == 'f32' else policy.storage])


def outcome_of(name, policy, seed, skew, integer, unused):
  """Returns the oracle's tensors, forward and back, and the loop's order."""
  config = SHAPES[name]
  rng = np.random.default_rng(seed)
  with test_util.x64(policy.storage == 'float64'):
    inputs = test_util.random_inputs(config, policy, rng, skew, integer, unused)
    checks.check_inputs(config, policy, inputs)
    dims = inputs['x'].shape
    dy = rng.integers(-3, 4, dims) if integer else rng.normal(size=dims)
    out = jax.device_get(run(config, policy, inputs, dy.astype(policy.storage)))
  return config, out, Loop(config, out['topk_ids'])


def check_stages(name, policy, seed, skew, unused=0.0) -> None:
  config, out, loop = outcome_of(name, policy, seed, skew, False, unused)
  check_forward_stages(config, policy, loop, out)
  read = {name: np.asarray(a, np.float64) for name, a in out.items()}
  terms = Terms(config)
  for row in loop.rows:
    row_stages(policy, read, terms, row)
  bounds = bounds_of(config, policy, terms)
  for stage in tensors.GRADS:
    error = abs(read[stage] - terms.value[stage])
    assert (error <= bounds[stage]).all(), (stage, error.max())


def check_integers(name, policy, seed, skew, unused=0.0) -> None:
  """End to end: each stage of the loop is fed the loop's own, rounded."""
  config, out, loop = outcome_of(name, policy, seed, skew, True, unused)
  check_forward_integers(config, policy, loop, out)
  read = {n: np.asarray(a, np.float64) for n, a in out.items()}
  read |= {stage: np.zeros_like(read[stage]) for stage in tensors.GRADS}
  for stage in tensors.GRADS:
    terms = Terms(config)
    for row in loop.rows:
      row_stages(policy, read, terms, row)
    # Every partial sum is a float32, in whatever order it is made.
    assert terms.size[stage].max(initial=0) < 2**24
    expected = stored_as(policy, stage, terms.value[stage])
    assert_same_bits(out, {stage: expected})
    read[stage] = np.asarray(expected, np.float64)


def check(name, policy, *options) -> None:
  check_stages(name, policy, *options)
  if policy.activation == 'absolute':
    check_integers(name, policy, *options)


def policy_id(policy: precision.PrecisionPolicy) -> str:
  return f'{policy.storage}-{policy.placement}-{policy.activation}'


@pytest.mark.parametrize('policy', EVERY_POLICY, ids=policy_id)
@pytest.mark.few(2)
def test_every_policy(policy):
  for seed in range(3):
    check('plain', policy, seed, 0.2)


@pytest.mark.parametrize(
  'name, policy', halved_testing.halved(sorted(SHAPES), SOME_POLICIES)
)
@pytest.mark.few(2)
def test_every_shape(name, policy):
  for seed, (skew, unused) in enumerate(itertools.product(SKEWS, UNUSED)):
    check(name, policy, seed, skew, unused)
