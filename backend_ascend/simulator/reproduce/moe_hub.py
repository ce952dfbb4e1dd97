"""MoE-Hub (arXiv 2605.05888): receivers assign the addresses of rows.

A row is a token for one expert.  A hub on each GPU assigns addresses to rows
as they arrive: tiles of 128 rows of an expert fill in order of arrival, so
whichever rows come first start the expert's GEMMs.

The paper's figures give no data series and do not say which configurations its
two speed-ups compare.  The rows here are the smallest gain over COMET, its best
baseline, and the largest gain over Megatron-TE, over three models at two
lengths.
"""

from collections.abc import Iterator
import dataclasses
import statistics

import numpy as np

from hpmoe.backend_ascend.simulator.flows import flow as flow_lib
from hpmoe.backend_ascend.simulator.reproduce import builder
from hpmoe.backend_ascend.simulator.reproduce import dysharp as exchange
from hpmoe.backend_ascend.simulator.reproduce import witness as witness_lib

Op = flow_lib.Op
_TILE = 128  # rows


@dataclasses.dataclass(frozen=True)
class Parts:
  """The features of MoE-Hub that a GPU has.

  Attributes:
    joins: the sender combines stores into packets.
    counts: the hub starts thread blocks; otherwise blocks poll, and take their
      tiles from a counter in memory.
    order: order of rows: 'arrival'; or fixed before rows are sent, which needs
      an exchange of counts: by 'source', then token, or by 'token', then
      source.
  """

  joins: bool = True
  counts: bool = True
  order: str = 'arrival'


def draw_experts(layer: exchange.Layer) -> np.ndarray:
  """Returns `[R, T, K]` experts, drawn uniformly."""
  draw = np.random.default_rng(0).random(
    (layer.ranks, layer.tokens, layer.experts), np.float32
  )
  return np.argpartition(draw, layer.top_k - 1, axis=2)[..., : layer.top_k]


@dataclasses.dataclass(frozen=True)
class Hub:
  """A layer in modelled time.

  Attributes:
    timing: of the flow.
    window: seconds until all tasks of the first GEMM are done.
  """

  timing: flow_lib.Timing
  window: float


