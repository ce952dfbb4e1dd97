"""Compares a dumped run of a model with the model.

Every module is computed twice in float64 with the weights of a folder: after
all earlier modules, from the run's tokens on; and alone, on its inputs in the
dump.  Alone, a right module differs from the dump only by its own rounding.
That difference is estimated by rounding its inputs and weights to the run's
dtype.  The first module that differs by more is where the run deviates from the
model.
"""

from collections.abc import Callable, Sequence
import dataclasses
from typing import Any

import ml_dtypes
import numpy as np

from hpmoe.models.checkpoint import hf_folder
from hpmoe.models.checkpoint import weights as weights_lib
from hpmoe.parity_tests.compare import run_dump
from hpmoe.parity_tests.compare import run_steps
from hpmoe.parity_tests.compare.weights import weight_diff
from hpmoe.parity_tests.compare.weights import weight_sides
from hpmoe.parity_tests.judge import verdicts
from hpmoe.reference import numerics

ROUNDING, PARTS, ABSENT = 'rounding', 'parts', 'not in the dump'
_DTYPE = 'float64'
# The unit roundoff, by dtype of the run.
_UNITS = {
  np.dtype(np.float64): 2.0**-53,
  np.dtype(np.float32): 2.0**-24,
  np.dtype(np.float16): 2.0**-11,
  np.dtype(ml_dtypes.bfloat16): 2.0**-8,
}
# The number of random roundings of inputs, and the largest difference of a
# right module as a multiple of theirs: float32 sums have other orders, and in
# narrower dtypes a framework also rounds inside a module.
_DRAWS = 3
_FACTORS = {2.0**-53: 64.0, 2.0**-24: 32.0}
_NARROW_FACTOR = 8.0

Progress = Callable[[str], None]
Array = np.ndarray


@dataclasses.dataclass(frozen=True)
class Row:
  """One module.

  Attributes:
    name: see `run_steps.Step`.
    verdict: ROUNDING, PARTS or ABSENT.
    after_all: relative difference from the model after all earlier modules; for
      a choice of experts, the share of tokens with other experts; NaN if the
      dump lacks it.
    alone: the same, on the module's inputs in the dump.
    rounding: the difference that rounding its inputs explains.
    note: a further remark.
  """

  name: str
  verdict: str
  after_all: float
  alone: float
  rounding: float
  note: str = ''


@dataclasses.dataclass(frozen=True)
class Result:
  """The answer.

  Attributes:
    rows: of every module, in the order of computation.
    weights: the dump's weights against the folder's; None: it has none.
  """

  rows: tuple[Row, ...]
  weights: weight_diff.Result | None

  @property
  def first(self) -> Row | None:
    """The first module that differs by more than rounding."""
    return next((row for row in self.rows if row.verdict == PARTS), None)

  @property
  def verdict(self) -> str:
    """'pass', 'fail', or 'not judged' if the dump has no module."""
    if self.first is not None:
      return verdicts.FAIL
    is_judged = any(row.verdict == ROUNDING for row in self.rows)
    return verdicts.PASS if is_judged else verdicts.NOT_JUDGED


def compare(
  weights: weights_lib.Weights,
  files: hf_folder.Files,
  dump: run_dump.RunDump,
  progress: Progress = lambda name: None,
) -> Result:
  """Compares a run with its model.

  Args:
    weights: of the model.
    files: the files of these weights.
    dump: of the run.
    progress: called with each module's name before it is computed.

  Raises:
    OSError: a file cannot be read.
    ValueError: the dump has no tokens.
  """
  dump = dataclasses.replace(dump, family=files.family)
  with numerics.use_x64():
    rows = _Comparison(weights, dump, progress).run()
  held_side = dump.open_weights(files)
  result = None
  if held_side is not None:
    left = weight_sides.open_files(str(files.folder), files)
    result = weight_diff.compare(left, held_side, progress, is_part=True)
  return Result(tuple(rows), result)


def count_steps(weights: weights_lib.Weights) -> int:
  """Returns the approximate number of steps of a comparison."""
  return 2 * len(list(run_steps.list_steps(weights.config)))


