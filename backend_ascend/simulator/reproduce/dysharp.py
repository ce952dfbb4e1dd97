"""DySHARP (arXiv 2605.05607): experts over switches that copy and add by lists.

The paper's text gives only maxima and geometric means over nine layers, not the
bars of its figures.  Routing is drawn uniformly: the paper gives a spread
(0.032) and does not say of which quantity.
"""

from collections.abc import Callable, Iterator, Mapping
import dataclasses
import functools
import itertools
import math

from hpmoe.backend_ascend.simulator.flows import flow as flow_lib
from hpmoe.backend_ascend.simulator.reproduce import dysharp_flows as flows
from hpmoe.backend_ascend.simulator.reproduce import factors as factors_lib
from hpmoe.backend_ascend.simulator.reproduce import witness as witness_lib

Row = witness_lib.Row
MACHINE = 'dysharp'
_PAPER = 'arXiv 2605.05607, reading notes'

# (hidden, width of an expert, experts, tokens of a GPU).
SIZES = {
  'S': (2048, 512, 64, 2048),
  'M': (4096, 1024, 128, 4096),
  'L': (7168, 2048, 256, 8192),
}
LAYERS = {
  f'{size}-{top_k}': flows.Layer(*sizes, top_k)
  for size, sizes in SIZES.items()
  for top_k in (8, 16, 32)
}
# Speed-up of DySHARP over each baseline.
FACTORS = witness_lib.published('dysharp')['factors']
# Baselines that hide a share of the shorter of GEMMs and exchange.
OVERLAPS = {
  'FasterMoE': 'overlap_fastermoe',
  'Tutel': 'overlap_tutel',
  'CCFuser': 'overlap_ccfuser',
}
_SIMULATORS: Mapping[str, Callable] = {
  'DeepEP': flows.deepep,
  'NVLS': flows.nvls,
  'COMET': flows.comet,
  'DySHARP': flows.dysharp,
}
_SHARE = 'exchange of L-8 under DeepEP'
_USELESS = 'useless traffic of NVLS, L-8'
_PAYLOAD = 'payload of a packet with eight targets'
_IDEAL = 'dispatch and combine alone, of ideal'
_BASIC, _FUSION = 'addressing alone over DeepEP', 'fusion alone over COMET'
_GPUS, _TOKENS = (4, 16, 64), (1024, 4096, 16384)


def _mean_name(system: str) -> str:
  return factors_lib.row_name('layer', system, 'geomean')


def _rows() -> Iterator[Row]:
  yield Row(_SHARE, 70.4, '%', 'share', _PAPER, fitted=True)
  for group, system, name, value in factors_lib.published(FACTORS):
    fitted = _mean_name(system) if system in OVERLAPS else ''
    yield Row(
      name,
      value,
      'x',
      group,
      _PAPER,
      fitted=name == fitted,
      nearest=fitted if name != fitted else '',
    )
  yield Row(_USELESS, 340.0, '%', 'traffic', _PAPER)
  yield Row(_PAYLOAD, 80.0, '%', 'traffic', _PAPER)


def _compute_seconds(layer: flows.Layer, machine) -> float:
  """Returns the seconds of a rank's GEMMs for the mean number of rows."""
  return layer.tokens * layer.top_k * layer.row_flops / flows.rate(machine)


def _attention(layer: flows.Layer, machine) -> float:
  """Returns the forward seconds of projections and of half of the scores."""
  flops = (
    layer.tokens * layer.hidden * (8.0 * layer.hidden + 2.0 * layer.tokens)
  )
  return flops / flows.rate(machine)


Seconds = Callable[[str, flows.Layer], float]


def _with_overlaps(seconds: Seconds, machine, layer: flows.Layer):
  """Returns seconds by system."""
  times = {system: seconds(system, layer) for system in _SIMULATORS}
  products = _compute_seconds(layer, machine)
  exchange = times['DeepEP'] - products
  for system, figure in OVERLAPS.items():
    hidden = machine[figure] * min(products, exchange)
    times[system] = times['DeepEP'] - hidden
  return times


