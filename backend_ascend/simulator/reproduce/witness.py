"""A published system that the simulator reproduces: rows, goals, gaps, a run.

A witness is data and one function.  The framework runs it, compares it with
the published figures, fits it, and doubles and halves its figures; it knows
nothing else of the system.
"""

from collections.abc import Callable, Mapping
import dataclasses
import importlib
import pathlib
import tomllib
from typing import Any

from hpmoe.backend_ascend.simulator.machines import machine as machine_lib

Machines = Mapping[str, machine_lib.Machine]
Values = Mapping[str, float]
Tell = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Row:
  """One published figure.

  Attributes:
    name: unique in its witness.
    published: the value, not zero.
    unit: of both values.
    group: rows whose absolute errors are averaged.
    source: where it was published.
    fitted: whether a figure of the machine was fitted to it, or to rows that it
      follows from; such a row is no evidence.
    nearest: the fitted row that is most like it, which a null predictor
      repeats; '' where there is none.
    summands: rows of which it is the sum, or of which its summands are; it is
      no evidence beside them.
  """

  name: str
  published: float
  unit: str
  group: str
  source: str
  fitted: bool = False
  nearest: str = ''
  summands: tuple[str, ...] = ()

  @property
  def counts(self) -> bool:
    """Whether it is evidence."""
    return not self.fitted and not self.summands


@dataclasses.dataclass(frozen=True)
class Goal:
  """The limit of the mean absolute error of a group's held-out rows."""

  group: str
  limit: float


@dataclasses.dataclass(frozen=True)
class Withdrawal:
  """A group of held-out rows that is no evidence, and the reason.

  Its flow runs and its rows are printed; no error of it is a goal.
  """

  group: str
  reason: str


@dataclasses.dataclass(frozen=True)
class Gap:
  """A published figure that cannot be reproduced, and the reason."""

  figure: str
  reason: str


@dataclasses.dataclass(frozen=True)
class Claim:
  """A published statement that is no figure, judged from simulated values.

  Attributes:
    text: the statement.
    fails: returns what speaks against it, or ''; asked of null predictors too,
      if they know its rows.
  """

  text: str
  fails: Callable[[Values], str]


@dataclasses.dataclass(frozen=True)
class Fit:
  """A figure of a machine that was fitted, and the rows that it was fitted to.

  Attributes:
    machine: whose.
    figure: its name.
    rows: all that it was fitted to.
    value: of this witness alone, whose kernels are not those that the
      machine's file was fitted to; None: the file's.
  """

  machine: str
  figure: str
  rows: tuple[str, ...]
  value: float | None = None

  def apply(self, machine: machine_lib.Machine) -> machine_lib.Machine:
    """Returns the machine with the witness's own value, if it has one.

    Raises:
      ValueError: it has none, and the file does not say that it is fitted; or
        a share of a peak is more than 1.
    """
    if self.value is not None:
      machine_lib.check_share(machine.name, self.figure, self.value)
      machine = machine.with_figures(**{self.figure: self.value})
      fitted = dataclasses.replace(
        machine.figures[self.figure],
        tag='fitted',
        source='; '.join(self.rows),
      )
      figures = dict(machine.figures) | {self.figure: fitted}
      return dataclasses.replace(machine, figures=figures)
    tag = machine.figures[self.figure].tag
    if tag != 'fitted':
      raise ValueError(
        f'{self.figure}: expected the tag fitted in {machine.name}, got {tag}'
      )
    return machine


