"""Options that say which candidate answers."""

from absl import flags

from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import layer_flags


def candidate(f: flags.FlagValues, case):
  """Returns the candidate that flags ask for, fit for a case.

  Args:
    f: all flags.
    case: what will be asked.

  Raises:
    ValueError: a flag was given that would have no effect, or the candidate
      cannot do what is asked.
    candidates.CandidateError: what it needs is not here.
  """
  from hpmoe.parity_tests.candidates import checking
  from hpmoe.parity_tests.candidates import table

  given = {n: f[n].value for n in f if f[n].present}
  given = {n: cli.text(v) for n, v in given.items() if v != f[n].default}
  kind = table.find(given)
  fields = cli.fields(f, [one for one in table.FLAGS if one.name in kind.flags])
  fields['options'] = layer_flags.options(f)
  fields['checking'] = checking.Checking(**cli.fields(f, checking.FLAGS))
  if kind.read_fields is not None:
    fields |= kind.read_fields(f)
  made = kind.make(fields)
  return made.ready(case, kind.typed({n: f[n].value for n in f}))
