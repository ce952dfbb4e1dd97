"""DeepGEMM's FP8 MegaMoE on eight H200 (pull request 383): 22 absolute times.

And a comparison of two orders of one kernel on eight H100 (sgl-project, pull
request 88): waves of experts against a second GEMM that is held back.

Nothing is fitted.  Two launches follow one another on a GPU: dispatch, the
first GEMM and SwiGLU; the second GEMM and combine.  Here that is one image, in
which each SM does all of its first GEMM before its second.  Groups of warps of
one SM multiply and move data at the same time, so a GPU has 132 SMs that
multiply and 132 that move.  8-bit integers stand for FP8, which is as fast.
"""

from collections.abc import Iterator
import dataclasses

import numpy as np

from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.simulator import simulate
from hpmoe.backend_ascend.simulator.machines import machine as machine_lib
from hpmoe.backend_ascend.simulator.reproduce import compiled_layers
from hpmoe.backend_ascend.simulator.reproduce import null
from hpmoe.backend_ascend.simulator.reproduce import witness as witness_lib
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import granularity

Row = witness_lib.Row
MACHINE = 'h200'
_SOURCE = 'deepseek-ai/DeepGEMM, pull request 383, H200 High Throughput'

RANKS, TOP_K, SMS = 8, 6, 132
# (experts, hidden, intermediate).
MODELS = {'Flash': (256, 4096, 2048), 'Pro': (384, 7168, 3072)}
TOKENS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
LARGE = 512  # tokens a rank
# us, by model, one for each of TOKENS.
TIMES = witness_lib.published('deepgemm')['times']

ORDER_MACHINE = 'h100_megamoe'
# (experts, slots of a token, hidden, intermediate) of the two orders.
ORDER_SIZES = (288, 8, 4096, 2048)
_ORDER_SOURCE = 'sgl-project/DeepGEMM, pull request 88, 8 x H100 SXM, EP8'
# us of each order by tokens of a rank, of waves and held back.
ORDER_TIMES = witness_lib.published('deepgemm')['orders']
_HELD_BACK = 0.45  # of all units, from an expert's first GEMM to its second

_TILE_ROWS, _TILE_COLS = 128, 256
_ELEMENT = 'int8'
# The epilogue of the first GEMM writes the activation, half as wide as its
# sums, in 8 bits; what goes home is bfloat16.
_ELEMENT_BYTES = dict(gate_up=0.5, expert_out=2, returned=2, y=2)
_IN_EPILOGUE = ('swiglu',)


def name(model: str, tokens: int) -> str:
  return f'{model}, M={tokens}'


def _rows() -> Iterator[Row]:
  for model, times in TIMES.items():
    for tokens, time in zip(TOKENS, times):
      group = 'large' if tokens >= LARGE else 'small'
      yield Row(name(model, tokens), time, 'us', group, _SOURCE)
  for tokens, (waves, held_back) in ORDER_TIMES.items():
    gain = waves / held_back
    yield Row(_gain_name(tokens), gain, 'x', 'order', _ORDER_SOURCE)


def _gain_name(tokens: str) -> str:
  return f'held back over waves, M={tokens}'


def config(model: str, tokens: int) -> config_lib.MoEConfig:
  experts, hidden, intermediate = MODELS[model]
  return config_lib.MoEConfig(
    num_ranks=RANKS,
    num_tokens=tokens,
    num_experts=experts,
    top_k=TOP_K,
    d_model=hidden,
    d_ff=intermediate,
  )


def topk_ids(config: config_lib.MoEConfig) -> np.ndarray:
  """Returns `[R, T, K]` i32: experts drawn uniformly."""
  shape = (config.num_ranks, config.num_tokens, config.num_experts)
  draw = np.random.default_rng(0).random(shape)
  return np.argsort(draw, axis=-1)[..., : config.top_k].astype(np.int32)


def run(
  machine: machine_lib.Machine, model: str, tokens: int
) -> simulate.Simulation:
  """Returns the forward layer in modelled time."""
  order = granularity.Order(lag=None)
  return _simulate(machine, config(model, tokens), SMS, order)


