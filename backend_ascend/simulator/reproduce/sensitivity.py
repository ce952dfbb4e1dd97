"""Halves and doubles each assumed figure, and shows how each row changes.

A figure that nobody published or measured is a guess.  If a row changes with
it, the row depends on that guess, and a reader should know.  Figures that no
row reads are not simulated.
"""

from collections.abc import Iterator
import concurrent.futures
import dataclasses

from hpmoe.backend_ascend.simulator.machines import machine as machine_lib
from hpmoe.backend_ascend.simulator.reproduce import score as score_lib
from hpmoe.backend_ascend.simulator.reproduce import witness as witness_lib

FACTORS = (0.5, 2.0)
_THREADS = 2  # the engine runs without Python's lock


@dataclasses.dataclass(frozen=True)
class Effect:
  """One figure, changed.

  Attributes:
    machine: whose figure.
    figure: its name.
    factor: what it was multiplied by.
    changes: of every row, simulated over what it was, less one; None where the
      machine refuses the value.
    errors: by group of held-out rows, the mean absolute error it would give.
    refusal: why the machine refuses the value, or ''.
  """

  machine: str
  figure: str
  factor: float
  changes: dict[str, float] | None
  errors: dict[str, float]
  refusal: str = ''


def assumed(machines: witness_lib.Machines) -> Iterator[tuple[str, str]]:
  """Yields (machine, figure) of every figure with the tag assumed."""
  for name, machine in machines.items():
    for figure, content in machine.figures.items():
      if content.tag == 'assumed':
        yield name, figure


@dataclasses.dataclass(frozen=True)
class Watched(machine_lib.Machine):
  """A machine that notes which of its figures are read, changed or not.

  Attributes:
    read: their names; all that the fabric names are among them.
  """

  read: set[str] = dataclasses.field(default_factory=set)

  def __getitem__(self, name: str) -> float:
    self.read.add(name)
    return super().__getitem__(name)


def watched(machine: machine_lib.Machine) -> Watched:
  return Watched(**vars(machine), read=set(machine.fabric.list_figures()))


def _effect(witness, machines, values, change) -> Effect:
  name, figure, factor = change
  value = machines[name].figures[figure].value * factor
  try:
    other_machine = machines[name].with_figures(**{figure: value})
    if figure in machines[name].read:
      new_values = witness.simulate(
        machines | {name: other_machine}, lambda text: None
      )
    else:
      new_values = values
  except ValueError as error:
    return Effect(name, figure, factor, None, {}, str(error))
  score = score_lib.score(witness, new_values, machines | {name: other_machine})
  return Effect(
    name,
    figure,
    factor,
    {
      row.name: new_values[row.name] / value - 1
      if (value := values[row.name])
      else 0.0
      for row in witness.rows
    },
    {g.name: g.mean_error for g in score.groups},
  )


def effects(
  witness: witness_lib.Witness,
  machines: dict[str, machine_lib.Machine],
  values: witness_lib.Values,
  tell: witness_lib.Tell,
) -> list[Effect]:
  """Returns what halving and doubling each assumed figure does.

  Args:
    witness: whose rows.
    machines: by name, as `witness.run` takes them.
    values: what they give unchanged.
    tell: is told the figure that was done.
  """
  witness = witness.of_rows()
  machines = {name: watched(machine) for name, machine in machines.items()}
  witness.simulate(machines, tell)
  changes = [
    (name, figure, factor)
    for name, figure in assumed(machines)
    for factor in FACTORS
  ]
  finished_effects = []
  with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
    pending = pool.map(
      lambda change: _effect(witness, machines, values, change), changes
    )
    for number, effect in enumerate(pending, 1):
      finished_effects.append(effect)
      tell(
        f'{effect.figure} x {effect.factor:g}, {number} of {len(changes)} done:'
      )
  return finished_effects
