"""Options that say which layer, which data and which granularity."""

from collections.abc import Callable, Sequence
import dataclasses
import math
from typing import Any

from absl import flags

from hpmoe.parity_tests.commands import cli
from hpmoe.reference.contract import storage

SHORT = tuple(row.short for row in storage.STORED.values())
DTYPES = {
  **{row.short: name for name, row in storage.STORED.items()},
  **{name: name for name in storage.STORED},
}

WEIGHT_GRAD_ORDERS = ('interleaved', 'last')

_MAX_THREADS = 4096

WEIGHT_GRAD_ORDER_HELP = (
  'Backward: weight gradients run next to the input gradient of the same '
  'expert (`interleaved`) or after all input gradients (`last`).'
)

PLACEMENT_HELP = (
  'Where the routing weight multiplies: `combine`, the returned rows as they '
  'are summed, or `before_down`, the activation before the down GEMM.'
)


ORDER_HELP = (
  "Order of our backend's sums: `ascending`, or of bf16 `even_odd_32`; see "
  'docs/fast_lane.md.'
)

DIRECTIONS = ('forward', 'backward', 'both')
_BACKWARD_ONLY = ('chain_rows', 'weight_grad_order')


def define_direction(f: flags.FlagValues, default: str | None, text: str):
  flags.DEFINE_enum('direction', default, list(DIRECTIONS), text, flag_values=f)


def refuse_without_effect(f: flags.FlagValues, direction: str) -> None:
  """Refuses options of a pass that does not run.

  Raises:
    cli.UsageError: one was given.
  """
  for name in _BACKWARD_ONLY:
    if direction == 'forward' and f[name].present:
      raise cli.UsageError(
        f'{name}: expected none beside direction forward, got '
        f'{cli.text(f[name].value)}: it cuts weight gradients'
      )


def define_layer(f: flags.FlagValues, orders: bool = False) -> None:
  """Defines what names a layer; `orders`: in each of some orders of sums."""
  flags.DEFINE_string(
    'preset',
    'small',
    'Shape of the layer; `tiny`, `small`, `odd`, `deepseek_v3`, '
    '`qwen3_moe`, `mixtral` run here, `*_full` and `ep16` only compile.',
    flag_values=f,
  )
  define_sizes(f)
  flags.DEFINE_integer(
    'tokens',
    None,
    "Tokens of ONE rank. Default: the preset's.",
    flag_values=f,
  )
  flags.DEFINE_enum(
    'dtype', 'f32', list(DTYPES), 'Storage dtype.', flag_values=f
  )
  flags.DEFINE_enum(
    'placement',
    'combine',
    ['combine', 'before_down'],
    PLACEMENT_HELP,
    flag_values=f,
  )
  _define_order(f, a_list=orders)
  flags.DEFINE_integer(
    'capacity',
    None,
    'Rows that one rank can hold. Default: as many as the '
    'routing needs; compile: lossless.',
    flag_values=f,
  )


def define_policy(f: flags.FlagValues) -> None:
  """Defines what a policy leaves to candidates that are not ours."""
  flags.DEFINE_list(
    'unrounded',
    [],
    'Intermediates that the candidate keeps in float32: some of gate_up, '
    'activation, expert_out.',
    flag_values=f,
  )
  for name, text in (
    ('activation_ulp', 'silu may be off, in units of its result. Default: 3.5'),
    ('sigmoid_ulp', 'sigmoid may be off beside, of 1: exp2 0.25, tanh 0.75'),
  ):
    flags.DEFINE_float(
      name,
      None,
      f'How far its {text}; float32 units in the last place.',
      lower_bound=0.0,
      flag_values=f,
    )


def _policy(f: flags.FlagValues) -> dict[str, Any]:
  if 'unrounded' not in f:
    return {}
  units = {name: f[name].value for name in ('activation_ulp', 'sigmoid_ulp')}
  told = {name: value for name, value in units.items() if value is not None}
  return told | {'unrounded': tuple(f.unrounded)}


