"""DySHARP (arXiv 2605.05607): experts over switches that copy and add by lists.

A copy is a token on a rank that has at least one of its experts: one copy per
rank.  The work of a rank is divided into chunks of consecutive copies.
Baselines send all copies of a chunk to a rank as one message.

The paper's text gives only maxima and geometric means over nine layers, not the
bars of its figures.  Routing is drawn uniformly: the paper gives a spread
(0.032) and does not say of which quantity.
"""

from collections.abc import Callable, Iterator, Mapping
import dataclasses
import functools
import itertools
import math

import numpy as np

from hpmoe.backend_ascend.simulator.flows import flow as flow_lib
from hpmoe.backend_ascend.simulator.machines import machine as machine_lib
from hpmoe.backend_ascend.simulator.reproduce import builder
from hpmoe.backend_ascend.simulator.reproduce import factors as factors_lib
from hpmoe.backend_ascend.simulator.reproduce import witness as witness_lib

Op = flow_lib.Op
BYTES = 2.0  # of an element, both ways
_CHUNKS = 32  # of a baseline
_TILE = 128  # rows of an expert that start its GEMM


@dataclasses.dataclass(frozen=True)
class Layer:
  """Sizes of a layer.

  Attributes:
    hidden: width.
    ffn: width of an expert.
    experts: of all ranks.
    tokens: of one rank.
    top_k: experts of a token.
    ranks: that share the experts.
    passes: 2 for the GEMMs of a backward pass, else 1.
    gemms: number of a token's GEMMs in an expert.
    figure: the machine's rate of GEMMs.
    by_expert: whether there is one copy per expert, not per rank.
  """

  hidden: int
  ffn: int
  experts: int
  tokens: int
  top_k: int
  ranks: int = 32
  passes: int = 1
  gemms: int = 2
  figure: str = 'cube_int8'
  by_expert: bool = False

  @property
  def row(self) -> float:
    """Bytes of a token."""
    return BYTES * self.hidden

  @property
  def row_flops(self) -> float:
    """Floating-point operations of one token in one expert."""
    return 2.0 * self.gemms * self.hidden * self.ffn * self.passes

  def routed(self) -> 'Layer':
    """Returns the layer with only the sizes that its routing depends on."""
    return dataclasses.replace(self, hidden=1, ffn=1, passes=1)


def rate(machine: machine_lib.Machine, figure: str = 'cube_int8') -> float:
  """Returns flop/s of a GPU."""
  return machine[figure] * machine['cube_efficiency'] * machine['aic']


