r"""Which operators of a decoder have other bits in MindSpore than in JAX.

The JAX decoder runs the first batch of a training run operator by operator.
Every operator that both frameworks have under one name is then given what it
read there, once in each framework, forward and backward (a drawn cotangent).
What differs is the operator's own; the first in the order of the forward pass
is where two runs part.  MindSpore in float64, on the same inputs, says which is
the nearer one.

Example:
  python -m benchmarks.framework_operators --batch=4 --length=64
"""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import dataclasses
import functools
import json
from typing import Any

from absl import app
from absl import flags
import jax
import jax.numpy as jnp
import mindspore as ms
import numpy as np
import optax

from hpmoe.models import config as config_lib
from hpmoe.models.jax import attention as jax_attention
from hpmoe.models.jax import decoder as jax_decoder
from hpmoe.models.jax import moe as jax_moe
from hpmoe.models.jax import ops as jax_ops
from hpmoe.models.jax import rope as jax_rope
from hpmoe.models.jax import router as jax_router
from hpmoe.models.mindspore import attention as ms_attention
from hpmoe.models.mindspore import moe as ms_moe
from hpmoe.models.mindspore import ops as ms_ops
from hpmoe.models.mindspore import rope as ms_rope
from hpmoe.models.mindspore import router as ms_router
from hpmoe.models.train import jax_trainer
from hpmoe.models.train import mindspore_trainer
from hpmoe.models.train import settings as settings_lib
from hpmoe.models.train import text as text_lib
from hpmoe.parity_tests.judge.limits import ulp
from hpmoe.parity_tests.report import text_table

_MODEL = flags.DEFINE_string('model', 'deepseek_tiny', 'Configuration.')
_BATCH = flags.DEFINE_integer('batch', 4, 'Sequences.')
_LENGTH = flags.DEFINE_integer('length', 64, 'Bytes of a sequence.')
_SEED = flags.DEFINE_integer('seed', 0, 'Of weights, batch and cotangents.')
_JSON = flags.DEFINE_string('json', None, 'Write the figures to this file.')

Arrays = list[np.ndarray]


@dataclasses.dataclass(frozen=True)
class Operator:
  """One operator in both frameworks.

  Attributes:
    jax, mindspore: functions of the recorded arrays and settings.
    grads: how many of the arrays, from the first on, have gradients.
    is_wide: whether MindSpore's runs in float64 too.
  """

  jax: Callable[..., Any]
  mindspore: Callable[..., Any]
  grads: int
  is_wide: bool = True


def _cross_entropy_jax(logits, after):
  return optax.softmax_cross_entropy_with_integer_labels(logits, after).mean()


def _cross_entropy_ms(logits, after):
  shares = ms_ops.log_softmax(logits)
  picked = ms.ops.gather_elements(shares, -1, after.expand_dims(-1))
  return -picked.mean()


def _mean_jax(x):
  return jnp.mean(x, axis=-1, keepdims=True)


def _mean_ms(x):
  return x.mean(axis=-1, keep_dims=True)


def _linear(ops, x, weight):
  return ops.linear({'it.weight': weight}, 'it', x)


def _rotate(rope, x, cos, sin, interleave):
  return rope.rotate(x, rope.Rope(cos, sin), interleave)


def _route(router, scores, bias, config):
  params = {'gate.e_score_correction_bias': bias}
  return router.route(config, params, scores).topk_weights


def _scores(router, x, weight):
  return router.scores({'gate.weight': weight}, x)


def _layer(moe, x, weights, w_gate_up, w_down, ids, policy):
  return moe.named('host')(x, ids, weights, w_gate_up, w_down, policy)


def _pair(function, jax_module, ms_module, grads, **how) -> Operator:
  of = functools.partial
  return Operator(
    of(function, jax_module), of(function, ms_module), grads, **how
  )


