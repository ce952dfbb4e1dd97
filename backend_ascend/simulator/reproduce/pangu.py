"""Pangu Ultra MoE (arXiv 2505.04519), and other published training plans.

What is told of Pangu are ratios, between runs of which no text has the batch,
the order of a baseline, or which NPU it was: so one scale is fitted to the rate
of the fast run, and the ratios are held out.  What DeepSeek and Megatron Bridge
tell of Hopper GPUs is held out whole: nothing is fitted there.
"""

from collections.abc import Callable, Iterator
import dataclasses

from hpmoe.backend_ascend.simulator import simulate
from hpmoe.backend_ascend.simulator.machines import machine as machine_lib
from hpmoe.backend_ascend.simulator.plan import collectives
from hpmoe.backend_ascend.simulator.plan import decoder_sizes
from hpmoe.backend_ascend.simulator.plan import moe_layer
from hpmoe.backend_ascend.simulator.plan import plan as plan_lib
from hpmoe.backend_ascend.simulator.plan import published
from hpmoe.backend_ascend.simulator.plan import search
from hpmoe.backend_ascend.simulator.plan import step
from hpmoe.backend_ascend.simulator.plan import unit_costs
from hpmoe.backend_ascend.simulator.reproduce import compiled_layers
from hpmoe.backend_ascend.simulator.reproduce import witness as witness_lib

Plan = plan_lib.Plan
Row = witness_lib.Row
NPU, GPU, DGX = 'ascend_a2', 'hopper', 'hopper_dgx'

_PAPER = 'arXiv 2505.04519, reading notes'
_PRESS = 'press report of 30 May 2025'

_PANGU = published.PANGU_ULTRA_MOE
_SEQUENCE = 8192  # of the later run, taken for all
# Two sequences an NPU, which is 128 micro-batches: no text has the number.
_SEQUENCES = 2

_FAST = 'tokens/s of an NPU, 6144 NPUs'
_GAIN = 'MFU, 30.0 % over 18.9 %'
_DEPTH = 'throughput, 61 layers over 66'
_LATER = 'MFU, 41 % over 30.0 %'
_COPIES = 'copies between nodes, by nodes over by rows'
_MLA, _GQA = 'MLA, share of the peak', 'GQA, share of the peak'
_PLANS, _SLOWER = 'plans', 'published plan, its time over that of the best'
_MIN_PLANS = 10_000


@dataclasses.dataclass(frozen=True)
class Run:
  """A published run.

  Attributes:
    machine: by name.
    plan: its parallelism.
    changes: of `plan.Setting`, beside model, machine and devices.
    model: sizes.
  """

  machine: str
  plan: Plan
  changes: tuple[tuple[str, object], ...]
  model: decoder_sizes.Model = _PANGU

  def setting(self, machines: witness_lib.Machines) -> plan_lib.Setting:
    return plan_lib.Setting(
      self.model,
      machines[self.machine],
      self.plan.devices,
      **dict(self.changes),  # type: ignore[arg-type]
    )


_ALL = frozenset({'exchange', 'pipeline', 'gradients'})


def _pangu(dp: int, micro_batch: int = 2, recompute='cheap', **changes) -> Run:
  plan = Plan(8, 16, 2, 4, dp, micro_batch, 0, recompute)
  settings = dict(
    sequence=_SEQUENCE,
    global_batch=_SEQUENCES * plan.devices,
    fused=False,
    exchange='nodes',
    overlap=_ALL,
  )
  return Run(NPU, plan, tuple((settings | changes).items()))


_AFTER = _pangu(48)
# 4096 NPUs; rows one by one, and nothing hides an exchange or a send.
_BEFORE = _pangu(32, exchange='flat', overlap=frozenset())
_LARGER = _pangu(80, micro_batch=4)


def _gpu(machine, model, plan, batch, **changes) -> Run:
  settings = dict(
    sequence=4096, global_batch=batch, fused=False, element='int8'
  )
  if 'overlap' in changes:
    changes['overlap'] = frozenset(changes['overlap'])
  plan, model = Plan(**plan), published.MODELS[model]
  return Run(machine, plan, tuple((settings | changes).items()), model)


# FP8 products are as fast as int8 ones on a Hopper.  EP of Megatron counts TP
# ranks, too.
_GPU_RUNS: dict[str, tuple[Run, float, str]] = {
  name: (_gpu(**entry['run']), entry['tokens'], entry['source'])
  for name, entry in witness_lib.published('pangu')['gpus'].items()
}


def _rate_row(name: str) -> str:
  return f'tokens/s of a GPU, {name}'


