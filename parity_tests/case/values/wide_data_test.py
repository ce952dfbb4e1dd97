"""Wide exact data: exact in any order, and a narrowed operand changes it."""

import ml_dtypes
import numpy as np
import pytest

from hpmoe.parity_tests.case import routings
from hpmoe.parity_tests.case.values import exact_data
from hpmoe.parity_tests.case.values import exact_limits
from hpmoe.parity_tests.case.values import exact_proof
from hpmoe.parity_tests.case.values import wide_data
from hpmoe.parity_tests.judge import oracle as oracle_lib
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import presets
from hpmoe.reference.contract.precision import PrecisionPolicy

# As in exact_data_test: compiled once.
_ROOMY = presets.config(presets.get('tiny'), 2, 13, 56)
_POLICIES = [
  PrecisionPolicy('float32', activation='absolute'),
  PrecisionPolicy('float32', 'float32', 'before_down', 'absolute'),
  PrecisionPolicy('bfloat16', activation='absolute'),
  PrecisionPolicy('float16', activation='absolute'),
  PrecisionPolicy('float32', 'float32', 'input', 'absolute'),
  PrecisionPolicy('bfloat16', 'float32', 'input', 'absolute'),
]


def _policies(slow=()):
  """Parametrises over all; some of which `make sweep` alone runs."""
  params = [
    pytest.param(
      policy,
      marks=pytest.mark.slow if number in slow else (),
      id=f'{policy.storage}-{policy.placement}',
    )
    for number, policy in enumerate(_POLICIES)
  ]
  return pytest.mark.parametrize('policy', params)


# The two operands of every GEMM.
_FORWARD = {
  'gate_up': ('expert_in', 'w_gate_up'),
  'expert_out': ('activation', 'w_down'),
}
_BACKWARD = {
  'd_activation': ('d_expert_out', 'w_down'),
  'd_w_down': ('activation', 'd_expert_out'),
  'd_expert_in': ('d_gate_up', 'w_gate_up'),
  'd_w_gate_up': ('expert_in', 'd_gate_up'),
}


def _tf32(a):
  bits = a.view(np.uint32) + np.uint32(1 << 12)
  return (bits & np.uint32(0xFFFFE000)).view(np.float32)


def _through(dtype):
  return lambda a: a.astype(dtype).astype(a.dtype)


_NARROWED = {
  'float32': (_tf32, _through(ml_dtypes.bfloat16)),
  'bfloat16': (_through(ml_dtypes.float8_e4m3fn),),
  'float16': (_through(ml_dtypes.bfloat16),),
}


def _make(policy, config=_ROOMY, routing='zipf'):
  ids = routings.make(routing, config).topk_ids
  return wide_data.make(config, policy, ids)


def _layer(policy, arrays):
  """Returns every tensor of both passes by the oracle."""
  oracle = oracle_lib.Oracle(_ROOMY, policy, arrays)
  forward = arrays | oracle.forward()
  return forward | oracle.backward(forward, arrays['dy'])


def _stage(policy, name, tensors):
  oracle = oracle_lib.Oracle(_ROOMY, policy, tensors)
  return oracle.stage(name, tensors)


# Each dtype and each placement once: an oracle is compiled stage by stage.
@_policies(slow=[0])
@pytest.mark.few(1)
def test_an_operand_of_fewer_bits_changes_its_gemm(policy):
  arrays, _ = _make(policy)
  right = _layer(policy, arrays)
  for name, operands in {**_FORWARD, **_BACKWARD}.items():
    np.testing.assert_array_equal(_stage(policy, name, right), right[name])
    for operand in operands:
      for narrow in _NARROWED[policy.storage]:
        cut = right | {operand: narrow(right[operand])}
        differ = _stage(policy, name, cut) != right[name]
        assert differ.any(), (name, operand, narrow)


@_policies()
@pytest.mark.few(1)
def test_y_and_dx_alone_show_narrowed_inputs(policy):
  arrays, _ = _make(policy)
  right = _layer(policy, arrays)
  for name in ('x', 'w_gate_up', 'w_down'):
    narrow = _NARROWED[policy.storage][0]
    cut = _layer(policy, arrays | {name: narrow(arrays[name])})
    assert (cut['y'] != right['y']).any(), name
  cut = _layer(policy, arrays | {'dy': narrow(arrays['dy'])})
  assert (cut['dx'] != right['dx']).any()
  weights = _through(ml_dtypes.bfloat16)(arrays['topk_weights'])
  cut = _layer(policy, arrays | {'topk_weights': weights})
  # Wide weights of the input leave no room for the product of gate and up.
  is_seen = policy.storage == 'float32' and policy.placement != 'input'
  assert (cut['y'] != right['y']).any() or not is_seen