def _define_order(f: flags.FlagValues, a_list: bool) -> None:
  if a_list:
    flags.DEFINE_list(
      'accumulation_order',
      ['ascending'],
      f'{ORDER_HELP} A list: one verdict each, and in the JSON `reports`.',
      flag_values=f,
    )
    return
  flags.DEFINE_enum(
    'accumulation_order',
    'ascending',
    ['ascending', 'even_odd_32'],
    ORDER_HELP,
    flag_values=f,
  )


def orders(values: Sequence[str]) -> tuple[str, ...]:
  """Returns the orders of accumulation that a list names.

  Raises:
    cli.UsageError: one is unknown, or there is none.
  """
  from hpmoe.reference.contract import precision

  known = precision.ACCUMULATION_ORDERS
  unknown = [value for value in values if value not in known]
  if unknown or not values:
    raise cli.UsageError(
      f'accumulation_order: expected some of {list(known)}, got '
      f'{cli.text(unknown[:1])!r}'
    )
  return tuple(dict.fromkeys(values))


def order_of(f: flags.FlagValues) -> str:
  """Returns the order of accumulation, the first of a list."""
  asked = f.accumulation_order
  return asked if isinstance(asked, str) else orders(asked)[0]


_SIZES = (
  ('experts', 'Experts of the layer, E.'),
  ('top_k', 'Experts of a token, K.'),
  ('d_model', 'Model width, D.'),
  ('d_ff', 'Expert width, F.'),
)


def define_sizes(f: flags.FlagValues) -> None:
  for name, text in _SIZES:
    flags.DEFINE_integer(
      name, None, f"{text} Default: the preset's.", 1, flag_values=f
    )


def preset(f: flags.FlagValues, name: str | None = None) -> str:
  """Returns the preset with the sizes that were given (`presets.get`).

  Raises:
    cli.UsageError: the experts do not divide among ranks that nobody gave.
  """
  _refuse_uneven_experts(f, name or f.preset)
  sizes = [f'{n}={f[n].value}' for n, _ in _SIZES if f[n].value is not None]
  return ':'.join([name or f.preset, *sizes])


def _refuse_uneven_experts(f: flags.FlagValues, preset: str) -> None:
  """Blames the number that was typed, not the default of the other."""
  from hpmoe.reference.contract import presets

  if f.experts is None or f['ranks'].present:
    return
  default = f.ranks or presets.get(preset).num_ranks
  ranks = default if isinstance(default, list) else [default]
  uneven = [r for r in map(int, ranks) if f.experts % r]
  if uneven:
    raise cli.UsageError(
      f'experts: expected a multiple of {uneven[0]}, or --ranks beside it '
      f'(default: {cli.text(default)}), got {f.experts}'
    )


def define_granularity(f: flags.FlagValues, aic=24, aiv=48) -> None:
  of_preset = '' if aic else " Default: the preset's, 24 aic and 48 aiv."
  flags.DEFINE_enum(
    'event_grain',
    'row_block',
    ['expert', 'row_block'],
    'What an event stands for.',
    flag_values=f,
  )
  for name, default, text in (
    ('row_block', 64, 'Rows of one expert in a tile.'),
    ('col_block', 128, 'Columns of a GEMM tile.'),
    (
      'vector_rows',
      None,
      'Rows of a vector tile and, at grain row_block, of a put home; divides '
      '--row_block. Default: --row_block.',
    ),
    ('put_rows', None, 'Rows of one put. Default: --row_block.'),
    ('token_block', None, 'Tokens of a combine tile. Default: --row_block.'),
    (
      'chain_rows',
      None,
      'Backward: rows that one task of a weight gradient '
      'sums; a chain of tasks sums the rest. Default: all rows of an expert.',
    ),
    ('aic', aic, f'Cube workers of one rank.{of_preset}'),
    ('aiv', aiv, f'Vector workers of one rank.{of_preset}'),
  ):
    flags.DEFINE_integer(name, default, text, flag_values=f)
  flags.DEFINE_enum(
    'weight_grad_order',
    'interleaved',
    list(WEIGHT_GRAD_ORDERS),
    WEIGHT_GRAD_ORDER_HELP,
    flag_values=f,
  )
  define_relay(f)
  define_schedule(f)


