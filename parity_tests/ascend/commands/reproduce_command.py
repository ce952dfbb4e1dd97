"""`hpmoe reproduce`."""

import dataclasses
import time

from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import parser
from hpmoe.reference.contract import option_fields


@dataclasses.dataclass(frozen=True)
class _Options(cli.JsonOptions):
  """Options that set no field of another object."""

  witness: str = option_fields.option(
    'hyperparallel-moe',
    'The published system: hyperparallel-moe, pto-megamoe, deepgemm, '
    'uniep, cais, dysharp, moe-hub or pangu; the option name may be left '
    'out.',
  )
  machine: str | None = option_fields.option(
    None,
    'A machine, or a TOML file, in place of the machine of the published '
    'system.',
  )
  sensitivity: bool | None = option_fields.option(
    None,
    'Halve and double each assumed figure. Default: only for '
    'hyperparallel-moe; for others it takes minutes.',
  )
  fit: bool = option_fields.option(
    False,
    'First fit the fitted figures again, to their rows only.',
  )
  hypotheses: bool = option_fields.option(
    False,
    'Replace each assumption about what is not published by its '
    'alternatives, and fit again.',
  )
  png: str | None = option_fields.option(
    None,
    'Write a plot of simulated over published here.',
    writes='picture',
  )


def _list_options() -> list[option_fields.Option]:
  return [*option_fields.list_options(_Options)]


def _reproduce(f: parser.Values) -> int:
  from hpmoe.backend_ascend.simulator.reproduce import fit
  from hpmoe.backend_ascend.simulator.reproduce import score
  from hpmoe.backend_ascend.simulator.reproduce import sensitivity
  from hpmoe.backend_ascend.simulator.reproduce import witness as witness_lib
  from hpmoe.parity_tests.ascend.commands import reproduce_report

  witness = witness_lib.get(f.witness)
  machines = witness.load(f.machine)
  start = time.perf_counter()
  effects, refitted = [], []
  with cli.progress() as step:
    if f.fit:
      for (name, figure), value in fit.fit(witness, machines, step).items():
        machines[name] = machines[name].with_figures(**{figure: value})
    values = witness.simulate(machines, step)
    witness_score = score.score(witness, values, machines)
    if witness.quick if f.sensitivity is None else f.sensitivity:
      effects = sensitivity.effects(witness, machines, values, step)
    if f.hypotheses:
      refitted = fit.variants(witness, step)
  seconds = time.perf_counter() - start
  report = reproduce_report.Reproduction(
    witness_score, machines, tuple(effects), tuple(refitted), seconds
  )
  cli.write_json(f.json, report.content())
  if f.png is not None:
    report.plot(f.png)
  print(report.text())
  return cli.PARITY if witness_score.holds else cli.NO_PARITY


COMMAND = cli.Command(
  'reproduce',
  _list_options,
  _reproduce,
  operands=('witness',),
)