def test_what_is_proved_does_not_overflow_in_float16():
  policy = PrecisionPolicy('float16', activation='absolute')
  ids = routings.make('zipf', _ROOMY).topk_ids
  arrays, _ = exact_data.make(_ROOMY, policy, ids, backward=True)
  # Given the largest dy of which the proof is right,
  larger = arrays
  with pytest.raises(exact_limits.OverflowsError, match='float16'):
    while exact_proof.prove(_ROOMY, policy, larger):
      arrays, larger = larger, larger | {'dy': larger['dy'] * 2}
  # when the layer is computed, then no tensor overflows.
  for name, value in _layer(policy, arrays).items():
    assert np.isfinite(value.astype(np.float32)).all(), name


@pytest.mark.parametrize('data', [exact_data, wide_data], ids=['exact', 'wide'])
def test_a_tensor_of_a_smaller_range_stays_finite(data):
  # given: one tensor of a float32 layer in float16
  points = ('d_activation=float16',)
  policy = PrecisionPolicy('float32', activation='absolute', points=points)
  ids = routings.make('zipf', _ROOMY).topk_ids
  # when
  arrays, _ = data.make(_ROOMY, policy, ids, backward=True)
  # then
  for name, value in _layer(policy, arrays).items():
    assert np.isfinite(value.astype(np.float32)).all(), name


@_policies(slow=[4, 5])
def test_every_sum_has_one_term(policy):
  # Then any order of it gives the same bits.
  arrays, proof = _make(policy)
  assert all(0 < bound < exact_limits.LIMIT for bound in proof.values())
  right = _layer(policy, arrays)
  for name, (left_name, right_name) in _FORWARD.items():
    terms = (right[left_name][0] != 0).astype(int) @ (
      right[right_name][0, 0] != 0
    )
    assert terms.max() == 1, name
  for name in ('y', 'dx'):
    slots = right['returned' if name == 'y' else 'd_returned'] != 0
    is_used = slots & (arrays['topk_weights'] != 0)[..., None]
    assert is_used.sum(axis=2).max() == 1


def test_a_token_uses_one_slot_that_has_an_expert():
  ids = routings.make('dropped', _ROOMY).topk_ids
  arrays, _ = wide_data.make(_ROOMY, _POLICIES[0], ids)
  is_used = (arrays['topk_weights'] != 0) & (ids >= 0)
  np.testing.assert_array_equal(is_used.sum(-1), (ids >= 0).any(-1))


def test_a_gate_of_0_is_refused():
  policy = PrecisionPolicy(activation='absolute')
  arrays, _ = _make(policy)
  x = arrays['x'].copy()
  x[0, 0] = 0

  with pytest.raises(exact_limits.ExactnessError, match='gate: expected no 0'):
    exact_proof.prove(_ROOMY, policy, arrays | {'x': x})


@pytest.mark.parametrize('name', presets.RUNS_HERE)
@pytest.mark.few(3)
def test_every_preset_has_wide_rows_in_every_expert(name):
  config = presets.config(presets.get(name), 4)
  policy = PrecisionPolicy('bfloat16', activation='absolute')
  arrays, _ = _make(policy, config, 'balanced')
  wide = np.abs(arrays['dy'].astype(np.float32)).max(axis=-1)
  assert (wide > 0).mean() > 0.5
  ids = arrays['topk_ids'][wide > 128]
  weights = arrays['topk_weights'][wide > 128]
  assert len(np.unique(ids[weights > 0])) > config.num_experts / 2


@pytest.mark.parametrize(
  'sizes',
  [
    pytest.param(dict(r=1, t=1, e=2, k=1, d=32, f=16), id='one_row'),
    pytest.param(dict(r=1, t=7, e=6, k=3, d=33, f=17), id='odd_widths'),
    pytest.param(dict(r=2, t=5, e=2, k=2, d=5, f=300), id='wide_expert'),
    pytest.param(dict(r=2, t=5, e=2, k=2, d=300, f=1), id='wide_model'),
    pytest.param(dict(r=1, t=3, e=2, k=1, d=1, f=1), id='no_room'),
  ],
)
@_policies()
def test_awkward_sizes(sizes, policy):
  arrays, _ = _make(policy, config_testing.make_config(**sizes), 'balanced')
  assert arrays['x'].any() and arrays['w_down'].any() and arrays['dy'].any()
