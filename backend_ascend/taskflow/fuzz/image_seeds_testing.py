"""Small images of every form, for the fuzzer to begin with.

`python -m hpmoe.backend_ascend.taskflow.fuzz.image_seeds_testing FOLDER` writes
them.
"""

import itertools
import pathlib
import sys

from hpmoe.backend_ascend import compiler
from hpmoe.backend_ascend.taskflow import flow as flow_lib
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import precision

_COMPILE = {
  'forward': compiler.compile_forward,
  'backward': compiler.compile_backward,
}
# Every expert alone with its rank; K = E; T no multiple of any block.
_SHAPES = {
  'two_ranks': config_testing.sized(r=2, t=2, e=2, k=1, d=2, f=1),
  'one_rank': config_testing.sized(r=1, t=3, e=2, k=2, d=3, f=2),
  'four_experts': config_testing.sized(r=2, t=3, e=4, k=2, d=4, f=2),
}


def images() -> dict[str, bytes]:
  """Returns sealed images by name."""
  made = {}
  for direction, shape, grain, (storage, placement), relay in itertools.product(
    _COMPILE,
    _SHAPES,
    flow_lib.EVENT_GRAINS,
    [
      ('float32', 'combine'),
      ('bfloat16', 'before_down'),
      ('float16', 'epilogue'),
    ],
    [False, True],
  ):
    image = _COMPILE[direction](
      _SHAPES[shape],
      precision.PrecisionPolicy(storage=storage, placement=placement),
      flow_lib.Options(
        grain, 2, 2, num_aic=1, num_aiv=2, chain_rows=2, relay=relay
      ),
    ).image
    way = 'relayed' if relay else 'direct'
    name = f'{direction}-{shape}-{grain}-{storage}-{placement}-{way}'
    made[name] = bytes(image)
  return made


def main() -> None:
  folder = pathlib.Path(sys.argv[1])
  folder.mkdir(parents=True, exist_ok=True)
  for name, image in images().items():
    (folder / name).write_bytes(image)


if __name__ == '__main__':
  main()
