"""Options of a layer: the case, its policy, its tiles."""

from collections.abc import Callable
import dataclasses

from hpmoe.parity_tests.candidates import tiling_fields
from hpmoe.parity_tests.case import case_flags
from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import parser

# The options of a command that runs a case on the megakernel.
CASE = (
  *case_flags.LAYER,
  *tiling_fields.FLAGS,
  *case_flags.DATA,
  case_flags.DIRECTION,
)

# The options of a command that takes one pass of a layer.
ONE_PASS = (
  *case_flags.LAYER,
  *tiling_fields.CUT,
  *tiling_fields.CORES_OF_PRESET,
  *tiling_fields.SCHEDULE,
  case_flags.DIRECTION.replace(
    default='forward',
    choices=case_flags.DIRECTIONS[:2],
    help='Pass that is compiled.',
  ),
)


def refuse_without_effect(f: parser.Values, direction: str) -> None:
  """Refuses options of a pass that does not run.

  Raises:
    cli.UsageError: the user set one of them.
  """
  flag_names = [
    row.name
    for row in tiling_fields.CUT
    if row.direction not in ('', direction)
  ]
  if direction != 'both':
    beside = f'with direction {direction}'
    cli.refuse(f, flag_names, beside, ': it cuts weight gradients')


def preset(f: parser.Values, name: str | None = None) -> str:
  """Returns the preset with the sizes that flags set (`presets.get`).

  Raises:
    cli.UsageError: the experts do not divide among the default ranks.
  """
  _refuse_uneven_experts(f, name or f.preset)
  size_names = [row.name for row in case_flags.SIZES if f[row.name].value]
  return ':'.join(
    [name or f.preset, *(f'{n}={f[n].value}' for n in size_names)]
  )


def _refuse_uneven_experts(f: parser.Values, preset: str) -> None:
  """Blames --experts, which the user typed, not the default of --ranks."""
  from hpmoe.reference.contract import presets

  if f.experts is None or f['ranks'].present:
    return
  default = f.ranks or presets.get(preset).num_ranks
  ranks = default if isinstance(default, list) else [default]
  uneven = [r for r in ranks if f.experts % r]
  if uneven:
    raise cli.UsageError(
      f'experts: expected a multiple of {uneven[0]}, or --ranks with it '
      f'(default: {cli.text(default)}), got {f.experts}'
    )


def fill_cores(f: parser.Values) -> None:
  """Sets flags of cores that are unset to the preset's numbers."""
  from hpmoe.reference.contract import presets

  shape = presets.get(preset(f))
  for name, default in (('aic', shape.num_aic), ('aiv', shape.num_aiv)):
    f[name].value = default if f[name].value is None else f[name].value


def fill_tiles(f: parser.Values) -> None:
  """Sets flags of tiles to an NPU's sizes, if none is set."""
  from hpmoe.reference.contract import granularity

  npu_options = granularity.NPU_OPTIONS
  names = [flag.name for flag in tiling_fields.CUT if flag.kind is int]
  if any(f[name].present for name in (*names, 'schedule')):
    return
  for name in names:
    f[name].value = getattr(npu_options, name)


def scheduled(f: parser.Values, config, policy):
  """Returns the options of --schedule for a layer, or None without it.

  Raises:
    cli.UsageError: another option would have no effect.
    OSError: the file cannot be read.
    ValueError: the file is damaged, or is for another layer.
  """
  from hpmoe.parity_tests.candidates import backends

  if f.schedule is None:
    if f['schedule_scaled'].present:
      raise cli.UsageError('schedule_scaled: expected --schedule with it')
    return None
  if not f.schedule:
    raise cli.UsageError('schedule: expected a file of hpmoe tune, got none')
  cut = (row.name for row in tiling_fields.CUT)
  cli.refuse(f, cut, f'with --schedule={f.schedule}')
  read = backends.require_backend('schedule').read_schedule
  schedule_options = read(f.schedule, config, policy, f.schedule_scaled)
  cores = [
    row for row in tiling_fields.CORES if row.name in f and f[row.name].present
  ]
  return dataclasses.replace(schedule_options, **cli.fields(f, cores))