def define_relay(f: flags.FlagValues) -> None:
  flags.DEFINE_boolean(
    'relay',
    False,
    'A token for several experts of one rank crosses the link once, and is '
    'copied there.',
    flag_values=f,
  )


# What a schedule decides, where a command has an option for it.
_SAID_BY_SCHEDULE = (
  'event_grain',
  'row_block',
  'col_block',
  'put_rows',
  'token_block',
  'chain_rows',
  'weight_grad_order',
  'relay',
  'capacity_factor',
)


def define_schedule(f: flags.FlagValues) -> None:
  flags.DEFINE_string(
    'schedule',
    None,
    'A file of hpmoe tune, which decides granularity and order, and cores '
    'unless --aic or --aiv do; refused if it is of another layer.',
    flag_values=f,
  )
  flags.DEFINE_boolean(
    'schedule_scaled',
    False,
    'Takes a --schedule of a larger layer: its blocks shrink with the layer, '
    'its order stays.',
    flag_values=f,
  )


def scheduled(f: flags.FlagValues, config, policy):
  """Returns the options that --schedule has for a layer, None without it.

  Raises:
    cli.UsageError: an option beside it would have no effect.
    OSError: the file cannot be read.
    ValueError: it is damaged, or of another layer.
  """
  from hpmoe.backend_ascend.schedule import schedule_file

  if f.schedule is None:
    if f['schedule_scaled'].present:
      raise cli.UsageError('schedule_scaled: expected --schedule beside it')
    return None
  if not f.schedule:
    raise cli.UsageError('schedule: expected a file of hpmoe tune, got none')
  for name in {*_SAID_BY_SCHEDULE} & {*f}:
    if f[name].present:
      raise cli.UsageError(
        f'{name}: expected none beside --schedule={f.schedule}, got '
        f'{cli.text(f[name].value)}'
      )
  found = schedule_file.of(f.schedule, config, policy, f.schedule_scaled)
  cores = {
    field: f[name].value
    for name, field in (('aic', 'num_aic'), ('aiv', 'num_aiv'))
    if name in f and f[name].present
  }
  return dataclasses.replace(found, **cores)


def refused(f: flags.FlagValues, why: str) -> str:
  """Returns why a request was refused, with the flag that is to blame."""
  room = why.startswith('topk_ids: expected at most expert_capacity=')
  if not room or 'schedule' not in f or not f.schedule:
    return why
  return (
    f'schedule: expected one with room for the routing, got {f.schedule} '
    f'({why}): it was tuned for another, see --routing'
  )


def define_data(f: flags.FlagValues) -> None:
  flags.DEFINE_integer('ranks', 4, 'Expert-parallel ranks.', flag_values=f)
  flags.DEFINE_string(
    'routing',
    'text',
    '`text`, `balanced`, `zipf`, `hot`, `one_rank`, '
    '`empty_experts`, or a .safetensors or .npz file with topk_ids int32 '
    '[R,T,K] and optionally topk_weights float32 [R,T,K].',
    flag_values=f,
  )
  flags.DEFINE_string(
    'input',
    None,
    'A .safetensors or .npz file with x, topk_ids, '
    'topk_weights, w_gate_up, w_down and perhaps dy; its shapes replace the '
    'preset.',
    flag_values=f,
  )
  flags.DEFINE_string(
    'text',
    None,
    'A text to embed and route. Default: the one that ships.',
    flag_values=f,
  )
  flags.DEFINE_integer('seed', 0, 'Seed of all values.', flag_values=f)


def options(f: flags.FlagValues):
  """Returns granularity, cores and order.

  Raises:
    cli.UsageError, OSError, ValueError: as `scheduled`.
  """
  from hpmoe.backend_ascend.taskflow import flow as flow_lib

  if f.schedule is not None or f['schedule_scaled'].present:
    return scheduled(f, *_layer(f))
  return flow_lib.Options(
    event_grain=f.event_grain,
    row_block=f.row_block,
    col_block=f.col_block,
    vector_rows=f.vector_rows,
    put_rows=f.put_rows,
    token_block=f.token_block,
    num_aic=f.aic,
    num_aiv=f.aiv,
    chain_rows=f.chain_rows,
    order=flow_lib.WEIGHT_GRAD_ORDERS[f.weight_grad_order],
    relay=f.relay,
  )


