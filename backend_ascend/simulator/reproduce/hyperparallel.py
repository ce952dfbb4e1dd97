"""HyperParallel-MoE (arXiv 2605.23764): the tables of the paper.

The system in terms of our flow: events of whole experts, queues operator by
operator and round robin, the combine's sum outside.  All vector cores work: the
public code uses half of them, but then EP4's rows would need 24 GB/s per core,
three times the published rate; its own measurement (A2) does use half.
The baseline is the same layer operator by operator on the full device, with a
collective all-to-all and a permutation after each dispatch and before each
return.  Both run on one machine and one engine.

32768 routed rows a die (4096 tokens, top-8) is a hypothesis: the paper does not
say its micro-batch.  The authors' task builder strides experts by 4096 rows,
which is this number over 8 experts.
"""

from collections.abc import Callable, Iterator, Mapping
import dataclasses

from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.simulator.machines import machine as machine_lib
from hpmoe.backend_ascend.simulator.reproduce import compiled_layers
from hpmoe.backend_ascend.simulator.reproduce import null
from hpmoe.backend_ascend.simulator.reproduce import witness as witness_lib
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import granularity

_PAPER = 'arXiv 2605.23764, latency from dispatch to combine, reading notes'
_REPOSITORY = 'mindspore-ai/hyper-parallel, 8 x Ascend 910B3, documentation'

_FIELDS = witness_lib.load_fields('hyperparallel-moe')
# ms by EP and pass: (baseline, system).
_TABLE = {
  (int(ep), part): values
  for ep, passes in witness_lib.published('hyperparallel-moe')[
    'latency'
  ].items()
  for part, values in passes.items()
}
_EPS = tuple(sorted({ep for ep, _ in _TABLE}))
_FITTED_EP = 4
SYSTEMS = ('baseline', 'system')

# ms of forward and backward by rows of the hottest rank over the mean.
_HOT = {1.0: 29.60, 2.25: 58.28, 3.5: 91.75, 6.0: 177.20}

# Of the public worker, between polls.
_POLL_TICKS = 2500
# Bytes of one AIV on their way over one hop: 8.17 GB/s x 929 ns.
_WINDOW = 8.17e9 * 929e-9

_SUMS = ('combine', 'combine_grad', 'topk_weight_grad')


def _latency(ep: int, part: str, system: str) -> str:
  return f'EP{ep} {part}, {system}'


def _speedup(ep: int, part: str) -> str:
  return f'EP{ep} {part}, speedup'


def _rows() -> Iterator[witness_lib.Row]:
  for (ep, part), values in _TABLE.items():
    passes = ('forward', 'backward') if part == 'total' else ()
    for system, value in zip(SYSTEMS, values):
      yield witness_lib.Row(
        _latency(ep, part, system),
        value,
        'ms',
        'latency',
        _PAPER,
        fitted=ep == _FITTED_EP,
        nearest=_latency(_FITTED_EP, part, system),
        summands=tuple(_latency(ep, p, system) for p in passes),
      )
    yield witness_lib.Row(
      _speedup(ep, part),
      round(values[0] / values[1], 2),  # as published
      'x',
      'speedup',
      _PAPER,
      fitted=ep == _FITTED_EP,
      nearest=_speedup(_FITTED_EP, part),
      summands=tuple(_speedup(ep, p) for p in passes),
    )
  for ratio, value in _HOT.items():
    yield witness_lib.Row(
      _hot_name(ratio), value, 'ms', 'hot rank', _REPOSITORY
    )
    if ratio > 1:
      yield witness_lib.Row(
        f'{_hot_name(ratio)}, over balanced',
        value / _HOT[1.0],
        'x',
        'hot rank scaling',
        _REPOSITORY,
      )


def _hot_name(ratio: float) -> str:
  return f'A2 EP8, hot rank {ratio:g}'


