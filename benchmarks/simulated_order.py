r"""Does the simulator order schedules as this host does?

Schedules of one layer differ in tiles, event grain, order, puts and numbers of
workers.  Each is simulated on a machine's description and launched here, in
turn with the others, and medians are compared.  None of these layers was used
to make the description (`host_machine.py`).

Printed are rank correlations (Spearman, Kendall), and over the pairs that the
measurement tells apart (quartiles that do not overlap) the share that the
simulator orders alike.  Ratio error: how far the simulated ratio of a schedule
to the first is from the measured one.

Other jobs on the same cores spoil the measurement; where one may, run it in the
scheduler's real-time class (`chrt -f 1`).

Example:
  python -m benchmarks.simulated_order --keep
"""

import dataclasses
import itertools

from absl import app
from absl import flags
import numpy as np
from scipy import stats

from hpmoe.backend_ascend.kernels.host.checks import modes as modes_lib
from hpmoe.backend_ascend.kernels.host.launch import runtime
from hpmoe.backend_ascend.kernels.host.launch import runtime_testing
from hpmoe.backend_ascend.simulator import simulate
from hpmoe.backend_ascend.simulator.machines import machine as machine_lib
from hpmoe.backend_ascend.taskflow import flow as flow_lib
from hpmoe.backend_ascend.taskflow import layout
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import precision
from hpmoe.tools.docs import figures

_MACHINE = flags.DEFINE_string('machine', 'host', 'A name or a TOML file.')
_ROUNDS = flags.DEFINE_integer('rounds', 15, 'Interleaved launches of each.')
_THREADS = flags.DEFINE_integer('threads', None, "Default: the machine's.")

LAYER = config_lib.MoEConfig(
  num_ranks=2, num_tokens=512, num_experts=16, top_k=4, d_model=512, d_ff=256
)
# Where all rows are for one rank, numbers of its workers matter.
ROUTINGS = ('uniform', 'one_rank')


_BASE = dict(num_aic=4, num_aiv=8)
_SINGLE = dict(num_aic=1, num_aiv=1)
SCHEDULES: dict[str, dict] = {
  '64 x 128, 4 + 8 workers': {},
  'event grain expert': dict(event_grain='expert'),
  'published order': dict(event_grain='expert', order=flow_lib.PUBLISHED_ORDER),
  'list schedule': dict(order=flow_lib.Order(policy='list', machine='host')),
  'column by column': dict(order=flow_lib.Order(swizzle=0)),
  'relay': dict(relay=True),
  'rows 16': dict(row_block=16),
  'rows 256': dict(row_block=256),
  'columns 32': dict(col_block=32),
  'columns 512': dict(col_block=512),
  '16 x 32': dict(row_block=16, col_block=32),
  '4 x 16': dict(row_block=4, col_block=16, token_block=64),
  'puts of 1 row, 1 token': dict(put_rows=1, token_block=1),
  '1 + 1 workers': _SINGLE,
  '1 + 1 workers, rows 16': dict(row_block=16) | _SINGLE,
  '200 + 400 workers': dict(num_aic=200, num_aiv=400),
}


@dataclasses.dataclass(frozen=True)
class Candidate:
  """A schedule: what is launched, and what was simulated and measured, s."""

  name: str
  case: runtime_testing.Case
  simulated: float
  measured: list[float] = dataclasses.field(default_factory=list)

  @property
  def median(self) -> float:
    return float(np.median(self.measured))

  @property
  def quartiles(self) -> tuple[float, float]:
    low, high = np.percentile(self.measured, (25, 75))
    return float(low), float(high)


def candidates(
  direction: layout.Direction, routing: str, machine: machine_lib.Machine
) -> list[Candidate]:
  """Returns the schedules of one pass on one routing, not yet measured."""
  ids = runtime_testing.make_inputs(
    LAYER, precision.PrecisionPolicy(), routing, name='case'
  )['topk_ids']
  # Empty tasks have a price of their own; here there are none.
  most = dict(expert_capacity=int(np.bincount(ids.ravel()).max()))
  found = []
  for name, changed in SCHEDULES.items():
    case = runtime_testing.make_case(
      direction, LAYER, routing=routing, **(_BASE | changed | most)
    )
    simulated = simulate.simulate(case.image, machine, ids)
    found.append(Candidate(name, case, simulated.total))
  return found