def _rows() -> Iterator[Row]:
  yield Row(_FAST, 1.46e6 / 6144, 'tokens/s', 'rate', _PAPER, fitted=True)
  for name, value, source in (
    (_GAIN, 30.0 / 18.9, _PAPER),
    (_DEPTH, 1.15, _PAPER),
    (_LATER, 41.0 / 30.0, _PRESS),
  ):
    yield Row(name, value, 'x', 'ratios', source)
  yield Row(_COPIES, 0.5, 'x', 'copies', _PAPER)
  for name, (_, value, source) in _GPU_RUNS.items():
    yield Row(_rate_row(name), value, 'tokens/s', 'GPUs', source)


class Rates:
  """Tokens per second of a device; each layer is simulated once."""

  def __init__(self, machines: witness_lib.Machines, tell: witness_lib.Tell):
    self.machines = machines
    self.layers = {
      name: moe_layer.Timer(machine, tell) for name, machine in machines.items()
    }

  def __call__(self, run: Run) -> float:
    """Returns tokens/s of a device under the best padding of the plan."""
    return compiled_layers.cache_result(
      run, self.machines[run.machine], lambda: self._best(run)
    )

  def _best(self, run: Run) -> float:
    setting = run.setting(self.machines)
    costs = unit_costs.Costs(setting, self.layers[run.machine])
    return max(
      step.cost(costs, plan).tokens_per_second for plan in _padded(run.plan)
    )


def _padded(plan: Plan) -> list[Plan]:
  pads = search.PADS if plan.pp > 1 else (0,)
  return [dataclasses.replace(plan, pad=pad) for pad in pads]


def _with_settings(run: Run, **changes) -> Run:
  return dataclasses.replace(
    run, changes=tuple((dict(run.changes) | changes).items())
  )


class Peaks:
  """The same by a roofline: the busiest resource of all stages at its peak."""

  def __init__(self, machines: witness_lib.Machines):
    self.machines = machines

  def __call__(self, run: Run) -> float:
    """Returns tokens/s of a device."""
    setting = run.setting(self.machines)
    machine, share = setting.machine, setting.share(run.plan)
    whole = machine.with_figures(collective=1.0)
    cube = machine[simulate.ELEMENTS[setting.element][1]]
    products = memory = tensor = exchange = 0.0
    for kind in run.model.units():
      unit = share.unit(kind)
      for operator in unit.operators:
        rate = cube if operator.linear else machine['cube_bf16']
        products += 3 * operator.flops / (machine['aic'] * rate)
        memory += 3 * operator.bytes_moved / machine['hbm']
      tensor += 2 * sum(
        collectives.all_gather(whole, size, run.plan.tp)
        for size in (*unit.gathered, *unit.scattered)
      )
      if layer := unit.routed:
        flops = 18.0 * layer.rows * layer.hidden * layer.width
        products += flops / (machine['aic'] * cube)
        exchange += 4 * moe_layer.link_seconds(whole, layer)
    busiest = max(products, memory, tensor, exchange)
    return share.tokens / run.plan.tp / busiest


def _values(rate: Callable[[Run], float]) -> dict[str, float]:
  after = rate(_AFTER)
  deeper = dataclasses.replace(
    _AFTER, model=dataclasses.replace(_PANGU, layers=66)
  )
  return {
    _FAST: after,
    _GAIN: after / rate(_BEFORE),
    _DEPTH: after / rate(deeper),
    _LATER: rate(_LARGER) / after,
  } | {_rate_row(name): rate(run) for name, (run, _, _) in _GPU_RUNS.items()}


def attention_share(
  machine: machine_lib.Machine, model: decoder_sizes.Model
) -> float:
  """Returns the share of the peak that attention reaches, forward."""
  setting = plan_lib.Setting(model, machine, 8, _SEQUENCE)
  unit = setting.share(Plan(tp=8, micro_batch=2)).unit(decoder_sizes.MOE)
  names = [operator.name for operator in unit.operators]
  attention = unit.operators[: names.index('out') + 1]
  seconds = sum(operator.seconds(machine) for operator in attention)
  flops = sum(operator.flops for operator in attention)
  return flops / seconds / (machine['aic'] * machine['cube_bf16'])


# With grouped queries: as many heads, eight of keys.
_GROUPED = dataclasses.replace(
  _PANGU, kv_heads=8, qk_dim=128, q_rank=0, kv_rank=0, rope_dim=0
)


def _copies(machine: machine_lib.Machine) -> float:
  share = _AFTER.setting({NPU: machine}).share(_AFTER.plan)
  layer = share.unit(decoder_sizes.MOE).routed
  assert layer
  by_rows = dataclasses.replace(layer, exchange='flat')
  far, all_far = (
    moe_layer.count_sent(machine, layer_variant)[-1]
    for layer_variant in (layer, by_rows)
  )
  return far / all_far