@dataclasses.dataclass(frozen=True)
class Hypotheses:
  """Our assumptions about what the paper does not publish.

  Attributes:
    tokens: of a die; times top-8 its routed rows.
    packages: whether ranks fill packages, whose two dies have a link of their
      own; else every row for another rank crosses the bus.
    permuted: whether the baseline's latency holds its permutations.
    order: of the system's queues.
    all_aiv: whether all AIV work in the system, or half of them as in the
      public code.
    figures: of the machine under the system, that it takes for others; the
      baseline polls nothing, and its exchange is no put of an AIV.
  """

  tokens: int = 4096
  packages: bool = True
  permuted: bool = True
  order: granularity.Order = granularity.PUBLISHED_ORDER
  all_aiv: bool = True
  figures: Mapping[str, float] = dataclasses.field(default_factory=dict)

  def options(self, system: str, aic: int = 24) -> granularity.Options:
    """Returns the granularity of the system or of the baseline."""
    half = system == 'system' and not self.all_aiv
    return granularity.Options(
      event_grain='expert',
      row_block=128,
      col_block=256,
      num_aic=aic,
      num_aiv=aic if half else 2 * aic,
      order=self.order,
    )

  def table(
    self, machines: witness_lib.Machines, seconds: '_Seconds', eps=_EPS
  ) -> dict[str, float]:
    """Returns the paper's table of some EP."""
    machine = machines['ascend_a3']
    if not self.packages:
      machine = machine.with_figures(package=1)
    values = {}
    for ep in eps:
      layer = config(ep, self.tokens)
      times = {}
      for system in SYSTEMS:
        figures = self.figures if system == 'system' else {}
        under = machine.with_figures(**figures)
        for part, case in cases(layer, system, hypotheses=self).items():
          times[part, system] = 1e3 * seconds(case, under)
        times['total', system] = (
          times['forward', system] + times['backward', system]
        )
      for (part, system), value in times.items():
        values[_latency(ep, part, system)] = value
        if system == 'system':
          values[_speedup(ep, part)] = times[part, 'baseline'] / value
    return values

  def run(
    self, machines: witness_lib.Machines, tell, eps=_EPS
  ) -> dict[str, float]:
    """Returns the table as it is simulated."""
    return self.table(machines, _simulate_with(tell, self), eps)

  def run_fitted(
    self, machines: witness_lib.Machines, tell
  ) -> dict[str, float]:
    """Returns its rows of EP4."""
    return self.run(machines, tell, (_FITTED_EP,))

  def roofline(self, machines: witness_lib.Machines) -> dict[str, float]:
    """Returns the table with each part at its peak."""
    return self.table(machines, _bound_seconds)


_ASSUMED = Hypotheses()
_PUBLIC_CODE = Hypotheses(all_aiv=False)


def config(ep: int, tokens: int = 4096) -> config_lib.MoEConfig:
  """Returns the layer of the paper's table at this EP."""
  return config_lib.MoEConfig(
    num_ranks=ep,
    num_tokens=tokens,
    num_experts=8 * ep,
    top_k=8,
    d_model=7168,
    d_ff=2048,
  )


def cases(
  layer: config_lib.MoEConfig,
  system: str,
  ratio: float = 1.0,
  aic: int = 24,
  hypotheses: Hypotheses = _ASSUMED,
) -> dict[str, compiled_layers.Case]:
  """Returns the case of each pass, by its name."""
  return {
    direction.name.lower(): compiled_layers.Case(
      layer,
      hypotheses.options(system, aic),
      direction,
      ratio,
      skip=_SUMS,
      barriers=system == 'baseline',
    ).fit_capacities()
    for direction in layout.Direction
  }


def permutation(
  machine: machine_lib.Machine, layer: config_lib.MoEConfig
) -> float:
  """Returns seconds of the two permutations of a pass of the baseline.

  The operator-by-operator layer sorts the rows of an all-to-all by expert, and
  restores their order before they return.  Our flow places each row directly,
  so it has no such tasks; between barriers, the operators' times add up.
  """
  row_bytes = layer.num_tokens * layer.top_k * layer.d_model * 2
  cores = machine['aiv']
  seconds = max(
    2 * row_bytes / machine['hbm'],
    row_bytes / (cores * machine['aiv_read']),
    row_bytes / (cores * machine['aiv_write']),
  )
  return 2 * (machine['launch'] + seconds)


_Seconds = Callable[[compiled_layers.Case, machine_lib.Machine], float]


