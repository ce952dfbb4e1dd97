"""The tables of CAIS (arXiv 2605.05628), by the systems of `cais_systems`.

The paper's text gives only maxima and geometric means over its models, not the
bars of its figures; tiles, their order, the split of SMs, credits and GEMM
rates are not published, nor how a GPU that is ahead of its peers is delayed: we
assume that a tile is sent when all earlier tiles that exceed half of the merge
table have been sent.
"""

from collections.abc import Iterator
import dataclasses

from hpmoe.backend_ascend.simulator.reproduce import cais_systems
from hpmoe.backend_ascend.simulator.reproduce import factors as factors_lib
from hpmoe.backend_ascend.simulator.reproduce import witness as witness_lib

Row = witness_lib.Row
MACHINE = 'cais'
_PAPER = 'arXiv 2605.05628, reading notes'


@dataclasses.dataclass(frozen=True)
class Model:
  """A published workload.

  Attributes:
    hidden: width.
    ffn: width of an FFN.
    ups: matrices of the first FFN: two where it is gated.
    seq: tokens of a sequence.
    batch: sequences.
  """

  hidden: int
  ffn: int
  ups: int
  seq: int
  batch: int

  @property
  def tokens(self) -> int:
    return self.seq * self.batch

  def sub_layers(self, ranks: int = 8) -> dict[str, cais_systems.SubLayer]:
    """Returns L1, L2 forward and L3, L4 backward."""
    out, qkv = self.hidden / ranks, 3 * self.hidden / ranks
    up, down = self.ups * self.ffn / ranks, self.ffn / ranks
    ends = dict(L1=(out, up), L2=(down, qkv), L3=(up, out), L4=(qkv, down))
    return {
      name: cais_systems.SubLayer(self.tokens, self.hidden, *sizes, ranks)
      for name, sizes in ends.items()
    }

  def attention(self, ranks: int = 8) -> float:
    """Returns flops of a rank, forward, half of them masked."""
    return 2.0 * self.tokens * self.seq * self.hidden / ranks


MODELS = {
  'Mega-GPT-4B': Model(2048, 8192, 1, 1024, 16),
  'Mega-GPT-8B': Model(3072, 12288, 1, 1024, 12),
  'LLaMA-7B': Model(4096, 11264, 2, 3072, 3),
}
_LLAMA = 'LLaMA-7B'
FULL = Model(8192, 22528, 2, 3072, 3)

# Speed-up of CAIS over each baseline.
FACTORS = witness_lib.published('cais')['factors']
BASELINES = tuple(FACTORS['sub-layer'])
_SHARE = 'communication over computation, LLaMA-7B'
_TABLE = 'table a port without coordination'
_SCALE = 'gain over TP-NVLS at full over half scale'
_USES = {'CAIS-Base': 62.4, 'CAIS-Partial': 84.7, 'CAIS': 90.2}
_PORTS = 32  # of all switches
# GPUs; hidden size and FFN width grow in proportion.
_GPUS = (8, 16, 32)


def _use_name(system: str) -> str:
  return f'link use, {system}'


def gpus_name(ranks: int) -> str:
  return f'seconds at {ranks} GPUs'


def _rows() -> Iterator[Row]:
  yield Row(_SHARE, 1.6, '1', 'share', _PAPER)
  for group, _, name, value in factors_lib.published(FACTORS):
    yield Row(name, value, 'x', group, _PAPER)
  for system, use in _USES.items():
    yield Row(_use_name(system), use, '%', 'link use', _PAPER)
  yield Row(_TABLE, 250.0, 'KB', 'table', _PAPER)
  yield Row(_SCALE, 1.43 / 1.40, '1', 'scale', _PAPER)


def _serial(model: Model, machine) -> tuple[float, float]:
  """Returns the seconds of attention and of weight gradients on one rank."""
  speed = cais_systems.rate(machine) * machine['aic']
  sub_layers = model.sub_layers()
  grads = sub_layers['L1'].flops + sub_layers['L2'].flops
  return model.attention() / speed, grads / speed


