"""Golden values of whole models, from transformers; tests of both frameworks.

`models/testdata/golden/` holds a file for each configuration of its
`configs.json`, made by `tools/golden/make_golden.py`.  Weights are not in them:
they are drawn by `weights`, and are exact in bfloat16, so that one float64
golden serves every dtype.
"""

from collections.abc import Callable
import functools
import json
import pathlib
from typing import NamedTuple

import ml_dtypes
import numpy as np

from hpmoe.models import config as config_lib
from hpmoe.models import parameters
from hpmoe.reference.contract import stable_random

FOLDER = pathlib.Path(__file__).resolve().parent / 'testdata/golden'
CONFIGS = json.loads((FOLDER / 'configs.json').read_text())
DTYPES = ('float64', 'float32', 'bfloat16')
# Neighbours of a configuration's weights, over which errors are pooled.
NEIGHBOURS = 16
# Of an MTP head's loss in the sum that gradients are of.
MTP_WEIGHT = 0.25
# Elements of each gradient that a file keeps.
_MOST_KEPT = 96
_DEVIATION = 0.25


class Result(NamedTuple):
  """What one implementation computes in one dtype, as float64.

  Attributes:
    logits: `[B, S, V]`, and those of the MTP head behind them, flattened.
    hidden_states: `[layers + 1, B, S, D]`, the last after the final norm.
    grads: `[kept]`, of `keep`, each divided by the root mean square of its
      parameter's whole gradient in float64.
    topk_ids: `[MoE layers * B * S * K]`, each token's in rising order.
  """

  logits: np.ndarray
  hidden_states: np.ndarray
  grads: np.ndarray
  topk_ids: np.ndarray


class Golden(NamedTuple):
  """One configuration.

  Attributes:
    name: key of `CONFIGS`.
    config: what it says.
    tokens: `[B, S]` int32.
    params: float64, exact in bfloat16; by name.
    scales: `[parameters]` root mean square of each gradient in float64, in the
      order of `trained`.
    loss: in float64, nats.
    results: by dtype, those of the reference implementation.
    nearby: `[NEIGHBOURS, 3, 2]`, of each neighbour (see `neighbour`) what
      `errors` says of the reference implementation in float32.
  """

  name: str
  config: config_lib.ModelConfig
  tokens: np.ndarray
  params: dict[str, np.ndarray]
  scales: np.ndarray
  loss: float
  results: dict[str, Result]
  nearby: np.ndarray


def with_layers(*layers: str) -> list[tuple[str, str]]:
  """Returns each configuration with each layer that can compute it."""
  return [
    (name, moe)
    for name in CONFIGS
    for moe in layers
    if moe != 'host' or choose_layer(name) == 'host'
  ]


def choose_layer(name: str) -> str:
  """Returns 'host', or 'framework' where the megakernel lacks something."""
  return 'host' if config(name).is_launched else 'framework'


def config(name: str) -> config_lib.ModelConfig:
  """Returns the configuration `name` of `CONFIGS`."""
  return config_lib.from_hf(CONFIGS[name])


def weights(name: str, seed: int) -> dict[str, np.ndarray]:
  """Returns the parameters of a configuration, float64, exact in bfloat16.

  Norms hardly scale; biases are not zero; routers are wide, so that experts'
  scores are well apart.
  """
  out = {}
  shapes = parameters.parameter_shapes(config(name))
  for parameter, shape in shapes.items():
    drawn_from = stable_random.seed_of(name, seed, parameter)
    value = _DEVIATION * stable_random.normal(drawn_from, shape.shape)
    value += parameters.find_neutral(config(name), parameter)
    if parameter.endswith(('.gate.weight', '.router.weight')):
      value *= 2
    value = value.astype(ml_dtypes.bfloat16)
    out[parameter] = value.astype(np.float64)
  return out


def neighbour(
  params: dict[str, np.ndarray], number: int
) -> dict[str, np.ndarray]:
  """Returns weights beside `params`, float64, exact in float32.

  Each is moved by about 2^-16 of itself: the model magnifies errors as before,
  but all roundings are others.  The error of one set of weights is one draw, in
  which a few roundings that all later values share may decide; over neighbours
  that averages out.
  """
  out = {}
  for name, value in params.items():
    drawn_from = stable_random.seed_of('neighbour', number, name)
    noise = 2.0**-16 * stable_random.normal(drawn_from, value.shape)
    out[name] = (value * (1 + noise)).astype(np.float32).astype(np.float64)
  return out


def tokens(name: str, seed: int) -> np.ndarray:
  """Returns `[2, 8]` int32 tokens of a configuration."""
  drawn_from = stable_random.seed_of(name, seed, 'tokens')
  vocabulary = config(name).vocab_size
  ids = stable_random.integers(drawn_from, (2, 8), vocabulary)
  return ids.astype(np.int32)


def list_trained(params: dict[str, np.ndarray]) -> list[str]:
  """Returns the names of the parameters that have a gradient."""
  return [n for n in params if parameters.has_gradient(n)]


def keep(
  grads: dict[str, np.ndarray], scales: np.ndarray, params: dict
) -> np.ndarray:
  """Returns the sampled gradients that a file stores: `Result.grads`."""
  parts = []
  for name, scale in zip(list_trained(params), scales, strict=True):
    flat = np.asarray(grads[name]).astype(np.float64).reshape(-1)
    order = stable_random.permutation(stable_random.seed_of(name), flat.size)
    parts.append(flat[np.sort(order[:_MOST_KEPT])] / scale)
  return np.concatenate(parts)