class _Comparison:
  """The steps of a decoder, on its own results and on a dump's."""

  def __init__(self, weights, dump: run_dump.RunDump, progress: Progress):
    self._weights, self._dump, self._progress = weights, dump, progress
    self._random = np.random.default_rng(0)
    tokens = dump.read(('model.embed_tokens', run_steps.INPUT))
    if tokens is None or tokens.dtype.kind not in 'iu':
      raise ValueError(
        'right: expected a dump with the tokens that model.embed_tokens reads, '
        'got none'
      )
    self._tokens = tokens.reshape(-1, tokens.shape[-1])
    run = self._make_run({})
    count = self._tokens.shape[1]
    self._visible = run.nn.find_positions(
      run.config, 0, count, count, np.dtype(_DTYPE), None
    )
    # The results of earlier steps, in float64.
    self._own: dict[run_steps.Slot, Any] = {}

  def _make_run(self, params):
    return run_steps.make_run(self._weights.config, params, _DTYPE)

  def run(self) -> list[Row]:
    rows = []
    for step in run_steps.list_steps(self._weights.config):
      path, colon, rest = step.name.partition(':')
      name = self._dump.find_path(path) + colon + rest
      self._progress(name)
      rows += self._run_step(dataclasses.replace(step, name=name))
    return rows

  def _run_step(self, step: run_steps.Step) -> list[Row]:
    names = run_steps.list_parameters(step, list(self._weights.specs))
    params = {name: self._weights.read(name) for name in names}
    own_inputs = [
      self._tokens if read.source is None else self._own[read.source]
      for read in step.reads
    ]
    own = self._compute(step, params, own_inputs)
    self._own |= dict(zip(step.results, own, strict=True))
    measured = [self._dump.read(slot) for slot in step.results]
    if measured[0] is None:
      nan = float('nan')
      return [Row(step.name, ABSENT, nan, nan, nan)]
    inputs = [
      self._read(read, array)
      for read, array in zip(step.reads, own_inputs, strict=True)
    ]
    if step.is_choice:
      return self._judge_choice(step, params, inputs, own, measured)
    after_all = _measure_distance(own[0], measured[0])
    if any(array is None for array in inputs):
      nan = float('nan')
      return [Row(step.name, ABSENT, after_all, nan, nan, 'its inputs lack')]
    return [self._judge(step, params, inputs, after_all, measured[0])]

  def _read(self, read: run_steps.Read, own: Array) -> Array | None:
    """Returns the input of a step in the dump, in the shape of our own."""
    array = self._dump.read(read.slot)
    if array is None and read.source is not None:
      array = self._dump.read(read.source)
    if array is None or array.size != own.size:
      return None
    return array.reshape(own.shape)

  def _compute(self, step, params, arrays) -> tuple[Array, ...]:
    run = self._make_run(
      {name: run_steps.to_array(a, _DTYPE) for name, a in params.items()}
    )
    wide = [run_steps.to_array(a, _DTYPE) for a in arrays]
    return tuple(map(np.asarray, step.compute(run, self._visible, wide)))

  def _draw(self, array: Array, unit: float) -> Array:
    """Returns values with a random rounding."""
    if np.asarray(array).dtype.kind in 'iu':
      return array
    noise = self._random.uniform(-unit, unit, array.shape)
    return np.asarray(array, np.float64) * (1 + noise)

  def _judge(self, step, params, inputs, after_all: float, measured) -> Row:
    unit = _UNITS[measured.dtype]
    (expected,) = self._compute(step, params, inputs)
    if measured.size != expected.size:
      shape = f'shape {list(measured.shape)}, expected {list(expected.shape)}'
      nan = float('nan')
      return Row(step.name, PARTS, nan, nan, nan, shape)
    draws: list[Array] = []
    for _ in range(_DRAWS):
      noisy = {n: self._draw(a, unit) for n, a in params.items()}
      arrays = [self._draw(a, unit) for a in inputs]
      draws += self._compute(step, noisy, arrays)
    error = _to_rows(measured, expected) - _to_rows(expected, expected)
    spread = _measure_spread(expected, draws, unit)
    factor = _FACTORS.get(unit, _NARROW_FACTOR)
    is_rounding = all(
      np.all(_average(error, axis) <= factor * _average(spread, axis))
      for axis in (0, 1)
    )
    size = _find_size(expected)
    return Row(
      step.name,
      ROUNDING if is_rounding else PARTS,
      after_all,
      _find_size(error) / size,
      _find_size(spread) / size,
      '' if is_rounding else _name_part(error, factor * spread),
    )

  def _judge_choice(self, step, params, inputs, own, measured) -> list[Row]:
    """Judges ids, except near ties, then their weights."""
    ids = np.sort(measured[0].reshape(own[0].shape), axis=-1)
    other_share = float(np.mean(np.any(np.sort(own[0], -1) != ids, axis=-1)))
    if inputs[0] is None:
      nan = float('nan')
      return [Row(step.name, ABSENT, other_share, nan, nan, 'the scores lack')]
    unit = _UNITS[inputs[0].dtype]
    choice, weights = self._compute(step, params, inputs)
    wrong = np.any(np.sort(choice, -1) != ids, axis=-1)
    alone = float(np.mean(wrong))
    # Near ties: another rounding of the scores makes the same choice.
    for _ in range(4 * _DRAWS if wrong.any() else 0):
      scores = [self._draw(a, 4 * unit) for a in inputs]
      draw = self._compute(step, params, scores)[0]
      wrong &= np.any(np.sort(draw, -1) != ids, axis=-1)
    token = int(np.argmax(wrong))
    note = (
      f'token {token}: experts {ids[token].tolist()}, the scores choose '
      f'{np.sort(choice[token]).tolist()}'
    )
    verdict = PARTS if wrong.any() else ROUNDING
    rows = [
      Row(
        step.name, verdict, other_share, alone, 0.0, note if wrong.any() else ''
      )
    ]
    if measured[1] is not None and not wrong.any():
      rows.append(self._judge_weights(step, inputs[0], params, own, measured))
    return rows

  def _judge_weights(self, step, scores, params, own, measured) -> Row:
    """Judges the routing weights of tokens whose experts are the scores'."""
    unit = max(_UNITS[scores.dtype], _UNITS[measured[1].dtype])

    def sort(ids: Array, values: Array) -> Array:
      order = np.argsort(ids, axis=-1)
      return np.take_along_axis(np.asarray(values, np.float64), order, -1)

    shape = own[0].shape
    ids = measured[0].reshape(shape)
    measured_weights = sort(ids, measured[1].reshape(shape))
    choice, weights = self._compute(step, params, [scores])
    alike = np.all(np.sort(choice, -1) == np.sort(ids, -1), axis=-1)
    expected = sort(choice, weights)
    draws = []
    for _ in range(_DRAWS):
      draw = self._compute(step, params, [self._draw(scores, unit)])
      draws.append(sort(*draw))
    error = np.where(alike[:, None], measured_weights - expected, 0.0)
    spread = np.maximum(_measure_spread(expected, [], unit), unit * expected)
    factor = _FACTORS.get(unit, _NARROW_FACTOR)
    fine = _find_size(error) <= factor * _find_size(spread)
    size = _find_size(expected)
    return Row(
      f'{step.name}, their weights',
      ROUNDING if fine else PARTS,
      _measure_distance(sort(*own), measured_weights),
      _find_size(error) / size,
      _find_size(spread) / size,
      ''
      if fine
      else f'their mean is {float(measured_weights.mean()):.4g}, '
      f'expected {float(expected.mean()):.4g}',
    )