def _gains(
  seconds: Seconds, machine, groups=tuple(FACTORS)
) -> dict[str, float]:
  values: dict[str, float] = {}
  layer_times = {
    name: _with_overlaps(seconds, machine, layer)
    for name, layer in LAYERS.items()
  }
  by_group = {'layer': layer_times}
  if 'training' in groups:
    by_group['training'] = {}
    for name, layer in LAYERS.items():
      back = dataclasses.replace(layer, passes=2)
      backward = _with_overlaps(seconds, machine, back)
      attention = 3 * _attention(layer, machine)
      by_group['training'][name] = {
        system: forward + backward[system] + attention
        for system, forward in layer_times[name].items()
      }
  for group, times in by_group.items():
    for system in FACTORS[group]:
      gains = [
        systems[system] / systems['DySHARP'] for systems in times.values()
      ]
      values |= factors_lib.values(group, system, gains)
  return values


def _simulate_with(machine, tell) -> Seconds:
  def seconds(system: str, layer: flows.Layer) -> float:
    tell(
      f'{system}: hidden {layer.hidden}, top-{layer.top_k}, '
      f'{layer.passes} passes'
    )
    return _SIMULATORS[system](layer, machine).total

  return seconds


def _share(machine) -> float:
  layer = LAYERS['L-8']
  seconds = flows.deepep(layer, machine).total
  return 100 * (1 - _compute_seconds(layer, machine) / seconds)


def _run_fitted(machines: witness_lib.Machines, tell) -> dict[str, float]:
  machine = machines[MACHINE]
  return {_SHARE: _share(machine)} | _gains(
    _simulate_with(machine, tell), machine, ('layer',)
  )


def payload(machine) -> float:
  """Returns the share of payload, once up and down to eight ranks."""
  flow = flow_lib.Flow(9)
  task = flow.add_tasks(flow.add_pools(1)[0], 0.0)
  message = flow.add_messages(task, flow_lib.Op.PUT, 0, machine['packet'])
  for peer in range(1, 9):
    flow.add_peers(message, peer)
  timing = flow_lib.simulate(flow, machine)
  carried_bytes = timing.up_bytes.sum() + timing.down_bytes.sum()
  return 9 * machine['packet'] / float(carried_bytes)


def compute_ideal_share(layer: flows.Layer, machine) -> float:
  """Returns the ideal time of dispatch and combine over their time."""
  free = machine.with_figures(cube_int8=1e30)
  timing = flows.dysharp(layer, free)
  links = max(timing.up_bytes.max(), timing.down_bytes.max())
  return float(links / machine['nvlink'] / timing.total)


def gpus_name(size: str, ranks: int) -> str:
  return f'{size}-8 over DeepEP, {ranks} GPUs'


def tokens_name(size: str, tokens: int) -> str:
  return f'{size}-8 over DeepEP, {tokens} tokens'


def _growth(machine, tell) -> dict[str, float]:
  values = {}
  for size in ('S', 'M'):
    layer = LAYERS[f'{size}-8']
    scaled_layers = {
      gpus_name(size, n): dataclasses.replace(layer, ranks=n) for n in _GPUS
    }
    scaled_layers |= {
      tokens_name(size, n): dataclasses.replace(layer, tokens=n)
      for n in _TOKENS
    }
    for name, scaled_layer in scaled_layers.items():
      tell(name)
      base = flows.deepep(scaled_layer, machine).total
      values[name] = base / flows.dysharp(scaled_layer, machine).total
  return values


def _run_rows(machines: witness_lib.Machines, tell) -> dict[str, float]:
  machine = machines[MACHINE]
  copies = flows.count_remote_ranks(LAYERS['L-8'])
  return _gains(_simulate_with(machine, tell), machine) | {
    _SHARE: _share(machine),
    _USELESS: 100 * (LAYERS['L-8'].ranks - 1 - copies) / copies,
    _PAYLOAD: 100 * payload(machine),
  }


def _run(machines: witness_lib.Machines, tell) -> dict[str, float]:
  machine = machines[MACHINE]
  values = _run_rows(machines, tell) | _growth(machine, tell)
  tell('parts')
  small = LAYERS['S-8']
  basic = flows.dysharp(small, machine, flows.Parts(fused=False))
  fusion = flows.dysharp(small, machine, flows.Parts(multicast=False))
  return values | {
    _IDEAL: compute_ideal_share(LAYERS['M-8'], machine),
    _BASIC: flows.deepep(small, machine).total / basic.total,
    _FUSION: flows.comet(small, machine).total / fusion.total,
  }


