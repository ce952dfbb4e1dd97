"""What options say of a layer: the case, its policy, how it is cut."""

from collections.abc import Callable
import dataclasses

from absl import flags

from hpmoe.parity_tests.candidates import tasks
from hpmoe.parity_tests.case import case_flags
from hpmoe.parity_tests.commands import cli

# All that a command takes which runs a case on our backend.
CASE = (
  *case_flags.LAYER,
  *tasks.FLAGS,
  *case_flags.DATA,
  case_flags.DIRECTION,
)

# And that takes one pass of a layer, which may be one that only compiles.
ONE_PASS = (
  *case_flags.LAYER,
  *tasks.CUT,
  *tasks.CORES_OF_PRESET,
  *tasks.SCHEDULE,
  case_flags.DIRECTION.replace(
    default='forward',
    choices=case_flags.DIRECTIONS[:2],
    help='Pass that is compiled.',
  ),
)


def refuse_without_effect(f: flags.FlagValues, direction: str) -> None:
  """Refuses options of a pass that does not run.

  Raises:
    cli.UsageError: one was given.
  """
  others = [
    row.name for row in tasks.CUT if row.direction not in ('', direction)
  ]
  if direction != 'both':
    beside = f'beside direction {direction}'
    cli.refuse(f, others, beside, ': it cuts weight gradients')


def preset(f: flags.FlagValues, name: str | None = None) -> str:
  """Returns the preset with the sizes that were given (`presets.get`).

  Raises:
    cli.UsageError: the experts do not divide among ranks that nobody gave.
  """
  _refuse_uneven_experts(f, name or f.preset)
  given = [row.name for row in case_flags.SIZES if f[row.name].value]
  return ':'.join([name or f.preset, *(f'{n}={f[n].value}' for n in given)])


def _refuse_uneven_experts(f: flags.FlagValues, preset: str) -> None:
  """Blames the number that was typed, not the default of the other."""
  from hpmoe.reference.contract import presets

  if f.experts is None or f['ranks'].present:
    return
  default = f.ranks or presets.get(preset).num_ranks
  ranks = default if isinstance(default, list) else [default]
  uneven = [r for r in ranks if f.experts % r]
  if uneven:
    raise cli.UsageError(
      f'experts: expected a multiple of {uneven[0]}, or --ranks beside it '
      f'(default: {cli.text(default)}), got {f.experts}'
    )


def fill_cores(f: flags.FlagValues) -> None:
  """Takes the preset's cores where none are given."""
  from hpmoe.reference.contract import presets

  shape = presets.get(preset(f))
  for name, default in (('aic', shape.num_aic), ('aiv', shape.num_aiv)):
    f[name].value = default if f[name].value is None else f[name].value


def fill_tiles(f: flags.FlagValues) -> None:
  """Takes an NPU's tiles where no size of theirs is given."""
  from hpmoe.reference.contract import granularity

  made = granularity.NPU_OPTIONS
  names = [flag.name for flag in tasks.CUT if flag.kind is int]
  if any(f[name].present for name in (*names, 'schedule')):
    return
  for name in names:
    f[name].value = getattr(made, name)


def scheduled(f: flags.FlagValues, config, policy):
  """Returns the options that --schedule has for a layer, None without it.

  Raises:
    cli.UsageError: an option beside it would have no effect.
    OSError: the file cannot be read.
    ValueError: it is damaged, or of another layer.
  """
  from hpmoe.parity_tests.candidates import backends

  if f.schedule is None:
    if f['schedule_scaled'].present:
      raise cli.UsageError('schedule_scaled: expected --schedule beside it')
    return None
  if not f.schedule:
    raise cli.UsageError('schedule: expected a file of hpmoe tune, got none')
  cut = (row.name for row in tasks.CUT)
  cli.refuse(f, cut, f'beside --schedule={f.schedule}')
  read = backends.require_backend('schedule').read_schedule
  found = read(f.schedule, config, policy, f.schedule_scaled)
  cores = [row for row in tasks.CORES if row.name in f and f[row.name].present]
  return dataclasses.replace(found, **cli.fields(f, cores))