def _simulate_with(tell, hypotheses: Hypotheses) -> _Seconds:
  def seconds(
    case: compiled_layers.Case, machine: machine_lib.Machine
  ) -> float:
    system = SYSTEMS[not case.barriers]
    tell(f'{machine.name}, EP{case.config.num_ranks}, {system}')
    permuted = case.barriers and hypotheses.permuted
    permutation_seconds = permutation(machine, case.config) if permuted else 0.0
    run = lambda: case.simulate(machine).total
    return (
      compiled_layers.cache_result(case, machine, run) + permutation_seconds
    )

  return seconds


def _bound_seconds(
  case: compiled_layers.Case, machine: machine_lib.Machine
) -> float:
  bounds = null.roofline(
    case.config, machine, case.topk_ids(), layout.Direction(case.direction)
  )
  return bounds.operators if case.barriers else bounds.fused


def _hot_rank(
  machine: machine_lib.Machine, seconds: _Seconds
) -> Iterator[tuple[str, float]]:
  layer = config_lib.MoEConfig(
    num_ranks=8,
    num_tokens=4096,
    num_experts=48,
    top_k=8,
    d_model=5120,
    d_ff=1792,
  )
  times = {}
  for ratio in _HOT:
    aic = int(machine['aic'])
    runs = cases(layer, 'system', ratio, aic, _PUBLIC_CODE).values()
    times[ratio] = 1e3 * sum(seconds(case, machine) for case in runs)
    yield _hot_name(ratio), times[ratio]
    if ratio > 1:
      yield f'{_hot_name(ratio)}, over balanced', times[ratio] / times[1.0]


def _run(machines: witness_lib.Machines, tell) -> dict[str, float]:
  hot = _hot_rank(machines['ascend_a2'], _simulate_with(tell, _PUBLIC_CODE))
  return _ASSUMED.run(machines, tell) | dict(hot)


def _roofline(machines: witness_lib.Machines) -> dict[str, float]:
  hot = _hot_rank(machines['ascend_a2'], _bound_seconds)
  return _ASSUMED.roofline(machines) | dict(hot)


_EP4 = tuple(
  _latency(_FITTED_EP, part, system)
  for part in ('forward', 'backward')
  for system in SYSTEMS
)

_FITS = tuple(
  witness_lib.Fit('ascend_a3', figure, _EP4)
  for figure in (
    'cube_efficiency',
    'operator_efficiency',
    'collective',
  )
)


def _variant(text: str, **changes) -> witness_lib.Variant:
  """Returns the table alone under another hypothesis."""
  hypotheses = dataclasses.replace(_ASSUMED, **changes)
  return witness_lib.Variant(
    text,
    witness_lib.Witness(
      name='hyperparallel-moe',
      about=text,
      machines=('ascend_a3',),
      rows=tuple(r for r in _rows() if r.group in ('latency', 'speedup')),
      goals=_FIELDS['goals'],
      fits=_FITS,
      run=hypotheses.run,
      run_fitted=hypotheses.run_fitted,
      roofline=hypotheses.roofline,
    ),
  )


WITNESS = witness_lib.Witness(
  **_FIELDS,
  machines=('ascend_a3', 'ascend_a2'),
  rows=tuple(_rows()),
  run=_run,
  run_fitted=_ASSUMED.run_fitted,
  roofline=_roofline,
  fits=_FITS,
  variants=(
    _variant('16384 rows a die, not 32768', tokens=2048),
    _variant('all ranks on the bus, no link in a package', packages=False),
    _variant('no permutations in the baseline', permuted=False),
    _variant('queues expert by expert', order=granularity.Order()),
    _variant('24 AIV work, as in the public code, not 48', all_aiv=False),
    _variant(
      'a pause of 2500 ticks at 50 MHz between polls, as in the public code',
      figures=dict(poll=0, poll_miss=_POLL_TICKS / 50e6),
    ),
    _variant(
      'nodes of 8 dies, and no more of a put on its way than over one hop; '
      'found with the held-out rows known',
      figures=dict(node=8, aiv_window=_WINDOW),
    ),
  ),
)