def blame_schedule(f: parser.Values, message: str) -> str:
  """Returns an error message that blames --schedule if its capacity is it."""
  lacks_room = message.startswith('topk_ids: expected at most expert_capacity=')
  if not lacks_room or 'schedule' not in f or not f.schedule:
    return message
  return (
    f'schedule: expected one with room for the routing, got {f.schedule} '
    f'({message}): it was tuned for another, see --routing'
  )


def options(f: parser.Values):
  """Returns granularity, cores and order.

  Raises:
    cli.UsageError, OSError, ValueError: as `scheduled`.
  """
  from hpmoe.reference.contract import granularity

  if f.schedule is not None or f['schedule_scaled'].present:
    return scheduled(f, *_layer(f))
  return granularity.Options(**cli.fields(f, tiling_fields.FIELDS))


def _layer(f: parser.Values):
  """Returns the (config, policy) of the flags."""
  from hpmoe.reference.contract import presets

  if 'input' in f and f.input is not None:
    layer_inputs = _of_file(f)
    return layer_inputs.config, layer_inputs.policy
  shape = presets.get(preset(f))
  return presets.config(shape, f.ranks or shape.num_ranks, f.tokens), policy(f)


def _of_file(f: parser.Values):
  from hpmoe.parity_tests.case import input_files

  return input_files.load_safetensors(f.input, f.placement, f.capacity)


def policy(f: parser.Values):
  """Returns the precision policy of the flags.

  Raises:
    ValueError: the dtype does not have the accumulation order, or a word of
      --activation or --policy is none.
  """
  from hpmoe.reference.contract import policies
  from hpmoe.reference.contract import precision

  if 'activation' in f:
    precision.activation_of(f.activation)
  if 'policy' in f:
    policies.fields(f.policy)
  return precision.PrecisionPolicy(
    storage=case_flags.DTYPES[f.dtype],
    placement=f.placement,
    accumulation_order=f.accumulation_order,
  )


# Flags that a file of inputs decides, and how to read each from its layer.
_INPUT_READERS: tuple[tuple[str, Callable], ...] = (
  ('ranks', lambda layer: layer.config.num_ranks),
  ('tokens', lambda layer: layer.config.num_tokens),
  ('dtype', lambda layer: layer.policy.storage),
  ('experts', lambda layer: layer.config.num_experts),
  ('top_k', lambda layer: layer.config.top_k),
  ('d_model', lambda layer: layer.config.d_model),
  ('d_ff', lambda layer: layer.config.d_ff),
  ('bias', lambda layer: layer.config.bias),
  ('d_shared', lambda layer: layer.config.d_shared),
)


def case(f: parser.Values, direction: str | None = None):
  """Returns the case of these options.

  Raises:
    cli.UsageError: an option contradicts --input, or --text contradicts the
      routing.
    ValueError: the file cannot be read.
  """
  from hpmoe.parity_tests.case import case as case_lib

  _refuse_contradictions(f)
  case_fields = cli.fields(f, case_flags.FIELDS) | dict(
    direction=direction or f.direction,
    preset=preset(f),
  )
  return case_lib.Case(**case_fields)


def asked_case(f: parser.Values, direction: str):
  """Returns the case of these options, or that of --case.

  Raises:
    ValueError: the case is wrong, or a flag would have no effect with --case.
  """
  from hpmoe.parity_tests.case import case as case_lib

  if f.case is None:
    return case(f, direction)
  other_names = (r.name for r in case_flags.FLAGS if r.name != 'direction')
  cli.refuse(f, other_names, f'with --case={f.case}, which decides it')
  return case_lib.Case.from_folder(f.case, direction)


def _refuse_contradictions(f: parser.Values) -> None:
  if f.input is None:
    if f['text'].present and f.routing != 'text':
      raise cli.UsageError(f'text: expected --routing=text, got {f.routing!r}')
    return
  cli.refuse(f, ('preset', 'routing', 'text'), f'with --input={f.input}')
  readers = [
    (n, read_value)
    for n, read_value in _INPUT_READERS
    if n in f and f[n].present
  ]
  layer = _of_file(f) if readers else None
  for name, read_value in readers:
    value = case_flags.DTYPES.get(f[name].value, f[name].value)
    if value is not None and value != read_value(layer):
      raise cli.UsageError(
        f'{name}: expected {read_value(layer)}, as in {f.input}, got '
        f'{f[name].value}'
      )
