"""Compiled layers and routings that witnesses run, each built once."""

from collections.abc import Callable
import dataclasses
import functools
from typing import Any

import numpy as np

from hpmoe.backend_ascend.compiler import compiler
from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.simulator import simulate
from hpmoe.backend_ascend.simulator.machines import machine as machine_lib
from hpmoe.backend_ascend.simulator.plan import moe_layer
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import precision


def hot(config: config_lib.MoEConfig, ratio: float) -> np.ndarray:
  """Returns `[R, T, K]` i32: rank 0 receives `ratio` times the mean.

  Token t takes floor or ceil of `ratio` * K / R experts of rank 0; its other
  slots take the experts of other ranks round robin.

  Raises:
    ValueError: a token would need more experts of a rank than it has.
  """
  local = config.experts_per_rank
  share = ratio * config.top_k / config.num_ranks
  # Steps of a rounded running total, whose mean is the share.
  totals = np.floor(share * np.arange(config.num_tokens + 1) + 0.5)
  own = np.diff(totals).astype(np.int64)
  remote_experts = config.num_experts - local
  if (
    own.max() > min(local, config.top_k)
    or config.top_k - own.min() > remote_experts
  ):
    raise ValueError(
      f'ratio: expected experts of one rank for {share:g} slots of a token, '
      f'got {local} experts'
    )
  slot = np.arange(config.top_k)
  to_hot = slot < own[:, None]
  before = np.cumsum(own) - own
  first_remote = np.arange(config.num_tokens) * config.top_k - before
  ids = np.where(
    to_hot,
    (before[:, None] + slot) % local,
    local + (first_remote[:, None] + slot - own[:, None]) % remote_experts,
  ).astype(np.int32)
  return np.tile(ids, (config.num_ranks, 1, 1))


def rows(config: config_lib.MoEConfig, topk_ids: np.ndarray) -> np.ndarray:
  """Returns `[E]`: rows that each expert receives from all ranks."""
  return np.bincount(topk_ids.ravel(), minlength=config.num_experts)


# Enough for the images that a witness and its sensitivity use in turn.
@functools.lru_cache(maxsize=24)
def image(
  config: config_lib.MoEConfig,
  options: granularity.Options,
  direction: layout.Direction,
) -> image_lib.Image:
  """Returns the proven image of a layer in bfloat16."""
  policy = precision.PrecisionPolicy(storage='bfloat16')
  return compiler.COMPILE[direction](config, policy, options).image


@dataclasses.dataclass(frozen=True)
class Case:
  """One pass of a layer on a machine.

  Attributes:
    config: sizes.
    options: granularity, cores and order.
    direction: the pass.
    ratio: rows of rank 0 over the mean, 1 for balanced routing.
    skip: names of kinds that take no time.
    barriers: whether the layer runs operator by operator.
  """

  config: config_lib.MoEConfig
  options: granularity.Options
  direction: layout.Direction
  ratio: float = 1.0
  skip: tuple[str, ...] = ()
  barriers: bool = False

  def topk_ids(self) -> np.ndarray:
    if self.ratio == 1:
      return moe_layer.balanced(self.config)
    return hot(self.config, self.ratio)

  def fit_capacities(self) -> 'Case':
    """Returns the case with the capacities that its routing fills."""
    expert_rows = rows(self.config, self.topk_ids())
    rank_rows = expert_rows.reshape(self.config.num_ranks, -1).sum(1)
    return dataclasses.replace(
      self,
      config=dataclasses.replace(self.config, capacity=int(rank_rows.max())),
      options=dataclasses.replace(
        self.options, expert_capacity=int(expert_rows.max())
      ),
    )

  def simulate(self, machine: machine_lib.Machine) -> simulate.Simulation:
    """Returns the pass in modelled time."""
    return simulate.simulate(
      image(self.config, self.options, self.direction),
      machine,
      self.topk_ids(),
      skip=self.skip,
      barriers=self.barriers,
    )


_CACHE: dict[object, Any] = {}


def cache_result(
  key, machine: machine_lib.Machine, make: Callable[[], Any]
) -> Any:
  """Returns the result of `make`, called once per key and values of figures.

  Results that depend on one machine are kept when another machine changes.
  """
  values = tuple((name, machine[name]) for name in sorted(machine.figures))
  cache_key = (key, machine.name, values)
  if cache_key not in _CACHE:
    _CACHE[cache_key] = make()
  return _CACHE[cache_key]
