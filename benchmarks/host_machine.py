r"""Measures this host as a machine for the simulator, and writes it as TOML.

Costs are fitted, by least squares of relative errors, to what tasks take in
launches on one thread: layers of other sizes than those that are predicted,
forward and backward, tiles of nine sizes.  A product is priced by its flops,
the bytes that it packs, the bytes that it writes and a constant, other tiles
by elements or bytes.  What a task, a signal and a look at a worker cost is
what lies between the tasks.  Launches take turns, medians count.

Other jobs on the same cores spoil the figures; where one may, run it in the
scheduler's real-time class (`chrt -f 1`).

Example:
  python -m benchmarks.host_machine \
    --out=backend_ascend/simulator/machines/host.toml
"""

import concurrent.futures
import dataclasses
import functools
import os
import pathlib
import platform
import statistics
import time
import tomllib

from absl import app
from absl import flags
import numpy as np
from scipy import optimize

from hpmoe.backend_ascend.kernels.host.checks import modes as modes_lib
from hpmoe.backend_ascend.kernels.host.launch import runtime
from hpmoe.backend_ascend.kernels.host.launch import runtime_testing
from hpmoe.backend_ascend.simulator import simulate
from hpmoe.backend_ascend.simulator.machines import machine as machine_lib
from hpmoe.backend_ascend.taskflow import happens_before
from hpmoe.backend_ascend.taskflow import image as image_lib
from hpmoe.backend_ascend.taskflow import layout
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import precision

_OUT = flags.DEFINE_string('out', None, 'Write the TOML here, or print it.')
_ROUNDS = flags.DEFINE_integer('rounds', 9, 'Interleaved repetitions.')

_ROW_BLOCKS = (16, 64, 256)
_COL_BLOCKS = (32, 128, 384)
_SIZES = config_lib.MoEConfig(
  num_ranks=2, num_tokens=256, num_experts=8, top_k=4, d_model=768, d_ff=384
)
_STREAM_BYTES = 2**28
_CACHED_BYTES = 2**23
_NEVER = 1e30
_TINY = config_lib.MoEConfig(
  num_ranks=4, num_tokens=64, num_experts=16, top_k=4, d_model=32, d_ff=16
)

# Units by choice, and what a host does not have, or in no time.
_ASSUMED = {
  'aic': (65535, 'workers are virtual: as many as an image can have'),
  'aiv': (65535, 'workers are virtual: as many as an image can have'),
  'sum_ops': (1, 'an operation is an element that combine reads'),
  'cube_efficiency': (1, 'of the rate that products were fitted with'),
  'operator_efficiency': (1, 'a launch has no operators'),
  'cube_tile_rows': (1e6, 'a product of any height is packed once'),
  'cube_tile_cols': (1e6, 'a product of any width is packed once'),
  'aic_read': (1e15, 'in what packing takes'),
  'launch': (0, 'a launch has no operators'),
  'collective': (1, 'there are no links'),
}


@dataclasses.dataclass(frozen=True)
class Launches:
  """Launches of one image on one thread: what tasks ask, and took.

  Attributes:
    image: what was launched.
    topk_ids: `[R, T, K]`, its routing.
    took: `[tasks]` s, medians.
    order: `[tasks]`, tasks in the order in which they began.
    gap: `[tasks - 1]` s from an end to the next start, medians.
  """

  image: image_lib.Image
  topk_ids: np.ndarray
  took: np.ndarray
  order: np.ndarray
  gap: np.ndarray


def launch_all(
  cases: list[runtime_testing.Case], rounds: int
) -> list[Launches]:
  """Returns each case launched so many times; the cases take turns."""
  seen: list[list[modes_lib.Times]] = [[] for _ in cases]
  for turn in range(rounds + 1):
    for times, layer in zip(seen, cases):
      if turn > 0:
        times.append(_times(layer))
      else:
        _times(layer)
  found = []
  for times, layer in zip(seen, cases):
    order = np.argsort(times[0].start, kind='stable')
    # On one thread the order does not change.
    assert all((np.diff(one.start[order]) >= 0).all() for one in times)
    gaps = [one.start[order[1:]] - one.end[order[:-1]] for one in times]
    found.append(
      Launches(
        image=layer.image,
        topk_ids=layer.inputs['topk_ids'],
        took=np.median([one.end - one.start for one in times], axis=0),
        order=order,
        gap=np.median(gaps, axis=0),
      )
    )
  return found


@functools.cache
def free() -> machine_lib.Machine:
  """Returns a host on which nothing takes time, and an operation is 1."""
  values = {name: _NEVER for name in machine_lib.UNITS}
  values |= {n: 0.0 for n, u in machine_lib.UNITS.items() if u in ('s', 's/B')}
  values |= {n: 1.0 for n, u in machine_lib.UNITS.items() if u in ('1', 'op')}
  values |= dict(threads=1.0)
  return machine_lib.parse(
    tomllib.loads(
      toml({n: (v, 'assumed', 'free') for n, v in values.items()}, 0)
    ),
    'free',
  )