def measure(found: list[Candidate], rounds: int, threads: int) -> None:
  """Launches all in turn; a first turn is not counted."""
  for turn in range(rounds + 1):
    for one in found:
      launched = runtime.run(
        one.case.image,
        one.case.inputs,
        threads=threads,
        plan=one.case.routing,
        modes=modes_lib.Modes(times=True),
      )
      assert launched.times is not None
      if turn > 0:
        one.measured.append(launched.times.total)


def agreement(found: list[Candidate]) -> dict[str, float]:
  """Returns how the simulated times agree with the measured ones."""
  simulated = np.array([one.simulated for one in found])
  measured = np.array([one.median for one in found])
  ratios = (simulated / simulated[0]) / (measured / measured[0])
  apart = [
    (a, b)
    for a, b in itertools.combinations(found, 2)
    if a.quartiles[1] < b.quartiles[0] or b.quartiles[1] < a.quartiles[0]
  ]
  alike = sum(
    (a.simulated < b.simulated) == (a.median < b.median) for a, b in apart
  )
  return dict(
    schedules=len(found),
    spearman=float(stats.spearmanr(simulated, measured).statistic),
    kendall=float(stats.kendalltau(simulated, measured).statistic),
    pairs_told_apart=len(apart),
    ordered_alike=alike,
    mean_ratio_error=float(np.abs(ratios[1:] - 1).mean()),
    worst_ratio_error=float(np.abs(ratios[1:] - 1).max()),
    mean_error=float(np.abs(simulated / measured - 1).mean()),
  )


def _show(title: str, found: list[Candidate], told: dict[str, float]) -> None:
  print(f'\n{title}\n{"schedule":26} simulated  measured (quartiles)     ratio')
  for one in sorted(found, key=lambda c: c.median):
    low, high = one.quartiles
    print(
      f'{one.name:26} {one.simulated * 1e3:8.2f}  {one.median * 1e3:8.2f} '
      f'({low * 1e3:6.2f}, {high * 1e3:6.2f})  '
      f'{one.simulated / one.median:7.2f}'
    )
  print(
    'rank correlation {spearman:.3f} (Kendall {kendall:.3f}); '
    '{ordered_alike} of {pairs_told_apart} pairs told apart ordered alike; '
    'ratio error {mean_ratio_error:.1%}, worst {worst_ratio_error:.1%}; '
    'error of times {mean_error:.1%}'.format(**told)
  )


def table(report: list[dict]) -> tuple[list[str], list[list[str]]]:
  """Returns the columns and rows of docs/schedule.md."""
  rows = [
    [
      f'{told["direction"]}, {told["routing"]}',
      f'{told["kendall"]:.2f}',
      f'{told["ordered_alike"]} of {told["pairs_told_apart"]}',
      f'{told["mean_ratio_error"]:.1%}',
      f'{told["worst_ratio_error"]:.0%}',
      f'{told["mean_error"]:.1%}',
    ]
    for told in report
  ]
  return [
    'pass, routing',
    'Kendall correlation',
    'pairs told apart, ordered alike',
    'error of ratios',
    'worst',
    'error of times',
  ], rows


def main(argv: list[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'expected no arguments, got {argv[1:]}')
  machine = machine_lib.load(_MACHINE.value)
  if _THREADS.value:
    machine = machine.with_figures(threads=_THREADS.value)
  report = []
  for direction in layout.Direction:
    for routing in ROUTINGS:
      found = candidates(direction, routing, machine)
      measure(found, _ROUNDS.value, int(machine['threads']))
      told = agreement(found)
      title = f'{direction.name.lower()}, {routing}, ms'
      _show(title, found, told)
      report.append(
        dict(
          direction=direction.name.lower(),
          routing=routing,
          **told,
          rows=[
            dict(
              name=one.name,
              simulated=one.simulated,
              measured=one.median,
              quartiles=one.quartiles,
            )
            for one in found
          ],
        )
      )
  figures.keep(
    'simulated_order', 'simulated_order', *table(report), every=report
  )


if __name__ == '__main__':
  app.run(main)