OPERATORS = {
  'embedding': Operator(
    lambda table, tokens: table[tokens],
    lambda table, tokens: table[tokens],
    1,
  ),
  'linear': _pair(_linear, jax_ops, ms_ops, 2),
  'mean': Operator(_mean_jax, _mean_ms, 1),
  'rsqrt': Operator(jax.lax.rsqrt, ms.ops.rsqrt, 1),
  'rms_norm': Operator(jax_ops.rms_norm, ms_ops.rms_norm, 2),
  'rotate': _pair(_rotate, jax_rope, ms_rope, 1),
  'products': Operator(jnp.matmul, ms.ops.matmul, 2),
  'softmax': Operator(jax.nn.softmax, ms_ops.softmax, 1),
  'attend': Operator(jax_attention.attend, ms_attention.attend, 3),
  'silu': Operator(jax.nn.silu, ms_ops.silu, 1),
  'scores': _pair(_scores, jax_router, ms_router, 2),
  'sigmoid': Operator(jax.nn.sigmoid, ms_ops.sigmoid, 1),
  'route': _pair(_route, jax_router, ms_router, 1),
  'layer host': _pair(_layer, jax_moe, ms_moe, 4, is_wide=False),
  'cross_entropy': Operator(_cross_entropy_jax, _cross_entropy_ms, 1),
}


@dataclasses.dataclass(frozen=True)
class Call:
  """One recorded call: operator, arrays that it read, its settings."""

  operator: str
  arrays: tuple[Any, ...]
  settings: tuple[Any, ...] = ()


@contextlib.contextmanager
def _recording(calls: list[Call]) -> Iterator[Callable[..., Any]]:
  """Notes what the JAX decoder's operators read; yields the layer to use."""
  saved = []

  def note(module, name: str, made: Callable[..., list[Call]]) -> None:
    function = getattr(module, name)
    saved.append((module, name, function))

    def noted(*arguments):
      calls.extend(made(*arguments))
      return function(*arguments)

    setattr(module, name, noted)

  def linear(params, name, x):
    return [Call('linear', (x, params[f'{name}.weight']))]

  def rms_norm(x, weight, eps):
    mean = jnp.mean(x * x, axis=-1, keepdims=True)
    parts = [Call('mean', (x * x,)), Call('rsqrt', (mean + eps,))]
    return [*parts, Call('rms_norm', (x, weight), (eps,))]

  def mlp(params, x):
    return [Call('silu', (jnp.matmul(x, params['gate_proj.weight'].T),))]

  def rotate(x, rope, interleave):
    return [Call('rotate', (x, *rope), (interleave,))]

  def attend(queries, keys, values, mask, scale):
    heads = [jnp.swapaxes(a, 1, 2) for a in (queries, keys)]
    products = jnp.matmul(heads[0], jnp.swapaxes(heads[1], 2, 3))
    masked = jnp.where(mask, products * scale, -jnp.inf)
    return [
      Call('products', (heads[0], jnp.swapaxes(heads[1], 2, 3))),
      Call('softmax', (masked,)),
      Call('attend', (queries, keys, values, mask), (scale,)),
    ]

  def scores(params, x):
    return [Call('scores', (x, params['gate.weight']))]

  def route(config, params, scores):
    bias = params['gate.e_score_correction_bias']
    return [
      Call('sigmoid', (scores,)),
      Call('route', (scores, bias), (config,)),
    ]

  for module, made in (
    (jax_ops, linear),
    (jax_ops, rms_norm),
    (jax_ops, mlp),
    (jax_rope, rotate),
    (jax_attention, attend),
    (jax_router, scores),
    (jax_router, route),
  ):
    note(module, made.__name__, made)

  def layer(x, ids, weights, w_gate_up, w_down, policy):
    read = (x, weights, w_gate_up, w_down, ids)
    calls.append(Call('layer host', read, (policy,)))
    return jax_moe.host(x, ids, weights, w_gate_up, w_down, policy)

  try:
    yield layer
  finally:
    for module, name, function in reversed(saved):
      setattr(module, name, function)


def record(
  config: config_lib.ModelConfig, params: dict[str, Any], batch: np.ndarray
) -> list[Call]:
  """Returns the calls of a forward pass and its loss, in order."""
  table = params['model.embed_tokens.weight']
  tokens, after = jnp.asarray(batch[:, :-1]), jnp.asarray(batch[:, 1:])
  calls = [Call('embedding', (table, tokens))]
  with _recording(calls) as layer:
    logits, _ = jax_decoder.forward(params, config, tokens, moe=layer)
  return [*calls, Call('cross_entropy', (logits, after))]