def _layer(f: flags.FlagValues):
  """Returns the (config, policy) that is asked for, as far as flags say."""
  from hpmoe.parity_tests.case import inputs
  from hpmoe.reference.contract import presets

  if 'input' in f and f.input is not None:
    made = inputs.load_safetensors(f.input, f.placement, f.capacity)
    return made.config, made.policy
  shape = presets.get(preset(f))
  return presets.config(shape, f.ranks or shape.num_ranks, f.tokens), policy(f)


def policy(f: flags.FlagValues):
  """Returns the precision policy that is asked for.

  Raises:
    ValueError: the order is not one of the dtype.
  """
  from hpmoe.reference.contract import precision

  return precision.PrecisionPolicy(
    storage=DTYPES[f.dtype],
    placement=f.placement,
    accumulation_order=order_of(f),
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
)
_REPLACED_BY_INPUT = ('preset', 'routing', 'text')


def case(f: flags.FlagValues, direction: str | None = None):
  """Returns the case of these options."""
  from hpmoe.parity_tests.case import case as case_lib

  return case_lib.Case(
    direction=direction or f.direction,
    preset=preset(f),
    ranks=f.ranks,
    tokens=f.tokens,
    dtype=DTYPES[f.dtype],
    routing=f.routing,
    input=f.input,
    text=f.text,
    seed=f.seed,
    placement=f.placement,
    accumulation_order=order_of(f),
    capacity=f.capacity,
    **_policy(f),
  )


def refuse_contradictions(f: flags.FlagValues) -> None:
  """Refuses options that were given and would have no effect.

  Raises:
    cli.UsageError: one contradicts the file of --input, or --text the routing.
    ValueError: the file cannot be read.
  """
  if f.input is None:
    if f['text'].present and f.routing != 'text':
      raise cli.UsageError(f'text: expected --routing=text, got {f.routing!r}')
    return
  for name in _REPLACED_BY_INPUT:
    if f[name].present and f[name].value is not None:
      raise cli.UsageError(
        f'{name}: expected none beside --input={f.input}, got {f[name].value}'
      )
  asked = [(n, said) for n, said in _SAID_BY_INPUT if f[n].present]
  if not asked:
    return
  from hpmoe.parity_tests.case import inputs

  made = inputs.load_safetensors(f.input, f.placement, f.capacity)
  for name, said in asked:
    value = DTYPES.get(f[name].value, f[name].value)
    if value is not None and value != said(made):
      raise cli.UsageError(
        f'{name}: expected {said(made)}, as in {f.input}, got {f[name].value}'
      )


def refuse_out_of_range(f: flags.FlagValues) -> None:
  """Refuses what our runtime would refuse only after the inputs are made."""
  if f.threads is not None and not 1 <= f.threads <= _MAX_THREADS:
    raise cli.UsageError(
      f'threads: expected 1 to {_MAX_THREADS}, got {f.threads}'
    )
  for name in {'deadline', 'timeout'} & set(f):
    seconds = float(f[name].value or 0)
    if not 0 < seconds < math.inf:
      raise cli.UsageError(
        f'{name}: expected seconds, more than 0, got {seconds:g}'
      )


def integers(name: str, values: Sequence[str]) -> tuple[int, ...]:
  try:
    return tuple(int(value) for value in values)
  except ValueError as error:
    raise cli.UsageError(f'{name}: expected integers, got {values}') from error


def define_isa(f: flags.FlagValues, text: str) -> None:
  flags.DEFINE_list(
    'isa',
    [],
    f'{text} Some of what this CPU has. Default: the best. A list.',
    flag_values=f,
  )


def dtype_list(values: Sequence[str]) -> tuple[str, ...]:
  for value in values:
    if value not in DTYPES:
      raise cli.UsageError(
        f'dtype: expected some of {list(DTYPES)}, got {value!r}'
      )
  return tuple(DTYPES[value] for value in values)
