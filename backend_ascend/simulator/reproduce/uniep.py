"""UniEP (arXiv 2604.19241) on a node of eight Hopper GPUs: relay and ablation.

Its traffic follows from the routing alone, as a formula does.  Its ablation is
tried on layers of public models, for its own twelve are not published.  It
starts from the published order, operator by operator and without relay: the SMs
that DeepEP takes put and do nothing else, as many do all that is neither a put
nor a product.  Priority is a part of the last step, so the start has none.

UniEP gives an SM its next role from one cursor.  In our flow an SM has one role
for a whole launch; how many have which, and whether puts are a role of their
own, is what the tuner chooses, and a static order stands in place of the
cursor.
"""

from collections.abc import Callable, Iterator
import dataclasses
import functools

import numpy as np

from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.simulator import simulate
from hpmoe.backend_ascend.simulator.machines import machine as machine_lib
from hpmoe.backend_ascend.simulator.reproduce import compiled_layers
from hpmoe.backend_ascend.simulator.reproduce import null
from hpmoe.backend_ascend.simulator.reproduce import witness as witness_lib
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import granularity

Kind = layout.Kind
Row = witness_lib.Row
MACHINE = 'hopper'
_PAPER = 'arXiv 2604.19241, reading notes'

RANKS, TOP_K = 8, 8
# Of a rank; published are sequences of 8k and 32k on eight GPUs.
TOKENS = (1024, 4096)
_SMS = 132
# (experts, hidden, intermediate) of public models.
_MODELS = {
  'Qwen3-30B-A3B': (128, 2048, 768),
  'Qwen3-235B-A22B': (128, 4096, 1536),
  'DeepSeek-V3': (256, 7168, 2048),
}
LAYERS = {
  f'{name} at {tokens}': (*sizes, tokens)
  for tokens in TOKENS
  for name, sizes in _MODELS.items()
}
# DeepEP: 20 of the SMs communicate.
_START_SMS = 40
_START_ORDER = dataclasses.replace(granularity.PUBLISHED_ORDER, comm_share=0.5)
# The candidates of the tuner.
_OTHER_SMS = (24, 32, 40, 48, 56)
_ORDERS = tuple(
  granularity.Order(lead=lead, lag=lag, swizzle=0, comm_share=share)
  for lead, lag in ((2.0, 1.0), (4.0, 2.0))
  for share in (0.0, 0.5)
)

_RANKS_ROW = 'distinct ranks of a token, top-8 over 8'
_SAVINGS_ROW = 'bytes that dispatch saves by relay'
_RELAY_STEP, _TUNER_STEP, _RELAY_AND_TUNER = (
  'relay',
  'tuner and priority',
  'both',
)
# Links and puts faster in proportion to the bytes that relay saves; no copies.
_FREE_RELAY = 'relay that costs nothing'
# Expected ranks of a token whose experts are drawn independently.
_DISTINCT = RANKS * (1 - (1 - 1 / RANKS) ** TOP_K)
# Speed-ups of the ablation: minimum and maximum over its configurations.
_FACTORS = {
  _RELAY_STEP: (1.06, 1.36),
  _TUNER_STEP: (1.15, 1.68),
  _RELAY_AND_TUNER: (1.24, 1.73),
}


def _factor_name(step: str, extreme: str) -> str:
  return f'{step}, {extreme} of the layers'


def _layer_name(step: str, name: str) -> str:
  return f'{step}, {name}'


def _rows() -> Iterator[Row]:
  yield Row(_RANKS_ROW, 5.25, 'ranks', 'traffic', _PAPER)
  yield Row(_SAVINGS_ROW, 34.0, '%', 'traffic', _PAPER)
  for step, factors in _FACTORS.items():
    for extreme, factor in zip(('least', 'most'), factors):
      yield Row(_factor_name(step, extreme), factor, 'x', 'ablation', _PAPER)


@functools.lru_cache(maxsize=len(LAYERS))
def topk_ids(config: config_lib.MoEConfig) -> np.ndarray:
  """Returns `[R, T, K]` i32: experts drawn uniformly."""
  rng = np.random.default_rng(0)
  draw = rng.random((config.num_ranks, config.num_tokens, config.num_experts))
  return np.argsort(draw, axis=-1)[..., : config.top_k].astype(np.int32)