def _both_ways(call: Call, seed: int) -> dict[str, tuple[Arrays, Arrays]]:
  """Returns output and gradients of a call, as (JAX, MindSpore, float64)."""
  operator = OPERATORS[call.operator]
  arrays = [np.asarray(a) for a in call.arrays]
  out = operator.jax(*map(jnp.asarray, arrays), *call.settings)
  rng = np.random.default_rng(seed)
  cotangent = rng.standard_normal(out.shape).astype(np.float32)
  sides = {'jax': _in_jax(operator, arrays, call.settings, cotangent)}
  sides['mindspore'] = _in_mindspore(operator, arrays, call.settings, cotangent)
  if operator.is_wide:
    wide = [a.astype('f8') if a.dtype == 'f4' else a for a in arrays]
    sides['float64'] = _in_mindspore(
      operator, wide, call.settings, cotangent.astype('f8')
    )
  return sides


def _in_jax(operator, arrays, settings, cotangent) -> tuple[Arrays, Arrays]:
  fixed = [jnp.asarray(a) for a in arrays[operator.grads :]]
  out, back = jax.vjp(
    lambda *moving: operator.jax(*moving, *fixed, *settings),
    *map(jnp.asarray, arrays[: operator.grads]),
  )
  grads = back(jnp.asarray(cotangent))
  return [np.asarray(out)], [np.asarray(grad) for grad in grads]


def _in_mindspore(operator, arrays, settings, cotangent):
  given = [ms.Tensor(a) for a in arrays]
  fixed, weight = given[operator.grads :], ms.Tensor(cotangent)
  seen = {}

  def total(*moving):
    out = operator.mindspore(*moving, *fixed, *settings)
    seen['out'] = ms_ops.to_numpy(out)
    return (out * weight).sum()

  places = tuple(range(operator.grads))
  grads = ms.grad(total, places)(*given[: operator.grads])
  grads = grads if isinstance(grads, tuple) else (grads,)
  return [seen['out']], [ms_ops.to_numpy(grad) for grad in grads]


@dataclasses.dataclass
class Row:
  """One operator over all its calls, forward or backward.

  Attributes:
    operator, way: which.
    first: number of its first call, in the order of the forward pass, of which
      a bit differs; None if none does.
    calls, differing: how many there are, and of how many a bit differs.
    elements, others: how many there are, and how many have other bits.
    worst_ulp: of one element.
    errors: of each framework, root mean square of the distance to float64 over
      that of float64's own values, worst call.
  """

  operator: str
  way: str
  first: int | None = None
  calls: int = 0
  differing: int = 0
  elements: int = 0
  others: int = 0
  worst_ulp: int = 0
  errors: dict[str, float] = dataclasses.field(default_factory=dict)


def _add(row: Row, number: int, sides: dict[str, Arrays]) -> None:
  row.calls += 1
  pairs = list(zip(sides['jax'], sides['mindspore'], strict=True))
  others = sum(int((ulp.bits(a) != ulp.bits(b)).sum()) for a, b in pairs)
  row.elements += sum(a.size for a, _ in pairs)
  row.others += others
  row.differing += others > 0
  if others and row.first is None:
    row.first = number
  for a, b in pairs:
    row.worst_ulp = max(row.worst_ulp, int(ulp.distance(a, b).max()))
  for name in sides.keys() & {'jax', 'mindspore'} if 'float64' in sides else ():
    error = max(map(_relative, sides[name], sides['float64']))
    row.errors[name] = max(row.errors.get(name, 0.0), error)


def _relative(got: np.ndarray, right: np.ndarray) -> float:
  norm = float(np.linalg.norm(right))
  return float(np.linalg.norm(got - right)) / norm if norm else 0.0


def rows_of(calls: Sequence[Call], seed: int) -> list[Row]:
  """Returns a row for each operator and way, in the order of first use."""
  rows: dict[tuple[str, str], Row] = {}
  for number, call in enumerate(calls):
    sides = _both_ways(call, seed + number)
    for place, way in enumerate(('forward', 'backward')):
      row = rows.setdefault((call.operator, way), Row(call.operator, way))
      _add(row, number, {name: side[place] for name, side in sides.items()})
  return list(rows.values())


