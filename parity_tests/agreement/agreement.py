"""Whether two engines' runs of one model agree, token by token.

The left is the reference, such as the engine that a text was sampled with; the
right is what trains on it.
"""

from collections.abc import Callable, Sequence
import dataclasses

import numpy as np

from hpmoe.models.checkpoint import convert
from hpmoe.models.checkpoint import weights as weights_lib
from hpmoe.parity_tests.agreement import choices as choices_lib
from hpmoe.parity_tests.agreement import forced_decoder
from hpmoe.parity_tests.agreement import layer_diff
from hpmoe.parity_tests.agreement import log_shares
from hpmoe.parity_tests.agreement import model_run
from hpmoe.parity_tests.agreement import runs
from hpmoe.parity_tests.dumps import dump_layers
from hpmoe.parity_tests.judge import verdicts
from hpmoe.reference.contract import router as router_lib

Progress = Callable[[str], None]
# What stands before a model's folder in place of a dump's.
MODEL = 'model:'


@dataclasses.dataclass(frozen=True)
class Place:
  """What one step and rank of both runs is.

  Attributes:
    name: of the step and rank, as the right calls it.
    rows: the tokens of both.
    layers: a row for each MoE layer.
    shares: how both predict; None: the dumps do not say.
    replay: what replaying routing changes; None: no model to compute it with.
  """

  name: str
  rows: runs.Rows
  layers: tuple[layer_diff.Row, ...]
  shares: log_shares.Agreement | None
  replay: forced_decoder.Replay | None = None

  @property
  def first(self) -> layer_diff.Row | None:
    """The first layer with a token whose experts differ."""
    return next((row for row in self.layers if row.first), None)


@dataclasses.dataclass(frozen=True)
class Result:
  """The answer.

  Attributes:
    places: steps and ranks, in order.
    rule: the router's, in the words of --router; '': it is not known.
    reason: why it is not.
  """

  places: tuple[Place, ...]
  rule: str
  reason: str

  @property
  def rows(self) -> list[layer_diff.Row]:
    """The layers of all places."""
    return [row for place in self.places for row in place.layers]

  @property
  def faults(self) -> list[tuple[str, str, str]]:
    """What is wrong: place, layer and a line."""
    return [
      (place.name, row.name, fault)
      for place in self.places
      for row in place.layers
      for fault in row.faults
    ]

  @property
  def verdict(self) -> str:
    """'pass', 'fail', or 'not judged' where a difference has no reason."""
    if self.faults:
      return verdicts.FAIL
    reasons = [reason for row in self.rows for reason in row.choices.reasons]
    return verdicts.NOT_JUDGED if '' in reasons else verdicts.PASS


@dataclasses.dataclass(frozen=True)
class Options:
  """What beside the dumps is said.

  Attributes:
    names: a TOML file of modules that are not known.
    model: a folder of the runs' model, for what dumps lack.
    router: the rule, as `router.parse_router` reads it; '': it is looked for.
    layers: numbers of layers that are compared; None: all.
    dtype: in which a model computes that stands for a run.
  """

  names: str | None = None
  model: str | None = None
  router: str = ''
  layers: frozenset[int] | None = None
  dtype: str = 'float64'


def compare(
  left: str,
  right: str,
  options: Options,
  progress: Progress = lambda name: None,
) -> Result:
  """Compares the dumps of two runs of one model.

  Args:
    left: folder of the reference's dump; or MODEL and a model's folder, which
      is run on the right's tokens.
    right: of the candidate's.
    options: what else is said.
    progress: called with the name of each layer before it is compared.

  Raises:
    ValueError: a folder is no such dump, or they have other steps, ranks,
      layers or tokens.
  """
  kinds = dump_layers.read_kinds(options.names)
  right_runs = runs.open_runs('right', right, kinds)
  if left.startswith(MODEL):
    folder = left.removeprefix(MODEL)
    left_runs = _run_model(folder, right_runs, options.dtype, progress)
    options = dataclasses.replace(options, model=options.model or folder)
  else:
    left_runs = runs.open_runs('left', left, kinds)
  if len(left_runs) != len(right_runs):
    names = [_name([r.place for r in s]) for s in (left_runs, right_runs)]
    raise ValueError(
      f'right: expected the steps and ranks of left, {names[0]}, got '
      f'{names[1]}; dump:DIR/STEP/RANK is one of them'
    )
  weights = None if options.model is None else _open_model(options.model)
  comparison = _Comparison(layer_diff.Model(weights), options, progress)
  places = [
    comparison.run(*pair) for pair in zip(left_runs, right_runs, strict=True)
  ]
  return Result(tuple(places), comparison.rule, comparison.reason)


