r"""The share of a cube core's peak that tiles of the device source reach.

One AIC of the twin runs tiles of a layer, one after the other; each of its
pipes takes what the machine's figures say, and flags order them as they order
an NPU's.  A time is from the end of one tile to the end of the next; the first
is left out.

Example:
  python -m hpmoe.tools.tile_shares --keep
"""

from collections.abc import Iterator
import dataclasses
import itertools

from absl import app
from absl import flags
import numpy as np

from hpmoe.backend_ascend.compiler import compiler
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.device.twin_launch import twin_runtime
from hpmoe.backend_ascend.simulator import simulate
from hpmoe.backend_ascend.simulator.machines import machine as machine_lib
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import storage
from hpmoe.tools.docs import figures

_MACHINE = flags.DEFINE_string(
  'tile_machine', 'ascend_a3', 'Machine whose figures count.'
)

NAME = 'tiles'
TILES = ((64, 128), (128, 256))
DEPTHS = (768, 2048, 7168)
DTYPES = ('bfloat16', 'float32')
NUM_TILES = 5
PIPES = ('mte2', 'mte1', 'm', 'fix')


@dataclasses.dataclass(frozen=True)
class Share:
  """What one tile takes.

  Attributes:
    rows: of it.
    cols: of it.
    depth: terms of each of its sums.
    dtype: of its storage.
    ns: from tile to tile.
    peak: of the cube's, the share that it reaches.
    busy: share of its time in which each of PIPES has work.
  """

  rows: int
  cols: int
  depth: int
  dtype: str
  ns: float
  peak: float
  busy: dict[str, float]


def measure(
  machine: machine_lib.Machine, rows: int, cols: int, depth: int, dtype: str
) -> Share:
  """Returns the time of gate_up tiles [rows, cols] of a depth on one core."""
  policy = precision.PrecisionPolicy(dtype)
  config = config_lib.MoEConfig(
    num_ranks=1,
    num_tokens=rows,
    num_experts=1,
    top_k=1,
    d_model=depth,
    d_ff=NUM_TILES * cols // 2,
  )
  options = granularity.Options(
    row_block=rows, col_block=cols, num_aic=1, num_aiv=1
  )
  image = compiler.compile_forward(config, policy, options).image
  counts = twin_runtime.run(
    image,
    _inputs(config, policy),
    modes=twin_runtime.Modes(
      hazards=False,
      rates={name: machine[name] for name in twin_runtime.RATES},
    ),
  ).counts
  kinds = image.tables['tasks']['kind']
  counts = counts[counts['task'] >= 0]
  tiles = counts[kinds[counts['task']] == layout.Kind.GATE_UP]
  tiles = np.sort(tiles, order='ns_ended')
  ns = np.diff(tiles['ns_ended']).mean()
  _, cube, _ = simulate.ELEMENTS[dtype]
  at_peak = 2 * rows * cols * depth / machine[cube] * 1e9
  busy = {pipe: tiles[f'ns_{pipe}'].mean() / ns for pipe in PIPES}
  return Share(rows, cols, depth, dtype, ns, at_peak / ns, busy)


def _inputs(config, policy) -> dict[str, np.ndarray]:
  """Returns one token an expert row; values take no part in the time."""
  sizes = config.dims()
  dtype = storage.FORMATS[policy.storage].numpy
  t, d, f = sizes['T'], sizes['D'], sizes['F']
  return dict(
    x=np.ones((1, t, d), dtype),
    topk_ids=np.zeros((1, t, 1), np.int32),
    topk_weights=np.ones((1, t, 1), np.float32),
    w_gate_up=np.ones((1, 1, d, 2 * f), dtype),
    w_down=np.ones((1, 1, f, d), dtype),
  )


def table(machine: machine_lib.Machine) -> Iterator[Share]:
  """Yields the share of each dtype, tile and depth."""
  for dtype, (rows, cols), depth in itertools.product(DTYPES, TILES, DEPTHS):
    yield measure(machine, rows, cols, depth, dtype)


def _tile(share: Share) -> str:
  return f'{share.rows}x{share.cols}'


def _row(share: Share) -> list[str]:
  return [
    share.dtype,
    _tile(share),
    str(share.depth),
    f'{share.peak:.2f}',
    *(f'{share.busy[pipe]:.2f}' for pipe in PIPES),
  ]


def main(argv: list[str]) -> None:
  del argv
  rows = []
  for share in table(machine_lib.load(_MACHINE.value)):
    rows.append(_row(share))
    print(*(cell.ljust(10) for cell in rows[-1]), flush=True)
  if figures.KEEP.value:
    ran = figures.run('python -m hpmoe.tools.tile_shares')
    ran |= dict(processor=figures.ANY, load=figures.ANY)
    columns = ['dtype', 'tile', 'K', 'share', *map(str.upper, PIPES)]
    figures.write(NAME, columns, rows, [ran])


if __name__ == '__main__':
  app.run(main)