def _times(model: Model, machine, seconds) -> dict[str, float]:
  """Returns seconds by group, and by sub-layer."""
  sub_layer_times = {n: seconds(n, s) for n, s in model.sub_layers().items()}
  attention, grads = _serial(model, machine)
  prefill = sub_layer_times['L1'] + sub_layer_times['L2'] + attention
  # Backward attention has five products for two.
  backward = (
    sub_layer_times['L3'] + sub_layer_times['L4'] + 2.5 * attention + grads
  )
  return sub_layer_times | dict(prefill=prefill, training=prefill + backward)


def _all_times(machine, seconds):
  """Returns seconds by system, model, and group or sub-layer."""
  return {
    system: {
      name: _times(model, machine, seconds(system))
      for name, model in MODELS.items()
    }
    for system in (*BASELINES, 'CAIS')
  }


def _factors(times) -> dict[str, float]:
  """Returns rows from seconds by system, model and group or sub-layer."""
  values: dict[str, float] = {}
  for group, systems in FACTORS.items():
    for system in systems:
      gains = [
        times[system][model][part] / times['CAIS'][model][part]
        for model in MODELS
        for part in (
          ('L1', 'L2', 'L3', 'L4') if group == 'sub-layer' else (group,)
        )
      ]
      values |= factors_lib.values(group, system, gains)
  return values


def _compute_seconds(machine) -> float:
  """Returns the compute seconds of LLaMA-7B under TP-NVLS, with norms."""
  sub_layers = MODELS[_LLAMA].sub_layers()
  speed = cais_systems.rate(machine) * machine['aic']
  norms = 2 * cais_systems.norm_seconds(machine, sub_layers['L1'].size)
  attention, _ = _serial(MODELS[_LLAMA], machine)
  return (
    (sub_layers['L1'].flops + sub_layers['L2'].flops) / speed
    + norms
    + attention
  )


def _share(machine, times) -> float:
  """Returns the ratio of communication to computation of TP-NVLS."""
  attention, _ = _serial(MODELS[_LLAMA], machine)
  compute_seconds = _compute_seconds(machine)
  return (
    times['L1'] + times['L2'] + attention - compute_seconds
  ) / compute_seconds


def _uses(machine) -> dict[str, float]:
  """Returns link use of LLaMA-7B's L2, as published."""
  sub_layer = MODELS[_LLAMA].sub_layers()['L2']
  values = {}
  for system in _USES:
    timing = cais_systems.SYSTEMS[system](sub_layer, machine)
    seconds = cais_systems.simulate_seconds(system, sub_layer, machine)
    values[_use_name(system)] = 100 * cais_systems.link_use(
      timing, seconds, machine
    )
  unlimited = machine.with_figures(merge_table=1e12, merge_timeout=0.0)
  table_bytes = cais_systems.cais_base(sub_layer, unlimited).sessions['peak']
  return values | {_TABLE: table_bytes / _PORTS / 1e3}


def _gain(model: Model, machine) -> float:
  sub_layer = model.sub_layers()['L2']
  return cais_systems.simulate_seconds(
    'TP-NVLS', sub_layer, machine
  ) / cais_systems.simulate_seconds('CAIS', sub_layer, machine)


def _run(machines: witness_lib.Machines, tell) -> dict[str, float]:
  machine = machines[MACHINE]

  def seconds(system: str):
    def simulate(name: str, sub_layer: cais_systems.SubLayer) -> float:
      tell(f'{system}, {name}')
      return cais_systems.simulate_seconds(system, sub_layer, machine)

    return simulate

  times = _all_times(machine, seconds)
  tell('links, table, scale')
  values = _factors(times) | _uses(machine)
  values[_SHARE] = _share(machine, times['TP-NVLS'][_LLAMA])
  full = machine.with_figures(aic=2 * machine['aic'])
  values[_SCALE] = _gain(FULL, full) / _gain(MODELS[_LLAMA], machine)
  for ranks in _GPUS:
    tell(f'{ranks} GPUs')
    model = MODELS['Mega-GPT-4B']
    scaled = dataclasses.replace(
      model, hidden=model.hidden * ranks // 8, ffn=model.ffn * ranks // 8
    )
    sub_layer = scaled.sub_layers(ranks)['L2']
    values[gpus_name(ranks)] = (
      cais_systems.simulate_seconds('CAIS', sub_layer, machine)
      / sub_layer.flops
    )
  return values