@functools.lru_cache(maxsize=2)
def _draw_expert_counts(layer: Layer) -> np.ndarray:
  """Returns `[R, T, R]` i1: experts of each token on each rank."""
  rng = np.random.default_rng(0)
  counts = np.zeros((layer.ranks, layer.tokens, layer.ranks), np.int8)
  rows = np.arange(layer.tokens)[:, None]
  for rank in range(layer.ranks):
    draw = rng.random((layer.tokens, layer.experts), np.float32)
    experts = np.argpartition(draw, layer.top_k - 1, axis=1)[:, : layer.top_k]
    np.add.at(counts[rank], (rows, experts * layer.ranks // layer.experts), 1)
  return counts


def count_experts(layer: Layer) -> np.ndarray:
  return _draw_expert_counts(layer.routed())


def count_remote_ranks(layer: Layer) -> float:
  """Returns the mean number of other ranks with experts of a token."""
  is_used = count_experts(layer) > 0
  own = is_used[np.arange(layer.ranks), :, np.arange(layer.ranks)].sum()
  return float((is_used.sum() - own) / (layer.ranks * layer.tokens))


class _Exchange(builder.Builder):
  """A flow with a pool for GEMMs on each rank."""

  def __init__(self, layer: Layer, machine: machine_lib.Machine):
    super().__init__(layer.ranks, machine)
    self.layer = layer
    self.products = self.pools(1)
    self.ranks = np.arange(layer.ranks)

  def events(self, threshold, polled: bool = True) -> np.ndarray:
    delay = self.machine['poll'] if polled else 0.0
    return self.flow.add_events(threshold, delay)

  def compute(self, rows, share: float = 1.0) -> np.ndarray:
    """Adds the GEMMs of `[R, chunks]` rows; returns tasks of that shape."""
    rows = np.asarray(rows, float)
    rank = np.broadcast_to(self.ranks[:, None], rows.shape)
    tasks = self.flow.add_tasks(
      self.products[rank].ravel(),
      (
        share
        * rows
        * self.layer.row_flops
        / rate(self.machine, self.layer.figure)
      ).ravel(),
    )
    return tasks.reshape(rows.shape)

  def send(self, tasks, counts, arrivals, channel: int = 0) -> None:
    """Lets `[R, chunks]` tasks send `[R, chunks, R]` copies, a message each.

    `arrivals`: `[R, chunks]` events at the receiver.
    """
    ranks = len(counts)
    for step in range(ranks):
      peer = (self.ranks + step) % ranks
      copies = counts[self.ranks, :, peer]
      source, chunk = np.nonzero(copies)
      messages = self.flow.add_messages(
        tasks[source, chunk],
        Op.PUT,
        source,
        copies[source, chunk] * self.layer.row,
        channel=channel,
      )
      receiver = peer[source]
      self.flow.add_peers(messages, receiver, arrivals[receiver, chunk])


def _plain(machine):
  """Returns the machine whose packets name an address and no targets."""
  return machine.with_figures(target_ids=0.0)


def _by_chunk(layer: Layer, chunks: int):
  """Returns `[R, chunks, R]` copies sent, and `[R, chunks]` rows of experts."""
  expert_counts = count_experts(layer)
  cut = (layer.ranks, chunks, layer.tokens // chunks, layer.ranks)
  copies = (
    (expert_counts if layer.by_expert else expert_counts > 0)
    .reshape(cut)
    .sum(2, dtype=int)
  )
  rows = expert_counts.reshape(cut).sum((0, 2), dtype=np.int64).T
  return copies, rows


def _arrivals(flow: _Exchange, copies) -> np.ndarray:
  """Returns `[R, chunks]` events that count one message per sending rank."""
  senders = (copies > 0).sum(0).T
  return flow.events(senders.ravel()).reshape(senders.shape)


def deepep(layer: Layer, machine) -> flow_lib.Timing:
  """Runs dispatch, GEMMs and combine one after the other."""
  exchange = _Exchange(layer, _plain(machine))
  copies, rows = _by_chunk(layer, 1)
  arrivals, returns = (
    _arrivals(exchange, copies),
    _arrivals(exchange, copies.transpose(2, 1, 0)),
  )
  exchange.send(_idle(exchange, 1), copies, arrivals)
  tasks = exchange.compute(rows)
  exchange.flow.add_waits(tasks[:, 0], exchange.launch_after(arrivals[:, 0]))
  computed = exchange.events(np.ones(layer.ranks), polled=False)
  exchange.flow.add_signals(tasks[:, 0], computed)
  sends = _idle(exchange, 1)
  exchange.flow.add_waits(sends[:, 0], exchange.launch_after(computed))
  exchange.send(sends, copies.transpose(2, 1, 0), returns)
  return exchange.run()


def _idle(exchange: _Exchange, chunks: int) -> np.ndarray:
  """Returns `[R, chunks]` tasks that take no time, in order."""
  return exchange.idle(np.repeat(exchange.pools(1), chunks)).reshape(-1, chunks)


def comet(layer: Layer, machine) -> flow_lib.Timing:
  """Overlaps dispatch with the first GEMM, then the second with combine."""
  exchange = _Exchange(layer, _plain(machine))
  copies, rows = _by_chunk(layer, _CHUNKS)
  return_copies = copies.transpose(2, 1, 0)
  arrivals, returns = (
    _arrivals(exchange, copies),
    _arrivals(exchange, return_copies),
  )
  exchange.send(_idle(exchange, _CHUNKS), copies, arrivals)
  first = exchange.compute(rows, 2 / 3)
  exchange.flow.add_waits(first, arrivals)
  first_done = exchange.events(np.full(layer.ranks, _CHUNKS), polled=False)
  exchange.flow.add_signals(
    first, np.repeat(first_done, _CHUNKS).reshape(first.shape)
  )
  second_start = exchange.launch_after(first_done)
  second = exchange.compute(rows, 1 / 3)
  exchange.flow.add_waits(second[:, 0], second_start)
  exchange.send(second, return_copies, returns)
  return exchange.run()


def nvls(layer: Layer, machine) -> flow_lib.Timing:
  """Multicasts all tokens to all ranks, runs GEMMs, reduces in switches."""
  exchange = _Exchange(layer, _plain(machine))
  _, rows = _by_chunk(layer, 1)
  message_bytes = layer.row * layer.tokens / _CHUNKS
  arrivals = exchange.events(np.full(layer.ranks, layer.ranks * _CHUNKS))
  sends = _idle(exchange, _CHUNKS)
  rank = np.repeat(exchange.ranks, _CHUNKS)
  messages = exchange.flow.add_messages(
    sends.ravel(), Op.PUT, rank, message_bytes
  )
  for peer in range(layer.ranks):
    exchange.flow.add_peers(messages, peer, arrivals[peer])
  tasks = exchange.compute(rows)
  exchange.flow.add_waits(tasks[:, 0], exchange.launch_after(arrivals))
  computed = exchange.events(layer.ranks, polled=False)
  exchange.flow.add_signals(tasks[:, 0], computed)
  combine_start = exchange.launch_after(computed)
  pulls = _idle(exchange, _CHUNKS)
  exchange.flow.add_waits(pulls, combine_start[:, None])
  messages = exchange.flow.add_messages(
    pulls.ravel(), Op.REDUCE_GET, rank, message_bytes
  )
  for step in range(layer.ranks):
    exchange.flow.add_peers(messages, (rank + step) % layer.ranks)
  return exchange.run()


@dataclasses.dataclass(frozen=True)
class Parts:
  """The features of DySHARP that a flow has.

  Attributes:
    multicast: switches copy and add.
    fused: dispatch, GEMMs and combine overlap.
    by_source: rows are stored by source, then token; else in arrival order.
  """

  multicast: bool = True
  fused: bool = True
  by_source: bool = False


def dysharp(layer: Layer, machine, parts: Parts = Parts()) -> flow_lib.Timing:
  """Overlaps dispatch, GEMMs and combine, token by token."""
  exchange = _Exchange(layer, machine if parts.multicast else _plain(machine))
  expert_counts = count_experts(layer)
  token, source, rank = _copies(expert_counts)
  chunk, chunks = _chunks(layer, parts, token, source, rank)
  # [R, chunks]: the number of copies that start a chunk, and its rows.
  chunk_index = rank * chunks + chunk
  size = exchange.layer.ranks * chunks
  counts = np.bincount(chunk_index, minlength=size)
  rows = np.bincount(chunk_index, expert_counts[source, token, rank], size)
  arrivals = exchange.events(counts)
  _dispatch(
    exchange, parts, token, source, rank, expert_counts, arrivals[chunk_index]
  )
  tasks = exchange.compute(rows.reshape(-1, chunks)).ravel()
  if parts.fused:
    exchange.flow.add_waits(tasks, arrivals)
  else:
    exchange.flow.add_waits(tasks, exchange.launch_after(arrivals))
  _combine(
    exchange, parts, token, source, rank, expert_counts, tasks, chunk_index
  )
  return exchange.run()


def _copies(expert_counts: np.ndarray):
  """Returns (token, source, rank) of each copy, in the order of sending."""
  token, source, rank = np.nonzero(expert_counts.transpose(1, 0, 2))
  return token, source, rank


def _chunks(layer: Layer, parts: Parts, token, source, rank):
  """Returns the chunk of each copy, and the number of chunks."""
  if not parts.fused:
    return np.zeros(len(rank), np.int64), 1
  keys = (token, source) if parts.by_source else (source, token)
  order = np.lexsort((*keys, rank))
  counts = np.bincount(rank, minlength=layer.ranks)
  place = np.empty(len(rank), np.int64)
  first = np.cumsum(counts) - counts
  place[order] = np.arange(len(rank)) - np.repeat(first, counts)
  # Rows at which each expert of a rank has a full tile, on average.
  start_rows = _TILE * (layer.experts / layer.ranks)
  chunk_copies = max(
    1,
    round(start_rows * len(rank) / (layer.ranks * layer.tokens * layer.top_k)),
  )
  chunks = -(-int(counts.max()) // chunk_copies)
  return place // chunk_copies, chunks


def _dispatch(
  exchange, parts, token, source, rank, expert_counts, event
) -> None:
  layer = exchange.layer
  pools = exchange.pools(1)
  number = token * layer.ranks + source
  ids = expert_counts[source, token, rank]
  if parts.multicast:
    tokens = np.arange(layer.tokens * layer.ranks)
    tasks = exchange.idle(pools[tokens % layer.ranks])
    messages = exchange.flow.add_messages(
      tasks, Op.PUT, tokens % layer.ranks, layer.row
    )
    exchange.flow.add_peers(messages[number], rank, event, ids)
    return
  tasks = exchange.idle(pools[source])
  messages = exchange.flow.add_messages(tasks, Op.PUT, source, layer.row)
  exchange.flow.add_peers(messages, rank, event)


def _combine(
  exchange, parts, token, source, rank, expert_counts, tasks, chunk_index
) -> None:
  layer = exchange.layer
  last = int(exchange.machine['virtual_channels']) - 1
  is_remote = rank != source
  if not parts.multicast:
    # Each rank returns the rows that it computed.
    messages = exchange.flow.add_messages(
      tasks[chunk_index[is_remote]],
      Op.PUT,
      rank[is_remote],
      layer.row,
      channel=last,
    )
    exchange.flow.add_peers(messages, source[is_remote])
    return
  number = token * layer.ranks + source
  notify_seconds = (
    2 * exchange.machine['hop_latency'] + exchange.machine['poll']
  )
  ready = exchange.flow.add_events(
    np.bincount(number, minlength=layer.tokens * layer.ranks), notify_seconds
  )
  exchange.flow.add_signals(tasks[chunk_index], ready[number])
  remote_tokens = np.flatnonzero(
    np.bincount(number[is_remote], minlength=layer.tokens * layer.ranks)
  )
  pools = exchange.pools(int(exchange.machine['combine_window']))
  pulls = exchange.idle(
    pools[remote_tokens % layer.ranks], ready[remote_tokens], holds=True
  )
  messages = exchange.flow.add_messages(
    pulls, Op.REDUCE_GET, remote_tokens % layer.ranks, layer.row, channel=last
  )
  place = np.zeros(layer.tokens * layer.ranks, np.int64)
  place[remote_tokens] = messages
  exchange.flow.add_peers(
    place[number[is_remote]],
    rank[is_remote],
    ids=expert_counts[source, token, rank][is_remote],
  )


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
  f'{size}-{top_k}': Layer(*sizes, top_k)
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
  'DeepEP': deepep,
  'NVLS': nvls,
  'COMET': comet,
  'DySHARP': dysharp,
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


def _compute_seconds(layer: Layer, machine) -> float:
  """Returns the seconds of a rank's GEMMs for the mean number of rows."""
  return layer.tokens * layer.top_k * layer.row_flops / rate(machine)


def _attention(layer: Layer, machine) -> float:
  """Returns the forward seconds of projections and of half of the scores."""
  flops = (
    layer.tokens * layer.hidden * (8.0 * layer.hidden + 2.0 * layer.tokens)
  )
  return flops / rate(machine)


Seconds = Callable[[str, Layer], float]


def _with_overlaps(seconds: Seconds, machine, layer: Layer):
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
  def seconds(system: str, layer: Layer) -> float:
    tell(
      f'{system}: hidden {layer.hidden}, top-{layer.top_k}, '
      f'{layer.passes} passes'
    )
    return _SIMULATORS[system](layer, machine).total

  return seconds


def _share(machine) -> float:
  layer = LAYERS['L-8']
  seconds = deepep(layer, machine).total
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


def compute_ideal_share(layer: Layer, machine) -> float:
  """Returns the ideal time of dispatch and combine over their time."""
  free = machine.with_figures(cube_int8=1e30)
  timing = dysharp(layer, free)
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
      base = deepep(scaled_layer, machine).total
      values[name] = base / dysharp(scaled_layer, machine).total
  return values


def _run_rows(machines: witness_lib.Machines, tell) -> dict[str, float]:
  machine = machines[MACHINE]
  copies = count_remote_ranks(LAYERS['L-8'])
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
  basic = dysharp(small, machine, Parts(fused=False))
  fusion = dysharp(small, machine, Parts(multicast=False))
  return values | {
    _IDEAL: compute_ideal_share(LAYERS['M-8'], machine),
    _BASIC: deepep(small, machine).total / basic.total,
    _FUSION: comet(small, machine).total / fusion.total,
  }


def _expect_remote_ranks(layer: Layer) -> float:
  """Returns the expected number of other ranks with experts of a token."""
  local = layer.experts // layer.ranks
  no_local_share = math.comb(layer.experts - local, layer.top_k) / math.comb(
    layer.experts, layer.top_k
  )
  return (layer.ranks - 1) * (1 - no_local_share)


def two_numbers(system: str, layer: Layer) -> float:
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
  peak = rate(machine) * _compute_seconds(base, machine) / 0.296

  def seconds(system: str, layer: Layer) -> float:
    size = layer.tokens * layer.hidden / (base.tokens * base.hidden)
    return two_numbers(system, layer) * size

  scaled = machine.with_figures(
    cube_int8=machine['cube_int8'] * peak / rate(machine)
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
