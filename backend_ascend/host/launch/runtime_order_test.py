"""The policy's order of accumulation is what launches compute."""

import pytest

from hpmoe.backend_ascend import _native
from hpmoe.backend_ascend.host.launch import runtime
from hpmoe.backend_ascend.host.launch import runtime_testing as testing
from hpmoe.backend_ascend.host.tiles import tiles_testing
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import precision

# Experts of more than 32 rows; no size is a multiple of 32.
CONFIG = config_testing.make_config(r=2, t=90, e=4, k=2, d=70, f=41)
FORWARD, BACKWARD = testing.compile_layer, testing.compile_grad
CORES = dict(num_aic=2, num_aiv=3)


def policy(order='even_odd_32', placement='combine'):
  return precision.PrecisionPolicy(
    storage='bfloat16', placement=placement, accumulation_order=order
  )


def inputs_of(compile_layer, pol):
  """Returns inputs; those of gate_up cancel: roundings are what is left."""
  if compile_layer is BACKWARD:
    return testing.make_grad_inputs(CONFIG, pol, 'one_expert_first')
  inputs = testing.make_inputs(CONFIG, pol, 'one_expert_first')
  half = CONFIG.d_model // 2
  inputs['x'][..., half:] = inputs['x'][..., :half]
  inputs['w_gate_up'][:, :, half:] = -inputs['w_gate_up'][:, :, :half]
  return inputs


def equal_bits(actual, want) -> bool:
  return all(actual[n].tobytes() == want[n].tobytes() for n in want)


@pytest.mark.parametrize('placement', precision.LAUNCHED_PLACEMENTS)
@pytest.mark.parametrize('compile_layer', [FORWARD, BACKWARD])
def test_bits_depend_on_the_order_alone(compile_layer, placement):
  # Given one order, when tiles, links of chains, threads, instruction sets and
  # the kind of launch differ, then bits do not.
  pol = policy(placement=placement)
  inputs = inputs_of(compile_layer, pol)
  first = compile_layer(CONFIG, pol, row_block=16, col_block=32, **CORES)
  want = runtime.launch_serial(first, inputs, isa='portable')
  for rows, cols, chain in ((16, 32, None), (8, 24, 8), (48, 256, 40)):
    image = compile_layer(
      CONFIG, pol, row_block=rows, col_block=cols, chain_rows=chain, **CORES
    )
    assert image.policy == pol
    for isa in _native.isas():
      actual = runtime.launch(image, inputs, threads=2, isa=isa)
      assert equal_bits(actual, want), (rows, cols, chain, isa)
    production = runtime.Launch(image, threads=2).run(inputs).outputs
    assert equal_bits(production, {n: want[n] for n in production}), (
      rows,
      cols,
      chain,
    )


def test_sums_are_those_of_the_tile_in_that_order():
  # Given one expert's GEMM by the tile kernel alone, then the launch has those
  # bits, and not the other order's.
  pol = policy()
  inputs = inputs_of(FORWARD, pol)
  image = FORWARD(CONFIG, pol, row_block=16, **CORES)
  rows = int((inputs['topk_ids'] == 0).sum())

  actual = runtime.launch(image, inputs)
  ascending, even_odd = (
    tiles_testing.gemm_tile(
      actual['expert_in'][0, :rows].view('u2'),
      inputs['w_gate_up'][0, 0].view('u2'),
      order=order,
    )
    for order in precision.ACCUMULATION_ORDERS
  )

  assert actual['gate_up'][0, :rows].tobytes() == even_odd.tobytes()
  assert (ascending != even_odd).mean() > 0.1


def test_weight_gradients_are_summed_in_that_order():
  pol = policy()
  inputs = inputs_of(BACKWARD, pol)
  image = BACKWARD(CONFIG, pol, row_block=16, chain_rows=32, **CORES)
  rows = int((inputs['topk_ids'] == 0).sum())
  assert rows > 64 and rows % 32 and image.options.chain_rows == 32

  actual = runtime.launch(image, inputs)
  want = tiles_testing.gemm_tile(
    inputs['activation'][0, :rows].view('u2'),
    actual['d_expert_out'][0, :rows].view('u2'),
    trans_a=True,
    order='even_odd_32',
  )

  assert actual['d_w_down'][0, 0].tobytes() == want.tobytes()


def test_links_are_whole_steps():
  for chain_rows, row_block, links in ((8, 8, 32), (33, 24, 96), (40, 16, 64)):
    image = BACKWARD(
      CONFIG, policy(), row_block=row_block, chain_rows=chain_rows
    )
    assert image.options.chain_rows == links
  image = BACKWARD(CONFIG, policy('ascending'), row_block=8, chain_rows=8)
  assert image.options.chain_rows == 8