def _bound_seconds(
  system: str, sub_layer: cais_systems.SubLayer, machine
) -> float:
  """Returns the roofline: the seconds that a link or all SMs need at peak."""
  peak = machine['cube_bf16'] * machine['aic']
  first_seconds, second_seconds = (
    2.0 * sub_layer.tokens * sub_layer.hidden * side / peak
    for side in (sub_layer.depth, sub_layer.width)
  )
  whole = sub_layer.size / machine['nvlink']
  scattered = whole * (sub_layer.ranks - 1) / sub_layer.ranks
  norm = cais_systems.norm_seconds(machine, sub_layer.size)
  shared_norm = norm / sub_layer.ranks
  if system in ('CAIS', 'CAIS-Partial'):
    return max(first_seconds + second_seconds, whole)
  if system in ('T3', 'T3-N', 'CAIS-Base'):
    return (
      max(first_seconds, scattered)
      + shared_norm
      + max(second_seconds, scattered)
    )
  if system == 'SP-NVLS':
    return first_seconds + second_seconds + shared_norm + 2 * scattered
  reduced = whole * (sub_layer.ranks + 1) / sub_layer.ranks
  if system == 'TP-NVLS':
    return first_seconds + second_seconds + norm + reduced
  transfer = reduced if system.endswith('-N') else 2 * scattered
  return max(first_seconds, transfer) + norm + second_seconds


def _roofline(machines: witness_lib.Machines) -> dict[str, float]:
  machine = machines[MACHINE].at_peak()

  def seconds(system: str):
    return lambda _, s: _bound_seconds(system, s, machine)

  times = _all_times(machine, seconds)
  uses = {_use_name(system): 100.0 for system in _USES}
  table_kilobytes = machine['nvlink'] * machine['request_skew'] / _PORTS / 1e3
  return _factors(times) | uses | {_TABLE: table_kilobytes, _SCALE: 1.0}


def out_of_order(values: witness_lib.Values) -> str:
  """Returns baselines out of the published order, but for near ties."""
  published = {s: mean for s, (_, mean) in FACTORS['sub-layer'].items()}
  gains = {
    s: values[factors_lib.row_name('sub-layer', s, 'geomean')]
    for s in published
  }
  return '; '.join(
    f'{a} {gains[a]:.2f}, {b} {gains[b]:.2f}'
    for a in published
    for b in published
    if published[a] > 1.05 * published[b] and gains[a] <= gains[b]
  )


def growth(values: witness_lib.Values) -> str:
  """Returns the growth of the time per flop with GPUs, if it is over 5 %."""
  times = [values[gpus_name(ranks)] for ranks in _GPUS]
  if max(times) <= 1.05 * times[0]:
    return ''
  return ', '.join(
    f'{ranks} GPUs: {time / times[0] - 1:+.1%}'
    for ranks, time in zip(_GPUS[1:], times[1:])
  )


_BASE = witness_lib.Witness(
  **witness_lib.load_fields('cais'),
  machines=(MACHINE,),
  quick=False,
  rows=tuple(_rows()),
  run=_run,
  roofline=_roofline,
  claims=(
    witness_lib.Claim(
      'baselines are slower than CAIS in the published order', out_of_order
    ),
    witness_lib.Claim(
      'time per flop grows by 5 % at most to 16 and 32 GPUs', growth
    ),
  ),
)


def _ring_share(machine) -> dict[str, float]:
  """Returns the share if the all-reduce used no switches."""
  size = MODELS[_LLAMA].sub_layers()['L1'].size
  packets = 1 + machine['header_flits'] * machine['flit'] / machine['packet']
  ring_seconds = 2 * 2 * size * 7 / 8 * packets / machine['nvlink']
  return {_SHARE: ring_seconds / _compute_seconds(machine)}


def _run_with_ring(machines: witness_lib.Machines, tell) -> dict[str, float]:
  return _run(machines, tell) | _ring_share(machines[MACHINE])


WITNESS = dataclasses.replace(
  _BASE,
  variants=(
    # Only norms pass memory here.
    witness_lib.under(
      _BASE, 'norms take no time, not that of memory', MACHINE, hbm=1e30
    ),
    witness_lib.Variant(
      '1.6 is of an all-reduce by ring, not by switches',
      dataclasses.replace(_BASE, run=_run_with_ring),
    ),
  ),
)