def distinct_ranks(config: config_lib.MoEConfig) -> float:
  """Returns the mean number of ranks that hold a token's experts."""
  owner = np.sort(topk_ids(config) // config.experts_per_rank, axis=-1)
  return float(1 + (np.diff(owner, axis=-1) != 0).sum(-1).mean())


def _config(name: str) -> config_lib.MoEConfig:
  experts, hidden, intermediate, tokens = LAYERS[name]
  return config_lib.MoEConfig(
    num_ranks=RANKS,
    num_tokens=tokens,
    num_experts=experts,
    top_k=TOP_K,
    d_model=hidden,
    d_ff=intermediate,
  )


@dataclasses.dataclass(frozen=True)
class Point:
  """A schedule: whether rows are relayed, the other SMs, the order."""

  relay: bool = False
  other_sms: int = _START_SMS
  order: granularity.Order = _START_ORDER


def run(
  machine: machine_lib.Machine, name: str, point: Point
) -> simulate.Simulation:
  """Returns the forward layer in modelled time."""
  config = _config(name)
  ids = topk_ids(config)
  expert_rows = compiled_layers.rows(config, ids)
  capacity = int(expert_rows.max())
  options = granularity.Options(
    row_block=128,
    col_block=256,
    # A put is a whole slice.  Most smaller puts would have no rows, and their
    # round-robin order would leave all work to a few SMs.
    put_rows=capacity,
    vector_rows=32,
    token_block=16,
    num_aic=_SMS - point.other_sms,
    num_aiv=point.other_sms,
    expert_capacity=capacity,
    order=point.order,
    relay=point.relay,
  )
  sized_config = dataclasses.replace(
    config, capacity=int(expert_rows.reshape(RANKS, -1).sum(1).max())
  )
  image = compiled_layers.image(sized_config, options, layout.Direction.FORWARD)
  return simulate.simulate(image, machine, ids)


def count_dispatch_bytes(simulation: simulate.Simulation) -> float:
  """Returns the bytes of dispatch on all links."""
  kind = simulation.image.tables['tasks']['kind']
  return float(simulation.link_bytes[kind < Kind.GATE_UP].sum())


def _faster(
  machine: machine_lib.Machine, savings: float
) -> machine_lib.Machine:
  """Returns a machine whose links need less time by the share `savings`."""
  rates = ('nvlink', 'rdma_link', 'aiv_link')
  return machine.with_figures(
    **{
      name: machine[name] / (1 - savings)
      for name in rates
      if name in machine.figures
    }
  )


# Seconds of a layer on a machine under a schedule.
_Seconds = Callable[[machine_lib.Machine, str, Point], float]


def _bound_seconds(
  machine: machine_lib.Machine, name: str, point: Point
) -> float:
  """Returns the roofline of a schedule; relayed rows cross links once."""
  config = _config(name)
  shared = machine.with_figures(aic=_SMS - point.other_sms)
  roofline = null.roofline(config, shared, topk_ids(config))
  exchange_share = (1 + _DISTINCT / TOP_K) / 2 if point.relay else 1.0
  return dataclasses.replace(
    roofline, exchange=roofline.exchange * exchange_share
  ).fused


def _factors(machine, name, savings: float, seconds: _Seconds):
  start, relayed = (
    seconds(machine, name, Point(relay=relay)) for relay in (False, True)
  )
  free = seconds(_faster(machine, savings), name, Point())
  tuned_seconds = min(
    seconds(machine, name, Point(True, sms, order))
    for sms in _OTHER_SMS
    for order in _ORDERS
  )
  return {
    _RELAY_STEP: start / relayed,
    _TUNER_STEP: relayed / tuned_seconds,
    _RELAY_AND_TUNER: start / tuned_seconds,
    _FREE_RELAY: start / free,
  }


def _ablation(machine, savings: float, seconds: _Seconds) -> dict[str, float]:
  values: dict[str, float] = {}
  steps = {n: _factors(machine, n, savings, seconds) for n in LAYERS}
  for name, factors in steps.items():
    values |= {_layer_name(step, name): x for step, x in factors.items()}
  for step in _FACTORS:
    gains = [factors[step] for factors in steps.values()]
    values[_factor_name(step, 'least')] = min(gains)
    values[_factor_name(step, 'most')] = max(gains)
  return values


def _run(machines: witness_lib.Machines, tell) -> dict[str, float]:
  machine = machines[MACHINE]
  widest = max(LAYERS, key=lambda name: LAYERS[name][0])
  plain, relayed = (
    count_dispatch_bytes(run(machine, widest, Point(relay=relay)))
    for relay in (False, True)
  )
  savings = 1 - relayed / plain

  def seconds(machine, name: str, point: Point) -> float:
    tell(f'{name}: {point.other_sms} other SMs, relay {point.relay}')
    return run(machine, name, point).total

  traffic = {
    _RANKS_ROW: distinct_ranks(_config(widest)),
    _SAVINGS_ROW: 100 * savings,
  }
  return traffic | _ablation(machine, savings, seconds)


def _roofline(machines: witness_lib.Machines) -> dict[str, float]:
  savings = 1 - _DISTINCT / TOP_K
  traffic = {_RANKS_ROW: _DISTINCT, _SAVINGS_ROW: 100 * savings}
  return traffic | _ablation(machines[MACHINE], savings, _bound_seconds)


def no_relay_gain(values: witness_lib.Values) -> str:
  """Returns the gain of a free relay on layers where relay gains nothing."""
  gains = {name: values[_layer_name(_RELAY_STEP, name)] for name in LAYERS}
  return '; '.join(
    f'{name}: {gain:.2f}x, and '
    f'{values[_layer_name(_FREE_RELAY, name)]:.2f}x if it cost nothing'
    for name, gain in gains.items()
    if gain <= 1
  )


def no_tuner_gain(values: witness_lib.Values) -> str:
  """Returns the layers on which the tuner gains no more than relay."""
  gains = {
    name: [
      values[_layer_name(step, name)] for step in (_TUNER_STEP, _RELAY_STEP)
    ]
    for name in LAYERS
  }
  return '; '.join(
    f'{name}: {gain:.2f}x, relay {max(1.0, relay):.2f}x'
    for name, (gain, relay) in gains.items()
    if gain <= max(1.0, relay)
  )


WITNESS = witness_lib.Witness(
  **witness_lib.load_fields('uniep'),
  machines=(MACHINE,),
  quick=False,
  rows=tuple(_rows()),
  run=_run,
  roofline=_roofline,
  claims=(
    witness_lib.Claim('relay alone gains on every layer', no_relay_gain),
    witness_lib.Claim(
      'tuner and priority gain on every layer, and more than relay',
      no_tuner_gain,
    ),
  ),
)
