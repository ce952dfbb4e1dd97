"""The options that cut a layer into tasks: fields of `flow.Options`."""

from hpmoe.parity_tests.case import flag

_ROW_BLOCK = 'Default: --row_block.'

CUT = (
  flag.Flag(
    'event_grain',
    'event_grain',
    'What an event stands for.',
    'row_block',
    choices=('expert', 'row_block'),
  ),
  flag.Flag('row_block', 'row_block', 'Rows of one expert in a tile.', 64, int),
  flag.Flag('col_block', 'col_block', 'Columns of a GEMM tile.', 128, int),
  flag.Flag(
    'vector_rows',
    'vector_rows',
    'Rows of a vector tile and, at grain row_block, of a put home; divides '
    f'--row_block. {_ROW_BLOCK}',
    kind=int,
  ),
  flag.Flag('put_rows', 'put_rows', f'Rows of one put. {_ROW_BLOCK}', kind=int),
  flag.Flag(
    'token_block',
    'token_block',
    f'Tokens of a combine tile. {_ROW_BLOCK}',
    kind=int,
  ),
  flag.Flag(
    'chain_rows',
    'chain_rows',
    'Backward: rows that one task of a weight gradient sums; a chain of tasks '
    'sums the rest. Default: all rows of an expert.',
    kind=int,
    only='backward',
  ),
  flag.Flag(
    'weight_rows',
    'weight_rows',
    'Backward: rows of a weight in a tile of its gradient. Default: '
    '--col_block.',
    kind=int,
    only='backward',
  ),
  flag.Flag(
    'weight_grad_order',
    'order',
    'Backward: weight gradients run next to the input gradient of the same '
    'expert (`interleaved`) or after all input gradients (`last`).',
    'interleaved',
    choices=('interleaved', 'last'),
    only='backward',
  ),
  flag.Flag(
    'relay',
    'relay',
    'A token for several experts of one rank crosses the link once, and is '
    'copied there.',
    False,
    bool,
  ),
)
CORES = (
  flag.Flag('aic', 'num_aic', 'Cube workers of one rank.', 24, int),
  flag.Flag('aiv', 'num_aiv', 'Vector workers of one rank.', 48, int),
)
CORES_OF_PRESET = tuple(
  core.but(
    default=None,
    help=f"{core.help} Default: the preset's, 24 aic and 48 aiv.",
  )
  for core in CORES
)
SCHEDULE = (
  flag.Flag(
    'schedule',
    '',
    'A file of hpmoe tune, which decides granularity and order, and cores '
    'unless --aic or --aiv do; refused if it is of another layer.',
  ),
  flag.Flag(
    'schedule_scaled',
    '',
    'Takes a --schedule of a larger layer: its blocks shrink with the layer, '
    'its order stays.',
    False,
    bool,
  ),
)
FLAGS = (*CUT, *CORES, *SCHEDULE)
# How tensors are cut into tiles, whoever computes them.
TILES = ('row_block', 'col_block', 'token_block')