def price(launched: Launches, **figures: float) -> np.ndarray:
  """Returns `[tasks]`: a core's own time where only these figures cost."""
  machine = free().with_figures(**figures)
  return simulate.costs(launched.image, machine, launched.topk_ids).own


def fitted(terms: np.ndarray, seconds: np.ndarray) -> np.ndarray:
  """Returns what each column of terms costs, none less than nothing.

  By least squares of errors over the root of the time: a task counts as much as
  the time that it takes.
  """
  scale = terms.max(axis=0)
  weights = seconds**-0.5
  found, _ = optimize.nnls(terms / scale * weights[:, None], seconds * weights)
  return found / scale


def fit_kinds(
  launches: list[Launches],
  kinds: tuple[layout.Kind, ...],
  *columns: dict[str, float],
) -> np.ndarray:
  """Returns s of each column's figures, and of a task.

  Tasks without work are left out.
  """
  rows, seconds = [], []
  for one in launches:
    prices = np.stack([price(one, **figures) for figures in columns], axis=1)
    mine = np.isin(one.image.tables['tasks']['kind'], kinds)
    mine &= prices.max(axis=1) > 0.5  # free things cost far less than one unit
    ones = np.ones((mine.sum(), 1))
    rows.append(np.concatenate([prices[mine], ones], axis=1))
    seconds.append(one.took[mine])
  return fitted(np.concatenate(rows), np.concatenate(seconds))


def cases_of(dtype: str) -> list[runtime_testing.Case]:
  policy = precision.PrecisionPolicy(storage=dtype)
  return [
    runtime_testing.make_case(
      direction,
      _SIZES,
      policy,
      row_block=rows,
      col_block=cols,
      token_block=64,
      num_aic=4,
      num_aiv=4,
    )
    for direction in layout.Direction
    for rows in _ROW_BLOCKS
    for cols in _COL_BLOCKS
  ]


_PRODUCTS = tuple(
  kind for kind in layout.Kind if layout.UNIT_OF_KIND[kind] == layout.Unit.AIC
)
_PUTS = layout.kinds(layout.Form.SLICE_PUT, layout.Form.HOME_PUT)


def products(launches: list[Launches]) -> np.ndarray:
  """Returns s of a flop, of a byte packed, of a byte written, of a task."""
  rate = dict(cube_f32=1.0, cube_bf16=1.0)
  return fit_kinds(
    launches, _PRODUCTS, rate, dict(pack=1.0), dict(aic_write=1.0)
  )


