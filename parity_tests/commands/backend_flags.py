"""Options that say which candidate is judged."""

from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import layer_flags
from hpmoe.parity_tests.commands import parser
from hpmoe.reference.contract import option_fields


def candidate(f: parser.Values, case):
  """Returns the candidate that flags ask for, ready for a case.

  Args:
    f: all flags.
    case: the case that it will run.

  Raises:
    ValueError: a flag would have no effect, or the candidate cannot run the
      case.
    candidates.CandidateError: something that it needs is missing.
  """
  from hpmoe.parity_tests.candidates import candidate_table
  from hpmoe.parity_tests.candidates import checking

  flag_values = {n: f[n].value for n in f if f[n].present}
  flag_values = {
    n: cli.text(v) for n, v in flag_values.items() if v != f[n].option.default
  }
  kind = candidate_table.find(flag_values)
  rows = option_fields.list_options(kind.kind)
  fields = cli.fields(f, [row for row in rows if row.name in kind.flags])
  fields['options'] = layer_flags.options(f)
  fields['checking'] = checking.Checking(**cli.fields(f, checking.FLAGS))
  if kind.read_fields is not None:
    fields |= kind.read_fields(f)
  typed_flag = kind.format_flag({n: f[n].value for n in f})
  return kind.make(fields).ready(case, typed_flag)
