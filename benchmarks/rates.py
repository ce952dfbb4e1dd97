r"""Tasks compiled, proved and simulated, and points of the tuner, in a second.

Tasks are those of the largest layer of HyperParallel-MoE's table (arXiv
2605.23764), EP16 forward on A3 dies: R=16, E=128, K=8, D=7168, F=2048, tiles of
128 x 256, 24 AIC + 48 AIV per rank, every token on other experts.  More tokens
give more tasks; ten million take 8 GB, mostly to lower them.  Points are those
of the tuner's grid on its EP8 row, both passes of each.  Messages are one a
task, of eight ranks over CAIS's switches, by what they ask of them.

Targets, in processor time of one core: 100,000 tasks/s lowered, placed,
serialised and proved; 1,000,000 tasks/s simulated; each rate the same at ten
times the tasks; 200,000 points/s timed by the analytical model; 500,000
tasks/s that send a message.

Example:
  python -m benchmarks.rates --tasks=1000000,10000000 --keep
"""

from collections.abc import Callable
import dataclasses
import statistics
import time
from typing import TypeVar

from absl import app
from absl import flags
import numpy as np

from hpmoe.backend_ascend.schedule import list_order
from hpmoe.backend_ascend.schedule import orders
from hpmoe.backend_ascend.schedule import placement
from hpmoe.backend_ascend.simulator import simulate
from hpmoe.backend_ascend.simulator.flows import flow as flows
from hpmoe.backend_ascend.simulator.machines import machine as machine_lib
from hpmoe.backend_ascend.taskflow import flow as flow_lib
from hpmoe.backend_ascend.taskflow import image as image_lib
from hpmoe.backend_ascend.taskflow import lower_forward
from hpmoe.backend_ascend.taskflow.proofs import proofs
from hpmoe.backend_ascend.tune import space
from hpmoe.backend_ascend.tune import tuner
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import precision
from hpmoe.tools.docs import figures

_TASKS = flags.DEFINE_list(
  'tasks', ['10000', '100000', '1000000'], 'About how many tasks.'
)
_REPEATS = flags.DEFINE_integer(
  'repeats', 3, 'Repetitions, of which the median counts.'
)

LAYER = config_lib.MoEConfig(
  num_ranks=16,
  num_tokens=4096,
  num_experts=128,
  top_k=8,
  d_model=7168,
  d_ff=2048,
)
POLICY = precision.PrecisionPolicy('bfloat16')
_SHOWN = ('compile', 'simulate')
Made = TypeVar('Made')


class Stages:
  """Seconds of the processor by what they were spent on."""

  def __init__(self) -> None:
    self.seconds: dict[str, float] = {}

  def timed(self, name: str, work: Callable[[], Made]) -> Made:
    begin = time.process_time()
    made = work()
    self.seconds[name] = time.process_time() - begin
    return made