def _to_rows(array: Array, like: Array) -> Array:
  """Returns `[tokens, features]` in float64."""
  return np.asarray(array, np.float64).reshape(-1, like.shape[-1])


def _measure_spread(
  expected: Array, draws: Sequence[Array], unit: float
) -> Array:
  """Returns the spread `[tokens, features]` that rounding explains."""
  right = _to_rows(expected, expected)
  square = (unit * right) ** 2 / 3
  for draw in draws:
    square = square + (_to_rows(draw, expected) - right) ** 2 / len(draws)
  return np.sqrt(square + (1e-2 * unit * _find_size(right)) ** 2)


def _average(array: Array, axis: int) -> Array:
  """Returns root mean squares along an axis."""
  return np.sqrt(np.mean(np.square(array), axis=axis))


def _find_size(array: Array) -> float:
  return float(np.sqrt(np.mean(np.square(array)))) if array.size else 0.0


def _measure_distance(own: Array, measured: Array) -> float:
  if own.size != measured.size:
    return float('nan')
  right = _to_rows(own, own)
  size = _find_size(right) or 1.0
  return _find_size(_to_rows(measured, own) - right) / size


def _name_part(error: Array, limit: Array) -> str:
  """Returns which tokens or features differ, unless all do."""
  texts = []
  for axis, noun in ((1, 'token'), (0, 'feature')):
    ratio = _average(error, axis) / _average(limit, axis)
    bad = np.flatnonzero(ratio > 1)
    if 0 < bad.size <= ratio.size // 2:
      places = ', '.join(map(str, bad[:4])) + (', ...' if bad.size > 4 else '')
      plural = 's' if bad.size > 1 else ''
      texts.append(f'{noun}{plural} {places} (of {ratio.size})')
  return '; '.join(texts)