def _open_model(folder: str) -> weights_lib.Weights:
  try:
    return convert.read(folder)
  except ValueError as error:
    raise ValueError(f'model: {error}') from error


def _run_model(
  folder: str, right_runs: Sequence[runs.Run], dtype: str, progress: Progress
) -> tuple[runs.Run, ...]:
  """Returns runs of a model on the tokens of a dump."""
  weights = _open_model(folder)
  results = []
  for run in right_runs:
    if len(run.tokens) != 1:
      raise ValueError(
        f'right: expected one call of a model, with its tokens, with '
        f'--left={MODEL}, got {len(run.tokens)}'
      )
    own = model_run.run_model(
      weights, run.tokens[0], run.place, dtype, progress
    )
    results.append(own)
  return tuple(results)


class _Comparison:
  """Steps and ranks, one after the other; the router is that of the first."""

  def __init__(self, model: layer_diff.Model, options: Options, progress):
    self._model, self._options, self._progress = model, options, progress
    self._router: router_lib.Router | None = None
    self.reason = 'no layer is compared'

  @property
  def rule(self) -> str:
    """The router in the words of --router."""
    if self._router is None:
      return ''
    router = self._router
    groups = f':groups={router.groups}:top_groups={router.top_groups}'
    scale = f':scale={router.scale:.6g}' if router.scale != 1 else ''
    return f'{router.rule}{groups if router.groups > 1 else ""}{scale}'

  def run(self, left: runs.Run, right: runs.Run) -> Place:
    rows = runs.align(left, right)
    layers: list[layer_diff.Row] = []
    for key in self._list_keys(left, right):
      name = right.layers[key].name
      self._progress(f'{right.place} {name}'.strip())
      pair = left.layers[key], right.layers[key]
      if self._router is None:
        self._router, self.reason = self._find_router(pair[0], rows)
      has_fault = any(row.faults for row in layers)
      layers.append(
        layer_diff.compare(
          self._router, *pair, rows, self._model, not has_fault
        )
      )
    shares = log_shares.measure(left, right, rows)
    replay = None
    if self._model.weights is not None and self._options.layers is None:
      replay = forced_decoder.replay(
        self._model.weights, left, right, rows, shares, self._progress
      )
    return Place(right.place, rows, tuple(layers), shares, replay)

  def _list_keys(self, left: runs.Run, right: runs.Run) -> list[int | str]:
    if [*left.layers] != [*right.layers]:
      raise ValueError(
        f'right: expected the MoE layers of left, {_name(left.layers)}, got '
        f'{_name(right.layers)}'
      )
    numbers = self._options.layers
    keys = [k for k in left.layers if numbers is None or k in numbers]
    if not keys:
      raise ValueError(
        f'layers: expected some of {_name(left.layers)}, got none of them'
      )
    return keys

  def _find_router(
    self, layer: runs.Layer, rows: runs.Rows
  ) -> tuple[router_lib.Router | None, str]:
    ids = layer.read_rows('topk_ids', rows.left)
    top_k = 0 if ids is None else ids.shape[1]
    if self._options.router:
      return router_lib.parse_router(self._options.router, top_k), ''
    if self._model.weights is not None:
      return find_model_router(self._model.weights.config)
    side = choices_lib.Side(
      np.zeros((0, 1), np.int64) if ids is None else ids,
      layer.read_rows('topk_weights', rows.left),
      logits=layer.read_rows('logits', rows.left),
    )
    return choices_lib.find_router(side)


def _name(layers: Sequence) -> str:
  text = ', '.join(map(str, layers))
  return f'{text[:60]} ...' if len(text) > 60 else text


def find_model_router(config) -> tuple[router_lib.Router | None, str]:
  """Returns the rule of a model's configuration, or None and why."""
  is_softmax = config.family.router == 'softmax'
  if is_softmax and config.n_group > 1:
    return None, 'the model chooses groups by softmax: no rule here does'
  if config.family.choice_bias:
    return None, 'the model adds a bias to softmax: no rule here does'
  if config.family.separate_norms:
    return None, "the model's router has a norm and factors: no rule here does"
  normalises = config.normalizes_weights
  rule = {
    (True, True): 'renormalize_naive',
    (True, False): 'softmax',
    (False, True): 'deepseek_v3',
    (False, False): 'deepseek_v3_plain',
  }[is_softmax, bool(normalises)]
  router = router_lib.Router(
    rule,
    config.num_experts_per_tok,
    config.n_group,
    config.topk_group if config.n_group > 1 else 1,
    config.routed_scaling_factor,
  )
  return router, ''
