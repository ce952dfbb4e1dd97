"""The options that cut a layer into tasks: fields of `granularity.Options`."""

import dataclasses

from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import option_fields


@dataclasses.dataclass(frozen=True)
class ScheduleOptions:
  """A file that decides granularity and order."""

  schedule: str | None = option_fields.option(
    None,
    'A file of hpmoe tune, which decides granularity, order and, without '
    '--aic and --aiv, the number of cores. Refused if the file belongs to '
    'another layer.',
  )
  schedule_scaled: bool = option_fields.option(
    False,
    'Applies a --schedule of a larger layer: blocks shrink with the layer, '
    'the order stays.',
  )


_CORES = ('aic', 'aiv')
FIELDS = option_fields.list_options(granularity.Options)
CUT = tuple(row for row in FIELDS if row.name not in _CORES)
CORES = tuple(row for row in FIELDS if row.name in _CORES)
CORES_OF_PRESET = tuple(
  core.replace(
    default=None,
    help=f"{core.help} Default: the preset's, 24 aic and 48 aiv.",
  )
  for core in CORES
)
SCHEDULE = option_fields.list_options(ScheduleOptions)
FLAGS = (*CUT, *CORES, *SCHEDULE)
# The sizes of tiles, for any candidate.
TILES = ('row_block', 'col_block', 'token_block')
