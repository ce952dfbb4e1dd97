"""Layers of other projects in a dump without ids of experts."""

import numpy as np
import pytest

from hpmoe.parity_tests.dumps import dump_check
from hpmoe.reference import routing
from hpmoe.reference.contract import router as router_lib

_TOKENS, _EXPERTS, _TOP_K, _D, _F = 12, 4, 2, 8, 16
_RULE = 'renormalize_naive'


def _draw(seed, *shape):
  values = np.random.default_rng(seed).normal(size=shape) / 2
  return values.astype(np.float32)


def _compute_y(x, ids, weights, gate_up, down):
  """Returns y `[T, D]`; weights are `[E, D, 2F]` and `[E, F, D]`."""
  y = np.zeros_like(x)
  for slot in range(ids.shape[1]):
    expert = ids[:, slot]
    rows = np.einsum('td,tdf->tf', x, gate_up[expert])
    gate, up = np.split(rows, 2, -1)
    activation = gate / (1 + np.exp(-gate)) * up
    out = np.einsum('tf,tfd->td', activation, down[expert])
    y += weights[:, slot, None] * out
  return y


_GATE_UP, _DOWN = _draw(1, _EXPERTS, _D, 2 * _F), _draw(2, _EXPERTS, _F, _D)


def _judge(folder, tensors, **options):
  np.savez(
    folder / 'step0.npz',
    **{f'Cell.layers.3.mlp.{name}': array for name, array in tensors.items()},
  )
  (row,) = dump_check.check_dump(str(folder), **options)
  return row


def _make_rows(counts):
  ids = np.repeat(np.arange(_EXPERTS), counts)[:, None]
  x = _draw(3, len(ids), _D)
  return x, _compute_y(x, ids, np.ones(ids.shape), _GATE_UP, _DOWN)


@pytest.mark.parametrize('as_sums', [False, True])
@pytest.mark.parametrize('is_flat', [False, True])
@pytest.mark.parametrize('bug', [False, True])
@pytest.mark.few(2)
def test_sorted_rows_have_the_experts_of_their_number(
  tmp_path, as_sums, is_flat, bug
):
  # given MindFormers' inference: no weights, the rows' numbers or their sums
  counts = np.array([3, 0, 5, 4])
  x, y = _make_rows(counts)
  y[3 if bug else 0] += 1.0 if bug else 0.0
  gate_up, down = _GATE_UP, _DOWN
  if is_flat:
    gate_up = gate_up.reshape(_D, _EXPERTS * 2 * _F)
    down = down.reshape(_EXPERTS * _F, _D)
  module = 'experts.GroupedMLP.forward.0'
  row = _judge(
    tmp_path,
    {
      f'{module}.input.0': x,
      f'{module}.input.1': np.cumsum(counts) if as_sums else counts,
      f'{module}.parameters.weight1': gate_up,
      f'{module}.parameters.weight2': down,
      f'{module}.output.0': y,
    },
  )
  assert row.verdict == ('fail' if bug else 'pass')


def test_numbers_that_do_not_fit_are_a_line(tmp_path):
  x, y = _make_rows(np.array([3, 0, 5, 4]))
  module = 'experts.GroupedMLP.forward.0'
  row = _judge(
    tmp_path,
    {
      f'{module}.input.0': x,
      f'{module}.input.1': np.array([3, 1, 5, 4]),
      f'{module}.parameters.weight1': _GATE_UP,
      f'{module}.parameters.weight2': _DOWN,
      f'{module}.output.0': y,
    },
  )
  assert row.reason == 'rows_per_expert: expected 12 rows in all, got 13'


@pytest.mark.parametrize('bug', [False, True])
@pytest.mark.few(1)
def test_mindformers_training_is_cut_by_its_router(tmp_path, bug):
  # given [B, S, D] tokens, and the number of experts in the router alone
  ids = np.stack([np.arange(_TOKENS) % 3, np.full(_TOKENS, 3)], -1)
  x, weights = _draw(3, _TOKENS, _D), np.abs(_draw(4, _TOKENS, _TOP_K))
  y = _compute_y(x, ids, weights, _GATE_UP, _DOWN)
  y[5] *= 0.0 if bug else 1.0
  module = 'experts.FFNGroupedGEMM.forward.0'
  row = _judge(
    tmp_path,
    {
      f'{module}.input.0': x.reshape(2, -1, _D),
      f'{module}.input.1': weights.reshape(2, -1, _TOP_K),
      f'{module}.input.2': ids.reshape(2, -1, _TOP_K),
      f'{module}.parameters.weight1': _GATE_UP.reshape(_D, -1),
      f'{module}.parameters.weight2': _DOWN.reshape(-1, _D),
      f'{module}.output.0': y.reshape(2, -1, _D),
      'router.TopKRouter.forward.0.parameters.weight': _draw(5, _EXPERTS, _D),
    },
  )
  assert row.verdict == ('fail' if bug else 'pass'), row.reason


def _make_routed(choose_other):
  """Returns tensors of vLLM's experts, of which token 4 has a near tie."""
  logits = _draw(6, _TOKENS, _EXPERTS)
  logits[4] = [2.0, 1.0, 1.0, -1.0]
  # Within a rounding of softmax, which may order them either way.
  logits[4, 2] = np.nextafter(np.float32(1), np.float32(2))
  router = router_lib.Router(_RULE, _TOP_K)
  ids, weights = routing.route(router, logits[None])
  ids, weights = np.array(ids[0]), np.array(weights[0])
  if choose_other:
    ids[4] = np.where(ids[4] == 2, 1, ids[4])
  x = _draw(3, _TOKENS, _D)
  y = _compute_y(x, ids, weights, _GATE_UP, _DOWN)
  module = 'experts.FusedMoE.forward.0'
  return {
    f'{module}.kwargs.hidden_states': x,
    f'{module}.kwargs.router_logits': logits,
    f'{module}.parameters.w13_weight': _GATE_UP.swapaxes(1, 2).copy(),
    f'{module}.parameters.w2_weight': _DOWN.swapaxes(1, 2).copy(),
    f'{module}.output.0': y,
  }


@pytest.mark.parametrize('choose_other', [False, True])
def test_either_choice_of_a_near_tie_is_right(tmp_path, choose_other):
  row = _judge(tmp_path, _make_routed(choose_other), router=f'{_RULE}:top_k=2')
  assert row.verdict == 'pass', row.reason


def test_a_choice_that_is_no_near_tie_is_wrong(tmp_path):
  tensors = _make_routed(False)
  logits = tensors['experts.FusedMoE.forward.0.kwargs.router_logits']
  logits[7] = logits[7][::-1] + [3, 0, 0, 0]
  row = _judge(tmp_path, tensors, router=f'{_RULE}:top_k=2')
  assert row.verdict == 'fail'


def test_a_rule_that_is_not_said_is_asked_for(tmp_path):
  row = _judge(tmp_path, _make_routed(False))
  assert row.verdict == 'not judged'
  assert row.reason.startswith('it routes by itself: --router=RULE:top_k=K')