def memory_rate(nbytes: int, threads: int, rounds: int) -> float:
  """Returns B/s that all threads together read of as many bytes each."""
  arrays = [np.ones(nbytes // 4, np.float32) for _ in range(threads)]
  seconds = []
  with concurrent.futures.ThreadPoolExecutor(threads) as pool:
    for _ in range(rounds):
      begin = time.perf_counter()
      list(pool.map(lambda one: np.dot(one, one), arrays))
      seconds.append(time.perf_counter() - begin)
  return threads * nbytes / statistics.median(seconds)


def between(rounds: int) -> np.ndarray:
  """Returns s between tasks on one thread: of one, a signal, a look, `[3]`."""
  cases = [
    runtime_testing.make_case(
      layout.Direction.FORWARD,
      _TINY,
      row_block=16,
      col_block=16,
      num_aic=workers,
      num_aiv=workers,
    )
    for workers in (2, 8, 24)
  ]
  launches = launch_all(cases, rounds)
  terms = np.concatenate([_looks(one.image, one.order) for one in launches])
  gaps = np.concatenate([one.gap for one in launches])
  return fitted(terms, np.maximum(gaps, 1e-9))


def _times(layer: runtime_testing.Case) -> modes_lib.Times:
  launched = runtime.run(
    layer.image,
    layer.inputs,
    threads=1,
    plan=layer.routing,
    modes=modes_lib.Modes(times=True),
  )
  assert launched.times is not None
  return launched.times


def _looks(image: image_lib.Image, order: np.ndarray) -> np.ndarray:
  """Returns 1, signals of a task, workers looked at before the next one."""
  tasks = image.tables['tasks']
  queue = happens_before.places(image)[0][order]
  signals = tasks['signal_count'][order[:-1]].astype(float)
  count = len(image.tables['queues'])
  steps = (queue[1:] - queue[:-1]) % count
  return np.stack([np.ones_like(signals), signals, steps.astype(float)], 1)


def _cache_bytes() -> tuple[int, str]:
  caches = sorted(
    pathlib.Path('/sys/devices/system/cpu/cpu0/cache').glob('index*/size')
  )
  if not caches:
    return 2**25, 'this system does not say'
  size = caches[-1].read_text().strip()
  scale = {'K': 2**10, 'M': 2**20}
  return int(size[:-1]) * scale[size[-1]], f'what this system says: {size}'


def cpu() -> str:
  """Returns the model of the CPU, as far as the system says."""
  info = pathlib.Path('/proc/cpuinfo')
  lines = info.read_text().splitlines() if info.exists() else []
  names = [line.split(':')[1].strip() for line in lines if 'model name' in line]
  return names[0] if names else platform.machine()


def figures(rounds: int) -> dict[str, tuple[float, str, str]]:
  """Returns value, tag and source of each figure."""
  threads = len(os.sched_getaffinity(0))
  launches = launch_all(cases_of('float32'), rounds)
  flop, packed, wrote, product = products(launches)
  half = products(launch_all(cases_of('bfloat16'), rounds))
  vector = lambda kind: fit_kinds(launches, (kind,), dict(vector=1.0))
  add = vector(layout.Kind.COMBINE)
  activation = vector(layout.Kind.SWIGLU)
  grad = vector(layout.Kind.SWIGLU_GRAD)
  put, of_put = fit_kinds(launches, _PUTS, dict(aiv_link=1.0, aiv_write=1.0))
  gap, signal, look = between(rounds)
  cache, said = _cache_bytes()
  fit = (
    f'fit to tasks of launches on one thread: {len(_ROW_BLOCKS)} x '
    f'{len(_COL_BLOCKS)} tile sizes, both passes'
  )
  gaps = 'between tasks of launches on one thread, fit over 3 worker counts'
  measured = dict(
    threads=(threads, 'cores that this process may run on'),
    cube_f32=(1 / flop, fit),
    cube_bf16=(1 / half[0], f'{fit}, bfloat16'),
    pack=(packed, fit),
    aic_write=(
      1 / max(wrote, 1e-15),
      fit if wrote > 1e-15 else f'{fit}: no price was seen',
    ),
    hbm=(
      memory_rate(_STREAM_BYTES, threads, rounds),
      f'dot of {_STREAM_BYTES >> 20} MiB a thread, all threads at once',
    ),
    l2=(
      memory_rate(_CACHED_BYTES, threads, rounds),
      f'dot of {_CACHED_BYTES >> 20} MiB a thread, all threads at once',
    ),
    l2_bytes=(cache, said),
    vector=(1 / add[0], f'{fit}: elements that combine reads'),
    activation_ops=(activation[0] / add[0], f'{fit}: SwiGLU'),
    activation_grad_ops=(grad[0] / add[0], f'{fit}: gradient of SwiGLU'),
    aiv_read=(2 / put, 'twice the rate of puts, which read and write'),
    aiv_write=(1 / put, f'{fit}: puts'),
    aiv_link=(1 / put, f'{fit}: puts, which are copies'),
    put_head=(of_put, f'{fit}: of a put'),
    aic_task=(gap, gaps),
    product=(product, f'{fit}: a constant'),
    aiv_task=(gap + min(activation[1], add[1]), f'{gaps}; and {fit}'),
    signal=(signal, gaps),
    poll=(look, f'{gaps}: a worker looked at'),
  )
  assumed = dict(_ASSUMED)
  assumed['cube_int8'] = (1 / flop, 'no such kernel: as float32')
  return {
    name: (value, tag, source)
    for tag, table in (('measured', measured), ('assumed', assumed))
    for name, (value, source) in table.items()
  }


def toml(found: dict[str, tuple[float, str, str]], rounds: int) -> str:
  """Returns the machine's file."""
  units = machine_lib.UNITS | {'near': 's'}
  found = found | {'near': (0.0, 'assumed', 'a put is over when it is copied')}
  lines = [
    f'# Written by benchmarks/host_machine.py, medians of {rounds} rounds.',
    '# One process: threads drive the workers of all ranks in one memory.',
    "name = 'host'",
    f"about = 'This kind of host: {cpu()}, {found['threads'][0]} threads'",
    '',
    '[figures]',
  ]
  for name in [*machine_lib.UNITS, 'near']:
    value, tag, source = found[name]
    lines.append(
      f"{name} = {{ value = {value:.6g}, unit = '{units[name]}', "
      f"tag = '{tag}', source = '{source}' }}"
    )
  lines += [
    '',
    '[fabric.links]',
    '',
    '[[fabric.routes]]',
    'links = []',
    "latency = 'near'",
  ]
  return '\n'.join(lines) + '\n'


def main(argv: list[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'expected no arguments, got {argv[1:]}')
  text = toml(figures(_ROUNDS.value), _ROUNDS.value)
  print(text)
  if _OUT.value:
    pathlib.Path(_OUT.value).write_text(text, encoding='utf-8')


if __name__ == '__main__':
  app.run(main)