def _searched(machines, rates: Rates, tell) -> dict[str, float]:
  """Returns how the published plan compares with the best that fits."""
  setting = _AFTER.setting(machines)
  layers = rates.layers[NPU]
  plan = _AFTER.plan
  fixed_fields = dict(
    tp=(plan.tp,), pp=(plan.pp,), vpp=(plan.vpp,), ep=(plan.ep,)
  )
  best = search.search(setting, layers, 1, tell=tell)
  published = search.search(setting, layers, 1, fixed_fields, tell)
  first = best.ranked[0]
  return {
    _PLANS: float(best.plans - best.num_refused),
    _SLOWER: published.ranked[0].seconds / first.seconds,
  } | {
    f'best {n}': float(getattr(first.plan, n))
    for n in ('tp', 'pp', 'vpp', 'ep', 'micro_batch')
  }


def _run_rows(machines: witness_lib.Machines, tell) -> dict[str, float]:
  values = _values(Rates(machines, tell))
  return values | {_COPIES: _copies(machines[NPU])}


def _run(machines: witness_lib.Machines, tell) -> dict[str, float]:
  rates, npu = Rates(machines, tell), machines[NPU]
  return (
    _run_rows(machines, tell)
    | {
      _MLA: attention_share(npu, _PANGU),
      _GQA: attention_share(npu, _GROUPED),
    }
    | compiled_layers.cache_result(
      _PLANS, npu, lambda: _searched(machines, rates, tell)
    )
  )


def _run_fitted(machines: witness_lib.Machines, tell) -> dict[str, float]:
  return {_FAST: Rates(machines, tell)(_AFTER)}


# What is taken, and in place of what, as a change of runs.
_HYPOTHESES: dict[str, Callable[[Run], Run]] = {
  'no MTP head: with its logits it is the slowest stage, whatever the depth': (
    lambda run: dataclasses.replace(
      run, model=dataclasses.replace(run.model, mtp=0)
    )
  ),
  'the run before computes layers twice; what it keeps would not fit': (
    lambda run: dataclasses.replace(
      run,
      plan=dataclasses.replace(
        run.plan, recompute='layer' if run == _BEFORE else run.plan.recompute
      ),
    )
  ),
  'Megatron Bridge sends a token once to a node, not each row': (
    lambda run: (
      _with_settings(run, exchange='nodes') if run.machine == DGX else run
    )
  ),
  'Megatron Bridge hides the exchange behind products': (
    lambda run: _with_settings(run, overlap=_ALL) if run.machine == DGX else run
  ),
}


def _variant(text: str) -> witness_lib.Variant:
  change = _HYPOTHESES[text]

  def run(machines: witness_lib.Machines, tell) -> dict[str, float]:
    rates = Rates(machines, tell)
    values = _values(lambda other_run: rates(change(other_run)))
    return values | {_COPIES: _copies(machines[NPU])}

  def run_fitted(machines: witness_lib.Machines, tell) -> dict[str, float]:
    return {_FAST: Rates(machines, tell)(change(_AFTER))}

  return witness_lib.Variant(
    text,
    dataclasses.replace(
      WITNESS.of_rows(), run=run, run_fitted=run_fitted, variants=()
    ),
  )


def _roofline(machines: witness_lib.Machines) -> dict[str, float]:
  return _values(Peaks(machines)) | {_COPIES: _copies(machines[NPU])}


def why_not_first(values: witness_lib.Values) -> str:
  """Returns which plan is the first, and by how much; '': the published one."""
  if values[_PLANS] >= _MIN_PLANS and values[_SLOWER] == 1.0:
    return ''
  names = dict(TP='tp', PP='pp', VPP='vpp', EP='ep', MBS='micro_batch')
  best = ' '.join(
    f'{n}{values[f"best {field}"]:.0f}' for n, field in names.items()
  )
  return (
    f'of {values[_PLANS]:,.0f} plans {best} is first, '
    f'{values[_SLOWER]:.2f} times as fast; batch, NPU and swapping to the host '
    'are not published'
  )


def _mla_no_nearer(values: witness_lib.Values) -> str:
  if values[_MLA] > values[_GQA]:
    return ''
  return (
    f'products bound both: {values[_MLA]:.1%} and {values[_GQA]:.1%} of the '
    'peak; which grouped queries is not published'
  )


WITNESS = witness_lib.Witness(
  **witness_lib.load_fields('pangu'),
  machines=(NPU, GPU, DGX),
  quick=False,
  rows=tuple(_rows()),
  run=_run,
  run_fitted=_run_fitted,
  run_rows=_run_rows,
  roofline=_roofline,
  fits=(witness_lib.Fit(NPU, 'run_share', (_FAST,), 0.5709),),
  claims=(
    witness_lib.Claim(
      'MLA is nearer the roofline than grouped queries of eight heads',
      _mla_no_nearer,
    ),
    witness_lib.Claim(
      f'TP8 PP16 VPP2 EP4 is the first of at least {_MIN_PLANS:,} plans',
      why_not_first,
    ),
  ),
)
WITNESS = dataclasses.replace(
  WITNESS, variants=tuple(_variant(text) for text in _HYPOTHESES)
)
