"""Options that say what runs the image, and how the twin does."""

from absl import flags

from hpmoe.parity_tests.commands import cli

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
# Of the host runtime alone.
_HOST_ONLY = (
  'threads',
  'permute',
  'late_puts',
  'races',
  'isolate',
  'start_at',
  'stop_after',
  'poison',
)


def define_backend(f: flags.FlagValues) -> None:
  from hpmoe.parity_tests.judge import check

  flags.DEFINE_enum(
    'backend',
    check.BACKENDS[0],
    list(check.BACKENDS),
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


def modes(f: flags.FlagValues):
  """Returns the modes of the twin.

  Raises:
    cli.UsageError: one was given that would have no effect.
  """
  from hpmoe.backend_ascend.kernels.ascendc.twin.launch import twin_runtime

  on_twin = f.backend != 'host'
  for name in _FIELDS:
    if not on_twin and f[name].present:
      raise cli.UsageError(
        f'{name}: expected --backend=ascend_twin beside it, got '
        f'--backend={f.backend}'
      )
  for name in _HOST_ONLY:
    if on_twin and name in f and f[name].present:
      raise cli.UsageError(
        f'{name}: expected none with --backend={f.backend}, got '
        f'{cli.text(f[name].value)}: it steers the host runtime'
      )
  if f['twin_seed'].present and f.twin_mode != 'seeded':
    raise cli.UsageError(
      f'twin_seed: expected --twin_mode=seeded beside it, got {f.twin_mode}'
    )
  return twin_runtime.Modes(
    **{_FIELDS[name]: f[name].value for name in _FIELDS}
  )