def moe_hub(layer: exchange.Layer, machine, parts: Parts = Parts()) -> Hub:
  """Returns the simulated layer: dispatch, GEMMs and combine overlap."""
  if not parts.joins:
    machine = machine.with_figures(packet=machine['sector'])
  flow_builder = builder.Builder(layer.ranks, machine)
  flow = flow_builder.flow
  experts = draw_experts(layer)
  rows = np.bincount(experts.ravel(), minlength=layer.experts)
  tiles = -(-rows // _TILE)
  first = np.cumsum(tiles) - tiles
  expert = np.repeat(np.arange(layer.experts), tiles)
  tile = np.arange(tiles.sum()) - first[expert]
  tile_rows = np.minimum(_TILE, rows[expert] - tile * _TILE)
  delay = 0.0 if parts.counts else machine['poll']
  events = flow.add_events(tile_rows, delay)
  regions = flow.add_regions(
    events[np.minimum(first, len(events) - 1)], _TILE, rows
  )
  _dispatch(flow_builder, layer, parts.order, experts, regions, events, first)
  firsts = _add_gemms(
    flow_builder, layer, parts, expert, tile, tile_rows, events, delay
  )
  timing = flow_builder.run()
  return Hub(timing, float(timing.end[firsts].max()))


def _dispatch(flow_builder, layer, order, experts, regions, events, first):
  """Adds the messages by which each rank sends its rows, token by token."""
  flow = flow_builder.flow
  source, token, _ = (axis.ravel() for axis in np.indices(experts.shape))
  pools = flow_builder.pools(1)
  counts_received = (
    None
    if order == 'arrival'
    else _exchange_counts(flow_builder, layer, pools, order)
  )
  tasks = flow_builder.idle(pools[source])
  messages = flow.add_messages(tasks, Op.PUT, source, layer.row)
  receiver = experts.ravel()
  rank = receiver * layer.ranks // layer.experts
  if counts_received is None:
    flow.add_peers(messages, rank, region=regions[receiver])
    return
  flow.add_waits(tasks, counts_received[source])
  keys = (
    (token, source, receiver)
    if order == 'source'
    else (source, token, receiver)
  )
  sort = np.lexsort(keys)
  expert_rows = np.bincount(receiver, minlength=layer.experts)
  place = np.empty(len(receiver), np.int64)
  place[sort] = (
    np.arange(len(receiver))
    - (np.cumsum(expert_rows) - expert_rows)[receiver[sort]]
  )
  flow.add_peers(messages, rank, events[first[receiver] + place // _TILE])


def _exchange_counts(flow_builder, layer, pools, order: str) -> np.ndarray:
  """Adds the exchange of counts by expert, or of the experts of all tokens.

  Returns one event per rank: it has received all of them.
  """
  flow = flow_builder.flow
  counts_received = flow.add_events(
    np.full(layer.ranks, layer.ranks), flow_builder.machine['poll']
  )
  count_bytes = 4.0 * (
    layer.experts if order == 'source' else layer.tokens * layer.top_k
  )
  ranks = np.arange(layer.ranks)
  tasks = flow_builder.idle(pools)
  for step in range(layer.ranks):
    messages = flow.add_messages(tasks, Op.PUT, ranks, count_bytes)
    peer = (ranks + step) % layer.ranks
    flow.add_peers(messages, peer, counts_received[peer])
  return counts_received


def _add_gemms(
  flow_builder, layer, parts, expert, tile, tile_rows, events, delay
):
  """Adds both GEMMs of each tile, the second a wave later, and the combine.

  Returns the tasks of the first GEMM.
  """
  rank = expert * layer.ranks // layer.experts
  flow, machine = flow_builder.flow, flow_builder.machine
  fetch_seconds = 0.0 if parts.counts else machine['aic_task']
  pools = flow_builder.pools(1)
  count = len(expert)
  second = np.repeat([0, 1], count)
  wave = np.concatenate([tile, tile + 1])
  order = np.lexsort((np.tile(expert, 2), second, wave))
  gemm_seconds = (
    tile_rows * layer.row_flops / exchange.rate(machine, layer.figure)
  )
  task_seconds = (
    np.concatenate([gemm_seconds * 2 / 3, gemm_seconds / 3]) + fetch_seconds
  )
  tasks = np.empty(2 * count, np.int64)
  tasks[order] = flow.add_tasks(
    pools[np.tile(rank, 2)[order]], task_seconds[order]
  )
  first_done = flow.add_events(np.ones(count), delay)
  flow.add_waits(tasks[:count], events)
  flow.add_signals(tasks[:count], first_done)
  flow.add_waits(tasks[count:], first_done)
  for step in range(layer.ranks):
    messages = flow.add_messages(
      tasks[count:], Op.PUT, rank, tile_rows * layer.row / layer.ranks
    )
    flow.add_peers(messages, (rank + step) % layer.ranks)
  return tasks[:count]


def megatron(layer: exchange.Layer, machine) -> float:
  """Returns the seconds of a layer that runs one operator after the other.

  Rows are permuted before and after both exchanges.
  """
  permuted = 2 * layer.tokens * layer.top_k * layer.row / machine['hbm']
  alone = exchange.deepep(layer, machine).total
  return alone + 4 * (machine['launch'] + permuted)


Row = witness_lib.Row
MACHINE = 'moe_hub'
_PAPER = 'arXiv 2605.05888, reading notes'

# (hidden, width of an expert, experts, top_k).
MODELS = {
  'Mixtral-8x7B': (4096, 14336, 8, 2),
  'Qwen2-MoE': (2048, 1408, 64, 4),
  'Phi-3.5-MoE': (4096, 6400, 16, 2),
}
_MOST_EXPOSED = 'Qwen2-MoE'
TOKENS = (1024, 4096)  # per GPU, on eight GPUs
RANKS = 8


def build_layer(name: str, tokens: int) -> exchange.Layer:
  hidden, ffn, experts, top_k = MODELS[name]
  return exchange.Layer(
    hidden,
    ffn,
    experts,
    tokens,
    top_k,
    RANKS,
    gemms=3,
    figure='cube_bf16',
    by_expert=True,
  )


LAYERS = {
  f'{name} at {tokens}': build_layer(name, tokens)
  for name in MODELS
  for tokens in TOKENS
}
_EXPOSED_ROW = 'exposed in COMET, Qwen2-MoE at 4096'
_COMET_ROW, _MEGATRON_ROW = (
  'layer over COMET, least',
  'layer over Megatron-TE, most',
)
_IDEAL_ROW = 'share of the ideal layer'
_JOINS_ROW, _COUNTS_ROW = 'joined stores, until GEMM1', 'counters, until GEMM1'


def joins_name(name: str) -> str:
  return f'{_JOINS_ROW}, {name}'


def _rows() -> Iterator[Row]:
  yield Row(_EXPOSED_ROW, 24.0, '%', 'exposed', _PAPER, fitted=True)
  yield Row(_COMET_ROW, 1.40, 'x', 'layer', _PAPER)
  yield Row(_MEGATRON_ROW, 3.08, 'x', 'layer', _PAPER)
  yield Row(_IDEAL_ROW, 96.8, '%', 'ideal', _PAPER)
  yield Row(_JOINS_ROW, 1.13, 'x', 'parts', _PAPER)
  yield Row(_COUNTS_ROW, 1.14, 'x', 'parts', _PAPER)


def _compute_seconds(layer: exchange.Layer, machine) -> float:
  rows = layer.tokens * layer.top_k
  return rows * layer.row_flops / exchange.rate(machine, layer.figure)


def _compute_exposed(machine) -> float:
  layer = build_layer(_MOST_EXPOSED, TOKENS[-1])
  seconds = exchange.comet(layer, machine).total
  return 100 * (1 - _compute_seconds(layer, machine) / seconds)


def _run_fitted(machines: witness_lib.Machines, tell) -> dict[str, float]:
  tell(_EXPOSED_ROW)
  return {_EXPOSED_ROW: _compute_exposed(machines[MACHINE])}


@dataclasses.dataclass(frozen=True)
class Times:
  """Seconds of a layer.

  Attributes:
    comet: under COMET.
    megatron: under Megatron-TE.
    hub: under MoE-Hub.
    products: of the GEMMs alone.
    joins: time until GEMM1 ends without joined stores, divided by the time
      with them.
    counts: the same ratio for counters.
  """

  comet: float
  megatron: float
  hub: float
  products: float
  joins: float
  counts: float


def _values(times: dict[str, Times]) -> dict[str, float]:
  all_times = times.values()
  return {
    _COMET_ROW: min(t.comet / t.hub for t in all_times),
    _MEGATRON_ROW: max(t.megatron / t.hub for t in all_times),
    _IDEAL_ROW: 100 * statistics.mean(t.products / t.hub for t in all_times),
    _JOINS_ROW: statistics.mean(t.joins for t in all_times),
    _COUNTS_ROW: statistics.mean(t.counts for t in all_times),
  } | {joins_name(name): t.joins for name, t in times.items()}


def _measure_times(layer: exchange.Layer, machine) -> Times:
  hub = moe_hub(layer, machine)
  joins, counts = (
    moe_hub(layer, machine, parts).window / hub.window
    for parts in (Parts(joins=False), Parts(counts=False))
  )
  return Times(
    exchange.comet(layer, machine).total,
    megatron(layer, machine),
    hub.timing.total,
    _compute_seconds(layer, machine),
    joins,
    counts,
  )


def _run(machines: witness_lib.Machines, tell) -> dict[str, float]:
  machine = machines[MACHINE]
  times = {}
  for name, layer in LAYERS.items():
    tell(name)
    times[name] = _measure_times(layer, machine)
  return _values(times) | {_EXPOSED_ROW: _compute_exposed(machine)}


def _bound_times(layer: exchange.Layer, machine) -> Times:
  """Returns the roofline: links and GEMMs at their peaks."""
  products = _compute_seconds(layer, machine)
  rows = layer.tokens * layer.top_k
  transfer = (
    rows * (layer.ranks - 1) / layer.ranks * layer.row / machine['nvlink']
  )
  sectors = transfer * (1 + machine['flit'] / machine['sector'])
  first = products * 2 / 3
  return Times(
    max(first, transfer) + max(products / 3, transfer),
    products + 2 * transfer + 8 * rows * layer.row / machine['hbm'],
    max(products, 2 * transfer),
    products,
    max(first, sectors) / max(first, transfer),
    1.0,
  )


def _roofline(machines: witness_lib.Machines) -> dict[str, float]:
  machine = machines[MACHINE].at_peak()
  return _values(
    {n: _bound_times(layer, machine) for n, layer in LAYERS.items()}
  )


def _format_gains(values: witness_lib.Values) -> str:
  return ', '.join(f'{name} {values[joins_name(name)]:.3f}' for name in LAYERS)


def no_growth(values: witness_lib.Values) -> str:
  """Returns the gains, unless joined stores gain more on longer sequences."""
  short, long = (
    [values[joins_name(f'{name} at {tokens}')] for name in MODELS]
    for tokens in TOKENS
  )
  return (
    '' if all(a < b for a, b in zip(short, long)) else _format_gains(values)
  )


def more_elsewhere(values: witness_lib.Values) -> str:
  """Returns the gains, unless most are where an exchange is most exposed."""
  gains = {name: values[joins_name(f'{name} at 4096')] for name in MODELS}
  best_model = max(gains, key=lambda name: gains[name])
  return '' if best_model == _MOST_EXPOSED else _format_gains(values)


_BASE = witness_lib.Witness(
  **witness_lib.load_fields('moe-hub'),
  machines=(MACHINE,),
  quick=False,
  rows=tuple(_rows()),
  run=_run,
  run_fitted=_run_fitted,
  roofline=_roofline,
  fits=(
    witness_lib.Fit(
      MACHINE, 'cube_efficiency', (_EXPOSED_ROW,), value=0.5087141
    ),
  ),
  claims=(
    witness_lib.Claim('joined stores gain more with length', no_growth),
    witness_lib.Claim('joined stores gain most on Qwen2-MoE', more_elsewhere),
  ),
)
WITNESS = dataclasses.replace(
  _BASE,
  variants=(
    witness_lib.under(
      _BASE,
      'links of 400 GB/s each way, not of 200',
      MACHINE,
      nvlink=400e9,
    ),
  ),
)
