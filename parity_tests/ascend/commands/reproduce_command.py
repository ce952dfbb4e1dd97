"""`hpmoe reproduce`."""

import time

from absl import flags

from hpmoe.parity_tests.commands import cli


def _define_reproduce(f: flags.FlagValues) -> None:
  cli.own(f, 'reproduce')


def _reproduce(f: flags.FlagValues) -> int:
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
  'reproduce', _define_reproduce, _reproduce, operands=('witness',)
)