def adamw(
  settings: settings_lib.Settings, config: config_lib.ModelConfig, batch
) -> Row:
  """Returns the row of the optimizer: the first step on JAX's gradients."""
  trainer = jax_trainer.Trainer(config, settings)
  state = trainer.first()
  trained = jax_trainer._trained(state.params)
  fixed = {n: v for n, v in state.params.items() if n not in trained}
  grads = jax.grad(lambda t: trainer._loss({**t, **fixed}, batch)[0])(trained)
  updates, _ = trainer._optimizer.update(grads, state.moments, trained)
  right = optax.apply_updates(trained, updates)
  zeros = {name: np.zeros(p.shape, p.dtype) for name, p in trained.items()}
  tensors = lambda some: {n: ms.Tensor(np.asarray(v)) for n, v in some.items()}
  moments = dict(count=np.int32(0), mu=zeros, nu=zeros)
  got, _ = mindspore_trainer.updated(
    settings, tensors(trained), tensors(grads), moments
  )
  row = Row('adamw', 'forward')
  sides = dict(jax=[], mindspore=[])
  for name, param in right.items():
    sides['jax'].append(np.asarray(param))
    sides['mindspore'].append(got[name])
  _add(row, 0, sides)
  return row


def jitted(
  settings: settings_lib.Settings, config: config_lib.ModelConfig, batch
) -> Row:
  """Returns the row of XLA: gradients as one program, and by operator."""
  trainer = jax_trainer.Trainer(config, settings)
  params = trainer.first().params
  trained = jax_trainer._trained(params)
  fixed = {n: v for n, v in params.items() if n not in trained}

  def grad(trained):
    return jax.grad(lambda t: trainer._loss({**t, **fixed}, batch)[0])(trained)

  row = Row('one XLA program', 'backward')
  sides = [jax.jit(grad)(trained), grad(trained)]
  values = [[np.asarray(side[n]) for n in trained] for side in sides]
  _add(row, 0, dict(jax=values[0], mindspore=values[1]))
  return row


_HEADING = (
  'operator',
  'way',
  'calls',
  'with other bits',
  'first',
  'elements',
  'worst ulp',
  'JAX to float64',
  'MindSpore to float64',
)


def table(rows: Sequence[Row]) -> str:
  """Returns a line for each row."""
  cells = [
    (
      row.operator,
      row.way,
      str(row.calls),
      str(row.differing),
      '-' if row.first is None else str(row.first),
      f'{row.others / row.elements:.2%}',
      str(row.worst_ulp),
      *(
        f'{row.errors[n]:.2g}' if n in row.errors else '-'
        for n in ('jax', 'mindspore')
      ),
    )
    for row in rows
  ]
  return text_table.text(_HEADING, cells)


def main(argv: Sequence[str]) -> None:
  if argv[1:]:
    raise app.UsageError(f'expected flags only, got {argv[1:]}')
  ms.set_device('CPU')
  settings = settings_lib.Settings(
    model=_MODEL.value,
    batch=_BATCH.value,
    length=_LENGTH.value,
    seed=_SEED.value,
  )
  config = config_lib.load(settings.model)
  text = text_lib.split(text_lib.read(None)).train
  batch = text_lib.batch(
    text, settings.length, settings.batch, settings.seed, 0
  )
  params = jax_trainer.Trainer(config, settings).first().params
  calls = record(config, params, batch)
  rows = rows_of(calls, settings.seed)
  whole = [adamw(settings, config, batch), jitted(settings, config, batch)]
  print(table([*rows, *whole]))
  parts = [r for r in rows if r.way == 'forward' and r.first is not None]
  first = min(parts, key=lambda row: row.first, default=None)
  if first is None:
    print('every operator of the forward pass has the same bits')
  else:
    print(
      f'the first with other bits: call {first.first} of {len(calls)}, '
      f'{first.operator}'
    )
  if _JSON.value:
    with open(_JSON.value, 'w', encoding='utf-8') as file:
      json.dump(list(map(dataclasses.asdict, [*rows, *whole])), file, indent=1)


if __name__ == '__main__':
  app.run(main)