def layer_of(tasks: int) -> tuple[config_lib.MoEConfig, flow_lib.Options]:
  """Returns a layer of about so many tasks, with room for uneven routing."""
  # A block of 128 tokens of a rank makes 8 row blocks of some 50 tasks.
  tokens = 128 * max(1, round(tasks / (LAYER.num_ranks * LAYER.top_k * 50)))
  rows = -(-tokens * LAYER.top_k * 9 // 8 // 128) * 128
  experts_of_rank = LAYER.num_experts // LAYER.num_ranks
  return (
    dataclasses.replace(LAYER, num_tokens=tokens, capacity=rows),
    flow_lib.Options(
      row_block=128,
      col_block=256,
      put_rows=128,
      expert_capacity=-(-rows // experts_of_rank // 128) * 128,
    ),
  )


def make_routing(config: config_lib.MoEConfig) -> np.ndarray:
  """Returns `[R, T, K]`: K experts in a row of a shuffled circle, T of them."""
  rng = np.random.default_rng(0)
  circle = rng.permutation(config.num_experts)
  first = np.stack(
    [rng.permutation(config.num_tokens) for _ in range(config.num_ranks)]
  )
  places = first[..., None] * config.top_k + np.arange(config.top_k)
  return circle[places % config.num_experts].astype(np.int32)


def of_tasks(tasks: int) -> tuple[int, dict[str, float]]:
  """Returns how many tasks there were, and seconds of each stage."""
  config, options = layer_of(tasks)
  stages = Stages()
  flow = stages.timed(
    'lower', lambda: lower_forward.lower_forward(config, POLICY, options)
  )
  flow = stages.timed(
    'place', lambda: placement.place(flow, orders.in_order(flow))
  )
  image = stages.timed('serialise', lambda: image_lib.serialize(flow))
  stages.timed('prove', lambda: proofs.require(image))
  stages.seconds['compile'] = sum(stages.seconds.values())
  loaded, ids = image_lib.load(image), make_routing(config)
  machine = machine_lib.load('ascend_a3')
  stages.timed('simulate', lambda: simulate.simulate(loaded, machine, ids))
  return len(flow.tasks), stages.seconds


def of_points() -> tuple[int, dict[str, float]]:
  """Returns how many points the grid has, and seconds to make and time it."""
  config = dataclasses.replace(
    LAYER, num_ranks=8, num_experts=64, capacity=32768
  )
  search = tuner.Tuner(
    tuner.Layer(
      config,
      POLICY,
      machine_lib.load('ascend_a3'),
      dict(balanced=list_order.balanced(config)),
      'ascend',
    )
  )
  stages = Stages()
  grid = stages.timed(
    'grid', lambda: space.grid(config, search.base, space.GRID, search.runs)
  )
  stages.timed('model', lambda: search.predict(grid.table))
  return len(grid.table), stages.seconds


def of_messages(
  op: flows.Op, peers: int, tasks: int = 200_000
) -> tuple[int, dict[str, float]]:
  """Returns how many tasks, and seconds to simulate a message of each."""
  ranks = 8
  number = np.arange(tasks)
  rank = number % ranks
  made = flows.Flow(ranks)
  pools = made.add_pools(np.full(ranks, 64))
  merged = op in (flows.Op.GET, flows.Op.REDUCE_PUT)
  messages = made.add_messages(
    made.add_tasks(pools[rank], 1e-6),
    op,
    rank,
    65536.0,
    key=number // ranks if merged else -1,
    expected=ranks,
  )
  for step in range(1, peers + 1):
    to = number // ranks % ranks if merged else (rank + step) % ranks
    made.add_peers(messages, to)
  machine = machine_lib.load('cais')
  stages = Stages()
  stages.timed('simulate', lambda: flows.simulate(made, machine))
  return tasks, stages.seconds


def rates(
  measure: Callable[[], tuple[int, dict[str, float]]], unit: str
) -> dict[str, float]:
  """Returns, and prints, a count and its medians a second by stage."""
  runs = [measure() for _ in range(_REPEATS.value)]
  count = runs[0][0]
  found = {
    stage: count / statistics.median(seconds[stage] for _, seconds in runs)
    for stage in runs[0][1]
  }
  told = ', '.join(f'{stage} {rate:,.0f}' for stage, rate in found.items())
  print(f'{count:>9} {unit}, a second: {told}', flush=True)
  return {unit: count} | found


def main(argv):
  del argv
  rows = [
    rates(lambda tasks=tasks: of_tasks(tasks), 'tasks')
    for tasks in map(int, _TASKS.value)
  ]
  rows.append(rates(of_points, 'points'))
  for op in flows.Op:
    peers = 7 if op in (flows.Op.PUT, flows.Op.REDUCE_GET) else 1
    print(f'{op.name}, {peers} peers:')
    rates(lambda op=op, peers=peers: of_messages(op, peers), 'messages')
  columns = ['tasks', 'compiled, million/s', 'simulated, million/s']
  table = [
    [f'{row["tasks"]:,}', *(f'{row[of] / 1e6:.2f}' for of in _SHOWN)]
    for row in rows[:-1]
  ]
  figures.keep('rates', 'simulator_rates', columns, table, every=rows)


if __name__ == '__main__':
  app.run(main)
