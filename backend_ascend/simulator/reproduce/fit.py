"""Fits the figures of a witness to its fitted rows, and to no other.

Least squares of log(simulated / published) over log(figure), by Gauss-Newton
with finite differences: figures are positive.  Rows are smooth in them but for
steps, where the order of tasks changes; so a move is accepted only if it is
better, and slopes without a better move are computed again from the other side.
"""

import dataclasses

import numpy as np

from hpmoe.backend_ascend.simulator.machines import machine as machine_lib
from hpmoe.backend_ascend.simulator.reproduce import score as score_lib
from hpmoe.backend_ascend.simulator.reproduce import witness as witness_lib

_STEP = 0.02  # of a logarithm: wide enough to average over single tasks
_ROUNDS = 6
_HALVINGS = 4  # of a move that is not better


def _with(machines, fits, logs) -> dict[str, machine_lib.Machine]:
  fitted_machines = dict(machines)
  for fit, log in zip(fits, logs):
    machine = fitted_machines[fit.machine]
    fitted_machines[fit.machine] = machine.with_figures(
      **{fit.figure: float(np.exp(log))}
    )
  return fitted_machines


def _residuals(witness, machines, logs, tell) -> np.ndarray:
  names = {name for fit in witness.fits for name in fit.rows}
  run = witness.run_fitted or witness.run
  values = run(_with(machines, witness.fits, logs), tell)
  return np.array(
    [
      np.log(values[row.name] / row.published)
      for row in witness.rows
      if row.name in names
    ]
  )


def _best(residuals, logs, tell) -> np.ndarray:
  """Returns where the squares of `residuals` are least, from `logs` on."""
  errors, step = residuals(logs), _STEP
  for round_number in range(_ROUNDS):
    tell(
      f'fit {round_number}: {np.sqrt((errors**2).mean()):.4%} over '
      f'{len(errors)} rows'
    )
    slopes = [
      (residuals(logs + move) - errors) / step
      for move in step * np.eye(len(logs))
    ]
    move = np.linalg.lstsq(np.array(slopes).T, -errors, rcond=None)[0]
    for trial in (logs + move / 2**half for half in range(_HALVINGS)):
      trial_residual = residuals(trial)
      if (trial_residual**2).sum() < (errors**2).sum():
        logs, errors = trial, trial_residual
        break
    else:
      step = -step / 2
  return logs


def fit(
  witness: witness_lib.Witness,
  machines: dict[str, machine_lib.Machine],
  tell: witness_lib.Tell,
) -> dict[tuple[str, str], float]:
  """Returns the best value found of each fitted figure, by (machine, figure).

  Starts from the values of `machines` and is never worse than they are;
  held-out rows have no part in it.

  Raises:
    ValueError: a machine without the figure, or a best value outside physics.
  """
  for figure_fit in witness.fits:
    machine = machines[figure_fit.machine]
    if figure_fit.figure not in machine.figures:
      raise ValueError(
        f'fit: expected a figure {figure_fit.figure!r} in {machine.name}, '
        'got none'
      )
  if not witness.fits:
    return {}
  logs = np.log(
    [machines[f.machine].figures[f.figure].value for f in witness.fits]
  )
  best = _best(
    lambda point: _residuals(witness, machines, point, tell), logs, tell
  )
  fitted = {
    (f.machine, f.figure): float(np.exp(log))
    for f, log in zip(witness.fits, best)
  }
  for (name, figure), value in fitted.items():
    machine_lib.check_share(machines[name].name, figure, value)
  return fitted


@dataclasses.dataclass(frozen=True)
class Refitted:
  """The result of another hypothesis after its own fit.

  Attributes:
    text: the hypothesis.
    figures: fitted values by name.
    score: with them; None if the fit was refused.
    refusal: why it was, or ''.
  """

  text: str
  figures: dict[str, float]
  score: score_lib.Score | None
  refusal: str = ''


def variants(
  witness: witness_lib.Witness, tell: witness_lib.Tell
) -> list[Refitted]:
  """Returns every variant of a witness, each fitted to its own rows."""
  refitted = []
  for variant in witness.variants:
    machines = variant.witness.load()
    try:
      fitted = fit(variant.witness, machines, tell)
    except ValueError as error:
      refitted.append(Refitted(variant.text, {}, None, str(error)))
      continue
    for (name, figure), value in fitted.items():
      machines[name] = machines[name].with_figures(**{figure: value})
    values = variant.witness.simulate(machines, tell)
    refitted.append(
      Refitted(
        variant.text,
        {figure: value for (_, figure), value in fitted.items()},
        score_lib.score(variant.witness, values, machines),
      )
    )
  return refitted