@functools.cache
def load(name: str) -> Golden:
  """Returns the golden values of the configuration `name`."""
  with np.load(FOLDER / f'{name}.npz') as file:
    arrays = dict(file)
  seed = int(arrays['seed'])
  results = {}
  for dtype in DTYPES:
    fields = (_unpacked(arrays[f'{f}.{dtype}']) for f in Result._fields)
    results[dtype] = Result(*fields)
  return Golden(
    name=name,
    config=config(name),
    tokens=tokens(name, seed),
    params=weights(name, seed),
    scales=arrays['scales'],
    loss=float(arrays['loss']),
    results=results,
    nearby=arrays['nearby'],
  )


def _unpacked(array: np.ndarray) -> np.ndarray:
  if array.dtype == np.uint16:
    return array.view(ml_dtypes.bfloat16).astype(np.float64)
  return array if array.dtype == np.int8 else array.astype(np.float64)


FIELDS = ('logits', 'hidden_states', 'grads')


def errors(actual: Result, golden: Result) -> np.ndarray:
  """Returns `[FIELDS, 2]`: root mean square and largest error of each."""
  out = []
  for field in FIELDS:
    error = np.abs(getattr(actual, field) - getattr(golden, field))
    out.append((np.sqrt(np.mean(error**2)), np.max(error)))
  return np.asarray(out)


def result(case: Golden, logits, hidden_states, grads, topk_ids) -> Result:
  """Returns a framework's results in the form of the golden values.

  Args:
    case: the configuration.
    logits: `[B, S, V]`, and of an MTP head `[B, S-1, V]`.
    hidden_states: `[B, S, D]` each.
    grads: by name.
    topk_ids: `[R, T, K]` of each MoE layer.
  """
  trained_grads = {n: np.asarray(grads[n]) for n in list_trained(case.params)}
  ids = [np.sort(np.asarray(i), axis=-1).reshape(-1) for i in topk_ids]
  return Result(
    np.concatenate([_wide(v).reshape(-1) for v in logits]),
    np.stack([_wide(h) for h in hidden_states]),
    keep(trained_grads, case.scales, case.params),
    np.concatenate(ids).astype(np.int8),
  )


def _wide(array) -> np.ndarray:
  return np.asarray(array).astype(np.float64)


# Both sides round in float64: some hundred terms a sum, a few layers.
_FLOAT64 = 1e-12


def check_same(actual: Result, case: Golden) -> None:
  """Holds a framework's float64 to the reference implementation's."""
  want = case.results['float64']
  np.testing.assert_array_equal(actual.topk_ids, want.topk_ids)
  for field, (_, worst) in zip(FIELDS, errors(actual, want)):
    largest = np.max(np.abs(getattr(want, field)))
    assert worst < _FLOAT64 * largest, (field, worst)


def check_exactness(actual: Result, case: Golden, dtype: str) -> None:
  """Holds a framework's error to twice the reference implementation's own.

  Both are against float64: the root mean square and the largest, of logits,
  hidden states and gradients, those relative to their parameter's scale.
  """
  want = case.results['float64']
  np.testing.assert_array_equal(actual.topk_ids, want.topk_ids)
  own_errors, reference_errors = (
    errors(actual, want),
    errors(case.results[dtype], want),
  )
  _check_twice(f'{case.name} {dtype}', own_errors, reference_errors)


def check_exactness_or_nearby(
  narrow: Callable[[dict[str, np.ndarray]], Result],
  wide: Callable[[dict[str, np.ndarray]], Result],
  case: Golden,
) -> None:
  """Holds a framework's float32 to the reference's, over more draws if needed.

  The largest error may be one draw: where a token's two weights add up to one,
  its whole part of a router's gradient is one difference of two products, and
  the token of the largest decides.  Such a draw may exceed the factor by luck
  of rounding, which differs from CPU to CPU.  Many draws tell, of a model that
  is the reference's.

  Args:
    narrow: the framework's model in float32, of parameters in float64.
    wide: the same in float64.
    case: the configuration.
  """
  try:
    check_exactness(narrow(case.params), case, 'float32')
  except AssertionError:
    check_same(wide(case.params), case)
    check_exactness_nearby(narrow, wide, case)


def check_exactness_nearby(
  narrow: Callable[[dict[str, np.ndarray]], Result],
  wide: Callable[[dict[str, np.ndarray]], Result],
  case: Golden,
) -> None:
  """Holds a framework's float32 to the reference's, over all neighbours.

  As `check_exactness`, of the root mean square and the largest error over all
  neighbours.

  Args:
    narrow: the framework's model in float32, of parameters in float64.
    wide: the same in float64, which stands for the reference implementation's:
      `check_same` holds them together.
    case: the configuration.
  """
  own_errors = []
  for number in range(NEIGHBOURS):
    params = neighbour(case.params, number)
    actual, want = narrow(params), wide(params)
    np.testing.assert_array_equal(actual.topk_ids, want.topk_ids)
    own_errors.append(errors(actual, want))
  _check_twice(
    f'{case.name} nearby', _pooled(np.asarray(own_errors)), _pooled(case.nearby)
  )


def _pooled(errors_by_neighbour: np.ndarray) -> np.ndarray:
  """Returns `[FIELDS, 2]` of all neighbours' `[NEIGHBOURS, FIELDS, 2]`."""
  rms, worst = errors_by_neighbour[..., 0], errors_by_neighbour[..., 1]
  return np.stack([np.sqrt(np.mean(rms**2, axis=0)), np.max(worst, axis=0)], 1)


def _check_twice(
  title: str, own_errors: np.ndarray, reference_errors: np.ndarray
) -> None:
  ratios = own_errors / reference_errors
  for field, (rms, worst) in zip(FIELDS, ratios):
    print(f'{title} {field}: rms {rms:.2f}, worst {worst:.2f}')
  assert np.all(ratios <= 2), (title, ratios)