def _simulate(
  machine: machine_lib.Machine,
  plain_config: config_lib.MoEConfig,
  aivs: int,
  order: granularity.Order,
) -> simulate.Simulation:
  ids = topk_ids(plain_config)
  expert_rows = compiled_layers.rows(plain_config, ids)
  capacity = int(expert_rows.max())
  tile_rows = min(_TILE_ROWS, capacity)
  options = granularity.Options(
    event_grain='row_block',
    row_block=tile_rows,
    col_block=_TILE_COLS,
    put_rows=capacity,
    vector_rows=tile_rows,
    token_block=max(1, plain_config.num_tokens // SMS),
    num_aic=SMS,
    num_aiv=aivs,
    expert_capacity=capacity,
    order=order,
  )
  rank_rows = expert_rows.reshape(RANKS, -1).sum(1)
  sized_config = dataclasses.replace(
    plain_config, capacity=int(rank_rows.max())
  )
  return simulate.simulate(
    compiled_layers.image(sized_config, options, layout.Direction.FORWARD),
    machine,
    ids,
    element=_ELEMENT,
    element_bytes=_ELEMENT_BYTES,
    skip=_IN_EPILOGUE,
  )


def wave_experts(tokens: int) -> int:
  """Returns the experts of a wave: their first GEMM fills all SMs twice.

  By the rule of sgl-project/DeepGEMM (heuristics/mega_moe.hpp): a divisor of
  the experts of a rank.
  """
  experts, top_k, _, intermediate = ORDER_SIZES
  local = experts // RANKS
  blocks = -(-tokens * top_k // (local * _TILE_ROWS))
  tiles = blocks * (2 * intermediate // _TILE_COLS)
  start = min(local, -(-2 * SMS // tiles))
  return next(n for n in range(start, local + 1) if local % n == 0)


def run_order(
  machine: machine_lib.Machine, tokens: int, lag: int
) -> simulate.Simulation:
  """Returns the fused layer, its second GEMM `lag` experts behind the first.

  Half of the AIVs pull, a slice of an expert at a time and in their order.
  """
  experts, top_k, hidden, intermediate = ORDER_SIZES
  layer = config_lib.MoEConfig(
    num_ranks=RANKS,
    num_tokens=tokens,
    num_experts=experts,
    top_k=top_k,
    d_model=hidden,
    d_ff=intermediate,
  )
  order = granularity.Order(lag=lag, comm_share=0.5)
  return _simulate(machine, layer, int(machine['aiv']), order)


def _order_values(machine, tell) -> Iterator[tuple[str, float]]:
  held_back = round(_HELD_BACK * ORDER_SIZES[0] / RANKS)
  for tokens in ORDER_TIMES:
    tell(_gain_name(tokens))
    wave_time, late_time = (
      run_order(machine, int(tokens), lag).total
      for lag in (wave_experts(int(tokens)), held_back)
    )
    yield _gain_name(tokens), wave_time / late_time


def _run(machines: witness_lib.Machines, tell) -> dict[str, float]:
  machine = machines[MACHINE]
  values = {}
  for model in MODELS:
    for tokens in TOKENS:
      tell(name(model, tokens))
      values[name(model, tokens)] = 1e6 * run(machine, model, tokens).total
  return values | dict(_order_values(machines[ORDER_MACHINE], tell))


def _roofline(machines: witness_lib.Machines) -> dict[str, float]:
  values = {}
  for model in MODELS:
    for tokens in TOKENS:
      layer = config(model, tokens)
      bound = null.roofline(
        layer,
        machines[MACHINE],
        topk_ids(layer),
        element=_ELEMENT,
        home_bytes=_ELEMENT_BYTES['returned'],
      )
      values[name(model, tokens)] = 1e6 * bound.fused
  return values


WITNESS = witness_lib.Witness(
  **witness_lib.load_fields('deepgemm'),
  machines=(MACHINE, ORDER_MACHINE),
  quick=False,
  rows=tuple(_rows()),
  run=_run,
  roofline=_roofline,
)
