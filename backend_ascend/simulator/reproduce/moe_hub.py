"""MoE-Hub (arXiv 2605.05888): rows that get their addresses where they arrive.

Neither its figures' series nor what its two factors are over was found: taken
are the least gain over COMET, its best baseline, and the most over
Megatron-TE, over three models at two lengths.
"""

from collections.abc import Iterator
import dataclasses
import statistics

from hpmoe.backend_ascend.simulator.reproduce import dysharp_flows as exchange
from hpmoe.backend_ascend.simulator.reproduce import moe_hub_flows as flows
from hpmoe.backend_ascend.simulator.reproduce import witness as witness_lib

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
TOKENS = (1024, 4096)  # of a GPU, of eight
RANKS = 8


def layer(name: str, tokens: int) -> exchange.Layer:
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
  f'{name} at {tokens}': layer(name, tokens)
  for name in MODELS
  for tokens in TOKENS
}
_EXPOSED = 'exposed in COMET, Qwen2-MoE at 4096'
_LEAST, _MOST = 'layer over COMET, least', 'layer over Megatron-TE, most'
_IDEAL = 'share of the ideal layer'
_JOINS, _COUNTS = 'joined stores, until GEMM1', 'counters, until GEMM1'


def joins_name(name: str) -> str:
  return f'{_JOINS}, {name}'


def _rows() -> Iterator[Row]:
  yield Row(_EXPOSED, 24.0, '%', 'exposed', _PAPER, fitted=True)
  yield Row(_LEAST, 1.40, 'x', 'layer', _PAPER)
  yield Row(_MOST, 3.08, 'x', 'layer', _PAPER)
  yield Row(_IDEAL, 96.8, '%', 'ideal', _PAPER)
  yield Row(_JOINS, 1.13, 'x', 'parts', _PAPER)
  yield Row(_COUNTS, 1.14, 'x', 'parts', _PAPER)


def _computed(of: exchange.Layer, machine) -> float:
  rows = of.tokens * of.top_k
  return rows * of.row_flops / exchange.rate(machine, of.figure)


def _exposed(machine) -> float:
  of = layer(_MOST_EXPOSED, TOKENS[-1])
  took = exchange.comet(of, machine).total
  return 100 * (1 - _computed(of, machine) / took)


def _run_fitted(machines: witness_lib.Machines, tell) -> dict[str, float]:
  tell(_EXPOSED)
  return {_EXPOSED: _exposed(machines[MACHINE])}


@dataclasses.dataclass(frozen=True)
class Times:
  """Of a layer, s.

  Attributes:
    comet: under COMET.
    megatron: under Megatron-TE.
    hub: under MoE-Hub.
    products: alone.
    joins: until GEMM1 ends without joined stores, over with.
    counts: likewise without counters.
  """

  comet: float
  megatron: float
  hub: float
  products: float
  joins: float
  counts: float


def _values(times: dict[str, Times]) -> dict[str, float]:
  of = times.values()
  return {
    _LEAST: min(t.comet / t.hub for t in of),
    _MOST: max(t.megatron / t.hub for t in of),
    _IDEAL: 100 * statistics.mean(t.products / t.hub for t in of),
    _JOINS: statistics.mean(t.joins for t in of),
    _COUNTS: statistics.mean(t.counts for t in of),
  } | {joins_name(name): t.joins for name, t in times.items()}


def _times(of: exchange.Layer, machine) -> Times:
  hub = flows.moe_hub(of, machine)
  joins, counts = (
    flows.moe_hub(of, machine, parts).window / hub.window
    for parts in (flows.Parts(joins=False), flows.Parts(counts=False))
  )
  return Times(
    exchange.comet(of, machine).total,
    flows.megatron(of, machine),
    hub.timed.total,
    _computed(of, machine),
    joins,
    counts,
  )


def _run(machines: witness_lib.Machines, tell) -> dict[str, float]:
  machine = machines[MACHINE]
  times = {}
  for name, of in LAYERS.items():
    tell(name)
    times[name] = _times(of, machine)
  return _values(times) | {_EXPOSED: _exposed(machine)}


def _at_peak(of: exchange.Layer, machine) -> Times:
  """Returns the roofline: links and products at their peaks."""
  products = _computed(of, machine)
  rows = of.tokens * of.top_k
  moved = rows * (of.ranks - 1) / of.ranks * of.row / machine['nvlink']
  sectors = moved * (1 + machine['flit'] / machine['sector'])
  first = products * 2 / 3
  return Times(
    max(first, moved) + max(products / 3, moved),
    products + 2 * moved + 8 * rows * of.row / machine['hbm'],
    max(products, 2 * moved),
    products,
    max(first, sectors) / max(first, moved),
    1.0,
  )


def _roofline(machines: witness_lib.Machines) -> dict[str, float]:
  machine = machines[MACHINE].at_peak()
  return _values({n: _at_peak(of, machine) for n, of in LAYERS.items()})


def _gains(values: witness_lib.Values) -> str:
  return ', '.join(f'{name} {values[joins_name(name)]:.3f}' for name in LAYERS)


def no_growth(values: witness_lib.Values) -> str:
  """Returns the gains, unless joined stores gain more on longer sequences."""
  short, long = (
    [values[joins_name(f'{name} at {tokens}')] for name in MODELS]
    for tokens in TOKENS
  )
  return '' if all(a < b for a, b in zip(short, long)) else _gains(values)


def more_elsewhere(values: witness_lib.Values) -> str:
  """Returns the gains, unless most are where an exchange is most exposed."""
  gains = {name: values[joins_name(f'{name} at 4096')] for name in MODELS}
  most = max(gains, key=lambda name: gains[name])
  return '' if most == _MOST_EXPOSED else _gains(values)


_BASE = witness_lib.Witness(
  **witness_lib.told('moe-hub'),
  machines=(MACHINE,),
  quick=False,
  rows=tuple(_rows()),
  run=_run,
  run_fitted=_run_fitted,
  roofline=_roofline,
  fits=(
    witness_lib.Fit(MACHINE, 'cube_efficiency', (_EXPOSED,), value=0.5087141),
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
