"""Options that say what runs the image, and how the twin does."""

from absl import flags

from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import layer_flags

# Name, field of twin_runtime.Modes.
_FIELDS = {
  'twin_mode': 'order',
  'twin_seed': 'seed',
  'twin_hazards': 'hazards',
  'mmad_order': 'mmad_order',
  'exp_rounding': 'exp',
  'flush_subnormals': 'flush_subnormals',
  'saturate': 'saturate',
}
# Name, field of a candidate.
_CANDIDATE = {
  'threads': 'threads',
  'deadline': 'deadline_s',
  'timeout': 'timeout_s',
  'fault': 'fault',
  'isa': 'isa',
  'candidate': 'name',
  'frontend': 'framework',
  'device': 'device',
}


def define_backend(f: flags.FlagValues) -> None:
  flags.DEFINE_enum(
    'backend',
    'host',
    ['host', 'ascend_twin'],
    "What runs the image: the host's kernels, or the source that an NPU runs, "
    'on its twin; see docs/twin.md.',
    flag_values=f,
  )


def define_twin(f: flags.FlagValues) -> None:
  from hpmoe.backend_ascend.kernels.ascendc.twin.launch import twin_runtime

  plain = twin_runtime.Modes()
  for name, known, text in (
    (
      'twin_mode',
      twin_runtime.ORDERS,
      'Which of the orders that flags allow the twin takes: as issued, drawn '
      'by --twin_seed, or each instruction as late as it can be.',
    ),
    (
      'mmad_order',
      twin_runtime.MMAD_ORDERS,
      'In which the cube unit of the twin adds terms; what it does is not '
      'published.',
    ),
    (
      'exp_rounding',
      twin_runtime.EXPS,
      "The twin's exp: the nearest float, or the one above or below.",
    ),
  ):
    default = getattr(plain, _FIELDS[name])
    flags.DEFINE_enum(name, default, list(known), text, flag_values=f)
  flags.DEFINE_integer(
    'twin_seed', plain.seed, 'Of --twin_mode=seeded.', flag_values=f
  )
  for name, text in (
    (
      'twin_hazards',
      'Accesses that nothing orders end the launch; without, it is faster.',
    ),
    ('flush_subnormals', 'The units of the twin take them for zero.'),
    (
      'saturate',
      'On the twin infinities become the largest number, NaN zero.',
    ),
  ):
    default = getattr(plain, _FIELDS[name])
    flags.DEFINE_boolean(name, default, text, flag_values=f)


def row(f: flags.FlagValues):
  """Returns the kind of candidate that flags ask for.

  Raises:
    ValueError: a flag was given that it does not understand.
  """
  from hpmoe.parity_tests.candidates import table

  given = {n: f[n].value for n in f if f[n].present}
  given = {n: cli.text(v) for n, v in given.items() if v != f[n].default}
  return table.find(given)


def candidate(f: flags.FlagValues, case, checking=None):
  """Returns the candidate that flags ask for, fit for a case.

  Args:
    f: all flags.
    case: what will be asked.
    checking: its modes; None: as by default.

  Raises:
    ValueError: a flag was given that would have no effect, or the candidate
      cannot do what is asked.
    candidates.CandidateError: what it needs is not here.
  """
  kind = row(f)
  fields = {
    field: _value(f[name].value)
    for name, field in _CANDIDATE.items()
    if name in f and name in kind.flags
  }
  fields['options'] = layer_flags.options(f)
  if checking is not None:
    fields['checking'] = checking
  if 'twin_mode' in kind.flags:
    fields['twin'] = _modes(f)
  made = kind.make(fields)
  return made.ready(case, kind.typed({n: f[n].value for n in f}))


def _value(value: object) -> object:
  return tuple(value) if isinstance(value, list) else value


def _modes(f: flags.FlagValues):
  """Returns the modes of the twin.

  Raises:
    cli.UsageError: one was given that would have no effect.
  """
  from hpmoe.backend_ascend.kernels.ascendc.twin.launch import twin_runtime

  if f['twin_seed'].present and f.twin_mode != 'seeded':
    raise cli.UsageError(
      f'twin_seed: expected --twin_mode=seeded beside it, got {f.twin_mode}'
    )
  return twin_runtime.Modes(
    **{_FIELDS[name]: f[name].value for name in _FIELDS}
  )