def _expect_remote_ranks(layer: flows.Layer) -> float:
  """Returns the expected number of other ranks with experts of a token."""
  local = layer.experts // layer.ranks
  no_local_share = math.comb(layer.experts - local, layer.top_k) / math.comb(
    layer.experts, layer.top_k
  )
  return (layer.ranks - 1) * (1 - no_local_share)


def two_numbers(system: str, layer: flows.Layer) -> float:
  """Returns a time in units in which L-8 under DeepEP takes 1.

  The exchange takes 0.704 of that.  GEMMs grow with top_k x width, the exchange
  grows with copies; phases that overlap do so perfectly.
  """
  base = LAYERS['L-8']
  copies = _expect_remote_ranks(layer)
  exchange = 0.704 * copies / _expect_remote_ranks(base)
  scale = layer.top_k * layer.ffn * layer.passes / (base.top_k * base.ffn)
  products = 0.296 * scale
  if system == 'DySHARP':
    return max(products, exchange * (1 + copies) / (2 * copies))
  if system == 'COMET':
    return max(products, exchange)
  if system == 'NVLS':
    return products + exchange * (layer.ranks - 1) / copies
  return products + exchange


def _roofline(machines: witness_lib.Machines) -> dict[str, float]:
  machine = machines[MACHINE]
  base = LAYERS['L-8']
  # The rate at which GEMMs take the modelled time, for attention and overlaps.
  rate = flows.rate(machine) * _compute_seconds(base, machine) / 0.296

  def seconds(system: str, layer: flows.Layer) -> float:
    size = layer.tokens * layer.hidden / (base.tokens * base.hidden)
    return two_numbers(system, layer) * size

  scaled = machine.with_figures(
    cube_int8=machine['cube_int8'] * rate / flows.rate(machine)
  )
  return _gains(seconds, scaled)


def no_growth(name, numbers, values: witness_lib.Values) -> str:
  """Returns the gains of both sizes, unless each is more than the last."""
  gains = {
    size: [values[name(size, number)] for number in numbers]
    for size in ('S', 'M')
  }
  if all(a < b for g in gains.values() for a, b in itertools.pairwise(g)):
    return ''
  return '; '.join(
    f'{size}-8: ' + ', '.join(f'{gain:.2f}' for gain in series)
    for size, series in gains.items()
  )


def _no_faster(text: str, row: str) -> witness_lib.Claim:
  return witness_lib.Claim(
    text,
    lambda values: f'{values[row]:.2f}x' if values[row] > 1.05 else '',
  )


_SHARE_ROW = (_SHARE,)
WITNESS = witness_lib.Witness(
  **witness_lib.load_fields('dysharp'),
  machines=(MACHINE,),
  quick=False,
  rows=tuple(_rows()),
  run=_run,
  run_fitted=_run_fitted,
  run_rows=_run_rows,
  roofline=_roofline,
  fits=(
    witness_lib.Fit(MACHINE, 'nvlink', _SHARE_ROW, value=316.3722e9),
    *(
      witness_lib.Fit(MACHINE, figure, (_mean_name(system),), value=value)
      for (system, figure), value in zip(
        OVERLAPS.items(), (0.012465, 0.414401, 0.677261)
      )
    ),
  ),
  claims=(
    witness_lib.Claim(
      'dispatch and combine alone reach 90 % of ideal',
      lambda values: f'{values[_IDEAL]:.1%}' if values[_IDEAL] < 0.9 else '',
    ),
    _no_faster('addressing alone is no faster than DeepEP', _BASIC),
    _no_faster('fusion alone is no faster than COMET', _FUSION),
    witness_lib.Claim(
      'gains grow with GPUs', functools.partial(no_growth, gpus_name, _GPUS)
    ),
    witness_lib.Claim(
      'gains grow with length',
      functools.partial(no_growth, tokens_name, _TOKENS),
    ),
  ),
)