@dataclasses.dataclass(frozen=True)
class Witness:
  """A published system.

  Attributes:
    name: as typed.
    about: one line.
    machines: descriptions that `run` takes, by name.
    rows: every figure that is compared.
    run: simulated values by row name, and of what only claims ask for, from
      machines by name; tells what it does.  The same machines give the same
      values.
    goals: what the errors must be.
    withdrawals: groups of rows without a goal, and the reason.
    fits: which figures were fitted to which rows.
    claims: statements judged beside the rows.
    gaps: what is not compared, and why.
    run_fitted: `run` of no more than the fitted rows, if it is shorter.
    run_rows: `run` without what only claims ask for, if it is shorter.
    variants: the same under other hypotheses.
    quick: whether a run is so short that sensitivity is shown unasked.
    roofline: by row, what the busiest resource needs at its peak.
    informed: choices made when the held-out rows were already known.

  Raises:
    ValueError: two rows of one name, a published zero, a fit to a row that is
      not marked as fitted or of a machine that is not named, more fitted
      figures than rows they were fitted to, a row that names one that is
      not there, or as nearest one that is not fitted, or a group that is
      withdrawn and has no rows or has a goal.
  """

  name: str
  about: str
  machines: tuple[str, ...]
  rows: tuple[Row, ...]
  run: Callable[[Machines, Tell], Values]
  goals: tuple[Goal, ...] = ()
  withdrawals: tuple[Withdrawal, ...] = ()
  fits: tuple[Fit, ...] = ()
  claims: tuple[Claim, ...] = ()
  gaps: tuple[Gap, ...] = ()
  run_fitted: Callable[[Machines, Tell], Values] | None = None
  run_rows: Callable[[Machines, Tell], Values] | None = None
  variants: 'tuple[Variant, ...]' = ()
  quick: bool = True
  roofline: Callable[[Machines], Values] = lambda machines: {}
  informed: tuple[str, ...] = ()

  def __post_init__(self):
    rows = {row.name: row for row in self.rows}
    if len(rows) < len(self.rows):
      raise ValueError(f'rows: expected one of each name, in {self.name}')
    for row in self.rows:
      if not row.published:
        raise ValueError(f'rows: expected a figure that is not 0: {row.name}')
      for name in (*row.summands, *filter(None, [row.nearest])):
        if name not in rows or (name == row.nearest and not rows[name].fitted):
          raise ValueError(
            f'rows: expected one that is there, and fitted if it is the '
            f'nearest, got {name!r} for {row.name!r}'
          )
    groups = {row.group for row in self.rows if row.counts}
    groups -= {goal.group for goal in self.goals}
    for withdrawal in self.withdrawals:
      if withdrawal.group not in groups:
        raise ValueError(
          f'withdrawals: expected a group of held-out rows without a goal, '
          f'got {withdrawal.group!r} in {self.name}'
        )
    fitted_rows = {name for fit in self.fits for name in fit.rows}
    for name in sorted(fitted_rows):
      if name not in rows or not rows[name].fitted:
        raise ValueError(f'fits: expected a row marked as fitted, got {name!r}')
    for fit in self.fits:
      if fit.machine not in self.machines:
        raise ValueError(
          f'fits: expected a machine of {self.machines}, got {fit.machine!r}'
        )
    if len(self.fits) > len(fitted_rows):
      raise ValueError(
        f'fits: expected at most {len(fitted_rows)} figures, as many as rows '
        f'they are fitted to, got {len(self.fits)}'
      )

  def load(self, replaced: str | None = None) -> dict[str, machine_lib.Machine]:
    """Returns the machines by name.

    Args:
      replaced: name or path of a description in place of the first.

    Raises:
      ValueError: there is none, or it is not well formed; or a figure is said
        to be fitted here and there is not, or the other way round.
    """
    machines = {name: machine_lib.load(name) for name in self.machines}
    if replaced is not None:
      machines[self.machines[0]] = machine_lib.load(replaced)
    for fit in self.fits:
      # Of a machine that the user gave, nothing was fitted.
      if replaced is None or fit.machine != self.machines[0]:
        machines[fit.machine] = fit.apply(machines[fit.machine])
    return machines

  def of_rows(self) -> 'Witness':
    """Returns the witness without its claims."""
    return dataclasses.replace(self, run=self.run_rows or self.run, claims=())

  def simulate(self, machines: Machines, tell: Tell) -> dict[str, float]:
    """Returns a value for every row, and what else the claims ask for.

    Raises:
      ValueError: `run` left a row out.
    """
    values = dict(self.run(machines, tell))
    missing = [row.name for row in self.rows if row.name not in values]
    if missing:
      raise ValueError(
        f'{self.name}: expected a value for each row, got none for {missing}'
      )
    return values


@dataclasses.dataclass(frozen=True)
class Variant:
  """A witness under a hypothesis other than the one that was taken.

  Attributes:
    text: what it takes, and in place of what.
    witness: rows, fits and run.
  """

  text: str
  witness: Witness


def under(witness: Witness, text: str, machine: str, **figures) -> Variant:
  """Returns the variant that runs with other figures of a machine."""

  def change_run(run):
    def call(machines: Machines, tell: Tell) -> Values:
      other = machines[machine].with_figures(**figures)
      return run(dict(machines) | {machine: other}, tell)

    return call

  run_fitted = witness.run_fitted and change_run(witness.run_fitted)
  return Variant(
    text,
    dataclasses.replace(
      witness, run=change_run(witness.run), run_fitted=run_fitted
    ),
  )


_TABLES = tomllib.loads(
  pathlib.Path(__file__).with_name('witnesses.toml').read_text()
)


def published(name: str) -> Mapping[str, Any]:
  """Returns the table of a witness in `witnesses.toml`."""
  return _TABLES[name]


def load_fields(name: str) -> dict[str, Any]:
  """Returns the fields of a witness that `witnesses.toml` holds."""
  table = published(name)
  return dict(
    name=name,
    about=table['about'],
    informed=tuple(table.get('seen', ())),
    goals=tuple(Goal(*goal) for goal in table.get('goals', {}).items()),
    withdrawals=tuple(
      Withdrawal(*entry) for entry in table.get('withdrawn', {}).items()
    ),
    gaps=tuple(Gap(*gap) for gap in table['gaps'].items()),
  )


_ROOM = __name__.rpartition('.')[0]
# The published systems that can be reproduced, by name.
MODULES = {
  'hyperparallel-moe': f'{_ROOM}.hyperparallel',
  'pto-megamoe': f'{_ROOM}.pto_megamoe',
  'deepgemm': f'{_ROOM}.deepgemm',
  'uniep': f'{_ROOM}.uniep',
  'pangu': f'{_ROOM}.pangu',
  'cais': f'{_ROOM}.cais',
  'dysharp': f'{_ROOM}.dysharp',
  'moe-hub': f'{_ROOM}.moe_hub',
}


def get(name: str) -> Witness:
  """Returns the witness of that name.

  Raises:
    ValueError: there is none; the text lists the known names.
  """
  if name not in MODULES:
    raise ValueError(f'witness: expected one of {list(MODULES)}, got {name!r}')
  return importlib.import_module(MODULES[name]).WITNESS
