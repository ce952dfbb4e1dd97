"""The backward pass against a dumb serial loop over tokens and experts.

As `layer_property_test`, whose token order it takes: numpy, one row at a time,
in float64.  Each stage is judged alone, from the oracle's own stored input to
that stage, by a bound counted from the operations; small integers are judged
end to end, bit for bit.
"""

import math

import hypothesis
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from hpmoe.reference import layer
from hpmoe.reference import layer_grad
from hpmoe.reference import layer_property_test as serial
from hpmoe.reference import test_util
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import tensors

SPECS = {spec.name: spec for spec in tensors.BACKWARD}
STAGES = tensors.GRADS
DTYPES = dict(
  float64=np.float64, float32=np.float32, bfloat16=ml_dtypes.bfloat16
)


def both(config, policy, inputs, dy):
  """Returns every tensor of a forward and a backward pass, and the inputs."""
  forward = inputs | layer.forward(config, policy, **inputs)
  grads = layer_grad.backward(config, policy, forward, dy)
  return forward | {'dy': dy} | grads


run = jax.jit(both, static_argnums=(0, 1))


def sigmoid(a: np.ndarray) -> np.ndarray:
  return 1 / (1 + np.exp(-a))


class Terms:
  """Sums of terms and of their absolute values, side by side."""

  def __init__(self, config: config_lib.MoEConfig):
    dims = config.dims()
    self.value = {n: np.zeros(s.dims(**dims)) for n, s in SPECS.items()}
    self.size = {n: a.copy() for n, a in self.value.items()}

  def add(self, name: str, place, value, size=None) -> None:
    self.value[name][place] += value
    self.size[name][place] += abs(value) if size is None else size


def row_stages(policy, read, terms, row) -> None:
  """Adds what one routed row contributes to every stage."""
  owner, n, local, source = row
  here, home, expert = (owner, n), source[:2], (owner, local)
  early = policy.placement in tensors.EARLY
  weight, width = read['topk_weights'][source], read['activation'].shape[-1]
  terms.add('d_expert_out', here, read['dy'][home] * (1 if early else weight))
  for rows, d_out, w, d_rows, d_w in (
    ('activation', 'd_expert_out', 'w_down', 'd_activation', 'd_w_down'),
    ('expert_in', 'd_gate_up', 'w_gate_up', 'd_expert_in', 'd_w_gate_up'),
  ):
    d, a, m = read[d_out][here], read[rows][here], read[w][expert]
    terms.add(d_rows, here, m @ d, abs(m) @ abs(d))
    if policy.placement == 'epilogue' and d_w == 'd_w_down':
      d = as_operand(policy, weight, d)
    terms.add(d_w, expert, np.outer(a, d))
  gate, up = read['gate_up'][here][:width], read['gate_up'][here][width:]
  act, slope, slope_size = abs(gate), np.sign(gate), 1.0
  if policy.activation == 'swiglu':
    act = gate * sigmoid(gate)
    slope = sigmoid(gate) + act * sigmoid(-gate)
    slope_size = sigmoid(gate) + abs(act) * sigmoid(-gate)
  d = read['d_activation'][here] * (weight if early else 1)
  terms.add(
    'd_gate_up',
    here,
    np.concatenate([d * up * slope, d * act]),
    np.concatenate([abs(d * up) * slope_size, abs(d * act)]),
  )
  a, b = read['dy'][home], read['returned'][source]
  if early:
    a, b = read['d_activation'][here], read['activation'][here]
  if policy.placement == 'before_down':
    b = act * up
  terms.add('d_topk_weights', source, a @ b, abs(a) @ abs(b))
  terms.add('d_returned', source, read['d_expert_in'][here])
  terms.add('dx', home, read['d_returned'][source])


def as_operand(policy, weight: np.ndarray, d: np.ndarray) -> np.ndarray:
  """Returns rows times their weight, rounded once more to storage."""
  wide = DTYPES[policy.accumulate]
  weighted = wide(weight) * d.astype(wide)
  return stored_as(policy, 'd_expert_out', weighted).astype(np.float64)