def refused(f: flags.FlagValues, why: str) -> str:
  """Returns why a request was refused, with the flag that is to blame."""
  room = why.startswith('topk_ids: expected at most expert_capacity=')
  if not room or 'schedule' not in f or not f.schedule:
    return why
  return (
    f'schedule: expected one with room for the routing, got {f.schedule} '
    f'({why}): it was tuned for another, see --routing'
  )


def options(f: flags.FlagValues):
  """Returns granularity, cores and order.

  Raises:
    cli.UsageError, OSError, ValueError: as `scheduled`.
  """
  from hpmoe.reference.contract import granularity

  if f.schedule is not None or f['schedule_scaled'].present:
    return scheduled(f, *_layer(f))
  made = cli.fields(f, tasks.FLAGS)
  made['order'] = granularity.WEIGHT_GRAD_ORDERS[made['order']]
  return granularity.Options(**made)


def _layer(f: flags.FlagValues):
  """Returns the (config, policy) that is asked for, as far as flags say."""
  from hpmoe.reference.contract import presets

  if 'input' in f and f.input is not None:
    made = _of_file(f)
    return made.config, made.policy
  shape = presets.get(preset(f))
  return presets.config(shape, f.ranks or shape.num_ranks, f.tokens), policy(f)


def _of_file(f: flags.FlagValues):
  from hpmoe.parity_tests.case import input_files

  return input_files.load_safetensors(f.input, f.placement, f.capacity)


def policy(f: flags.FlagValues):
  """Returns the precision policy that is asked for.

  Raises:
    ValueError: the order is not one of the dtype.
  """
  from hpmoe.reference.contract import precision

  return precision.PrecisionPolicy(
    storage=case_flags.DTYPES[f.dtype],
    placement=f.placement,
    accumulation_order=f.accumulation_order,
  )


# What a flag that was given says of a file's layer: (flag, how to read it).
_SAID_BY_INPUT: tuple[tuple[str, Callable], ...] = (
  ('ranks', lambda made: made.config.num_ranks),
  ('tokens', lambda made: made.config.num_tokens),
  ('dtype', lambda made: made.policy.storage),
  ('experts', lambda made: made.config.num_experts),
  ('top_k', lambda made: made.config.top_k),
  ('d_model', lambda made: made.config.d_model),
  ('d_ff', lambda made: made.config.d_ff),
  ('bias', lambda made: made.config.bias),
  ('d_shared', lambda made: made.config.d_shared),
)


def case(f: flags.FlagValues, direction: str | None = None):
  """Returns the case of these options.

  Raises:
    cli.UsageError: one contradicts the file of --input, or --text the routing.
    ValueError: the file cannot be read.
  """
  from hpmoe.parity_tests.case import case as case_lib

  _refuse_contradictions(f)
  made = cli.fields(f, case_flags.FLAGS) | dict(
    direction=direction or f.direction,
    preset=preset(f),
  )
  return case_lib.Case(**made)


def asked_case(f: flags.FlagValues, direction: str):
  """Returns the case of these options, or that of --case.

  Raises:
    ValueError: it is wrong, or a flag would have no effect beside --case.
  """
  from hpmoe.parity_tests.case import case as case_lib

  if f.case is None:
    return case(f, direction)
  others = (r.name for r in case_flags.FLAGS if r.name != 'direction')
  cli.refuse(f, others, f'beside --case={f.case}, which decides it')
  return case_lib.Case.from_folder(f.case, direction)


def _refuse_contradictions(f: flags.FlagValues) -> None:
  if f.input is None:
    if f['text'].present and f.routing != 'text':
      raise cli.UsageError(f'text: expected --routing=text, got {f.routing!r}')
    return
  cli.refuse(f, ('preset', 'routing', 'text'), f'beside --input={f.input}')
  asked = [(n, said) for n, said in _SAID_BY_INPUT if n in f and f[n].present]
  made = _of_file(f) if asked else None
  for name, said in asked:
    value = case_flags.DTYPES.get(f[name].value, f[name].value)
    if value is not None and value != said(made):
      raise cli.UsageError(
        f'{name}: expected {said(made)}, as in {f.input}, got {f[name].value}'
      )
