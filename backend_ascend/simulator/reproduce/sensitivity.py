"""What each assumed figure decides: halved and doubled, row by row.

A figure that nobody published or measured is a guess.  A row that moves with
it stands on that guess, and a reader should know.
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
    refused: why, or ''.
  """

  machine: str
  figure: str
  factor: float
  changes: dict[str, float] | None
  errors: dict[str, float]
  refused: str = ''


def assumed(machines: witness_lib.Machines) -> Iterator[tuple[str, str]]:
  """Yields (machine, figure) of every figure with the tag assumed."""
  for name, described in machines.items():
    for figure, content in described.figures.items():
      if content.tag == 'assumed':
        yield name, figure


def _changed(
  described: machine_lib.Machine, figure: str, factor: float
) -> machine_lib.Machine:
  return described.with_figures(
    **{figure: described.figures[figure].value * factor}
  )


def _change(got: float, was: float) -> float:
  return got / was - 1 if was else 0.0


def _effect(witness, machines, values, change) -> Effect:
  name, figure, factor = change
  try:
    changed = machines | {name: _changed(machines[name], figure, factor)}
    got = witness.simulate(changed, lambda text: None)
  except ValueError as error:
    return Effect(name, figure, factor, None, {}, str(error))
  return Effect(
    name,
    figure,
    factor,
    {
      row.name: _change(got[row.name], values[row.name]) for row in witness.rows
    },
    {
      g.name: g.mean_error
      for g in score_lib.score(witness, got, changed).groups
    },
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
  changes = [
    (name, figure, factor)
    for name, figure in assumed(machines)
    for factor in FACTORS
  ]
  done = []
  with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
    made = pool.map(
      lambda change: _effect(witness, machines, values, change), changes
    )
    for number, effect in enumerate(made, 1):
      done.append(effect)
      tell(
        f'{effect.figure} x {effect.factor:g}, {number} of {len(changes)} done:'
      )
  return done