def roundings_of(config, policy) -> dict[str, int]:
  """Returns how often a term of each stage is rounded in the accumulation."""
  early = policy.placement in tensors.EARLY
  inner = policy.placement == 'before_down'
  exp = serial.EXP_ROUNDINGS + 2 if policy.activation == 'swiglu' else 0
  length = config.d_ff if early else config.d_model
  # An expert's rows, and a sum with each of their blocks.
  rows = config.num_ranks * config.num_tokens
  return dict(
    d_expert_out=0 if early else 1,
    d_topk_weights=1 + math.ceil(math.log2(length)) + inner * (exp + 1),
    d_activation=config.d_model,
    d_w_down=rows + 1,
    d_gate_up=early + 2 + (2 * exp + 3 if exp else 0),
    d_expert_in=2 * config.d_ff,
    d_w_gate_up=rows + 1,
    d_returned=0,
    dx=config.top_k - 1,
  )


def bounds_of(config, policy, terms) -> dict[str, np.ndarray]:
  """Returns how far each stored stage may be from the loop's."""
  bounds = {}
  for name, count in roundings_of(config, policy).items():
    unit = serial.UNIT[policy.accumulate] + serial.UNIT['float64']
    error = count * unit / (1 - count * unit) * terms.size[name]
    stored = 'float32' if SPECS[name].kind == 'f32' else policy.storage
    copied = SPECS[name].role == 'movement' or not count
    rounds = stored != policy.accumulate and not copied
    last = serial.UNIT[stored] * (abs(terms.value[name]) + error)
    bounds[name] = error + rounds * last
  return bounds


def stored_as(policy, name: str, a: np.ndarray) -> np.ndarray:
  kind = SPECS[name].kind
  return a.astype(DTYPES['float32' if kind == 'f32' else policy.storage])


def outcome_of(name, policy, seed, integer, unused):
  """Returns the oracle's tensors, forward and back, and the loop's rows."""
  config, skew = serial.SHAPES[name], serial.SKEW.get(name, 0.1)
  rng = np.random.default_rng(seed)
  with test_util.x64(policy.storage == 'float64'):
    inputs = test_util.random_inputs(config, policy, rng, skew, integer, unused)
    dims = inputs['x'].shape
    dy = rng.integers(-3, 4, dims) if integer else rng.normal(size=dims)
    out = run(config, policy, inputs, jnp.asarray(dy, policy.storage))
  out = {name: np.asarray(a) for name, a in out.items()}
  return config, out, serial.Loop(config, out['topk_ids']).rows


def check_stages(name, policy, seed, unused=0.0) -> None:
  config, out, rows = outcome_of(name, policy, seed, False, unused)
  read = {name: np.asarray(a, np.float64) for name, a in out.items()}
  terms = Terms(config)
  for row in rows:
    row_stages(policy, read, terms, row)
  bounds = bounds_of(config, policy, terms)
  for stage in STAGES:
    error = abs(read[stage] - terms.value[stage])
    assert (error <= bounds[stage]).all(), (stage, error.max())


def check_integers(name, policy, seed, unused=0.0) -> None:
  """End to end: each stage of the loop is fed the loop's own, rounded."""
  config, out, rows = outcome_of(name, policy, seed, True, unused)
  read = {n: np.asarray(a, np.float64) for n, a in out.items()}
  read |= {stage: np.zeros_like(read[stage]) for stage in STAGES}
  for stage in STAGES:
    terms = Terms(config)
    for row in rows:
      row_stages(policy, read, terms, row)
    # Every partial sum is a float32, in whatever order it is made.
    assert terms.size[stage].max(initial=0) < 2**24
    expected = stored_as(policy, stage, terms.value[stage])
    assert out[stage].dtype == expected.dtype, stage
    np.testing.assert_array_equal(out[stage], expected, err_msg=stage)
    read[stage] = np.asarray(expected, np.float64)


@pytest.mark.parametrize('policy', serial.EVERY_POLICY, ids=serial.named)
def test_every_policy(policy):
  for seed in range(3):
    check_stages('plain', policy, seed)
    if policy.activation == 'absolute':
      check_integers('plain', policy, seed)


@pytest.mark.parametrize('policy', serial.SOME_POLICIES, ids=serial.named)
@pytest.mark.parametrize('name', sorted(serial.SHAPES))
def test_every_shape(name, policy):
  check_stages(name, policy, 7)
  if policy.activation == 'absolute':
    check_integers(name, policy, 7)


@hypothesis.settings(deadline=None, max_examples=60, derandomize=True)
@hypothesis.given(
  name=st.sampled_from(sorted(serial.SHAPES)),
  policy=st.sampled_from(serial.SOME_POLICIES),
  seed=st.integers(0, 2**32 - 1),
  unused=serial.UNUSED,
)
def test_any_seed(name, policy, seed, unused):
  check_stages(name, policy, seed, unused)
  if policy.activation == 'absolute':
    check_integers(name, policy, seed, unused)
