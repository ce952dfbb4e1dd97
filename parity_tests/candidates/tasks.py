"""The options that cut a layer into tasks: fields of `granularity.Options`."""

from hpmoe.parity_tests.case import flag_tables

CUT = flag_tables.read_flags('cut')
CORES = flag_tables.read_flags('cores')
CORES_OF_PRESET = tuple(
  core.replace(
    default=None,
    help=f"{core.help} Default: the preset's, 24 aic and 48 aiv.",
  )
  for core in CORES
)
SCHEDULE = flag_tables.read_flags('schedule')
FLAGS = (*CUT, *CORES, *SCHEDULE)
# The sizes of tiles, for any candidate.
TILES = ('row_block', 'col_block', 'token_block')
