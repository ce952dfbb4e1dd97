"""Layers, inputs and a dumb loop for the tests of the host runtime."""

import dataclasses
import zlib

import numpy as np

from hpmoe.backend_ascend import _native
from hpmoe.backend_ascend.compiler import compiler
from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.host.checks import faults
from hpmoe.backend_ascend.host.launch import runtime
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import storage

LAYERS = {
  'one_of_everything': config_testing.make_config(r=1, t=1, e=1, k=1, d=1, f=1),
  'one_rank': config_testing.make_config(r=1, t=33, e=5, k=2, d=24, f=20),
  'two_ranks': config_testing.make_config(r=2, t=37, e=6, k=3, d=17, f=9),
  'all_experts': config_testing.make_config(r=2, t=5, e=4, k=4, d=8, f=8),
  'four_ranks': config_testing.make_config(r=4, t=19, e=8, k=3, d=20, f=12),
}
ROUTINGS = ('uniform', 'one_rank', 'empty_experts', 'one_expert_first')


def rng(*name) -> np.random.Generator:
  """Returns a generator that only the name decides."""
  return np.random.default_rng(zlib.crc32('/'.join(map(str, name)).encode()))


_OF_SUMS_AND_LIMITS = (
  'accumulation_order',
  'points',
  *precision.SUM_ORDERS,
  'activation_ulp',
  'sigmoid_ulp',
)


def _data_name(policy: precision.PrecisionPolicy) -> str:
  """Returns what of a policy decides the data: not the order of its sums."""
  fields = (
    f'{field.name}={getattr(policy, field.name)!r}'
    for field in dataclasses.fields(policy)
    if field.name not in _OF_SUMS_AND_LIMITS
  )
  return f'PrecisionPolicy({", ".join(fields)})'


def make_ids(config: config_lib.MoEConfig, routing: str, generator):
  """Returns topk_ids `[R, T, K]` i32, distinct per token.

  'uniform': any experts; 'one_rank': all on the last rank, as far as K fits;
  'empty_experts': only the last K experts; 'one_expert_first': expert 0 in
  slot 0 of every token.
  """
  r, t, k, e = (config.dims()[c] for c in 'RTKE')
  local = config.experts_per_rank
  score = generator.random((r, t, e))
  if routing == 'one_rank':
    score[..., -min(local, e) :] += 1
  elif routing == 'empty_experts':
    score[..., -k:] += 1
  elif routing == 'one_expert_first':
    score[..., 0] += 1
  return np.argsort(-score, axis=-1)[..., :k].astype(np.int32)


def make_inputs(
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  routing: str = 'uniform',
  exact: bool = False,
  name: str = '',
) -> dict[str, np.ndarray]:
  """Returns the five inputs; small integers where `exact`."""
  generator = rng(config, _data_name(policy), routing, exact, name)
  r, t, k, l, d, f = (config.dims()[c] for c in 'RTKLDF')
  dtype = storage.FORMATS[policy.storage].numpy

  def draw(shape, scale):
    if exact:
      # Mostly zeros, so that two bytes hold every sum.
      values = generator.integers(-1, 2, shape)
      return (values * (generator.random(shape) < scale)).astype(dtype)
    return (generator.standard_normal(shape) * scale).astype(dtype)

  weights = generator.random((r, t, k)).astype(np.float32)
  if exact:
    weights = generator.integers(1, 4, (r, t, k)).astype(np.float32)
  return dict(
    x=draw((r, t, d), 1.0),
    topk_ids=make_ids(config, routing, generator),
    topk_weights=weights,
    w_gate_up=draw((r, l, d, 2 * f), d**-0.5),
    w_down=draw((r, l, f, d), f**-0.5),
  )


def make_code_inputs(
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  routing: str = 'uniform',
  exact: bool = False,
) -> dict[str, np.ndarray]:
  """Returns the inputs of a policy of codes; a token of a rank is zeros."""
  values = dataclasses.replace(policy, quantised='', rows='', points=())
  inputs = make_inputs(config, values, routing, exact)
  inputs['x'][:, 0] = 0
  generator = rng(config, _data_name(values), routing, exact, 'codes')
  for name in ('w_gate_up', 'w_down'):
    shape = inputs.pop(name).shape
    codes = generator.integers(-127, 128, shape, np.int8)
    scales = generator.uniform(1e-3, 1e-2, (*shape[:2], 1, shape[-1]))
    inputs[f'{name}_codes'] = codes
    inputs[f'{name}_scales'] = scales.astype(np.float32)
  return inputs


def compile_layer(config, policy=precision.PrecisionPolicy(), **options):
  """Returns the image of a layer."""
  return compiler.compile_forward(
    config, policy, granularity.Options(**options)
  ).image


def compile_grad(config, policy=precision.PrecisionPolicy(), **options):
  """Returns the image of a layer's backward pass."""
  return compiler.compile_backward(
    config, policy, granularity.Options(**options)
  ).image


def make_grad_inputs(
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  routing: str = 'uniform',
  exact: bool = False,
  name: str = '',
) -> dict[str, np.ndarray]:
  """Returns dy, drawn as x is, and what a forward launch saves."""
  inputs = make_inputs(config, policy, routing, exact, name)
  forward_outputs = runtime.launch(
    compile_layer(config, policy), inputs, threads=1
  )
  other_inputs = make_inputs(config, policy, routing, exact, name + '/dy')
  names = ('expert_in', 'gate_up', 'activation', 'returned')
  del inputs['x']
  return (
    dict(dy=other_inputs['x']) | inputs | {n: forward_outputs[n] for n in names}
  )


def compiled(direction: layout.Direction, *args, **options) -> image_lib.Image:
  """Returns the image of one pass."""
  return (compile_grad if direction else compile_layer)(*args, **options)


def inputs_of(direction: layout.Direction, *args, **options):
  """Returns the inputs of one pass."""
  return (make_grad_inputs if direction else make_inputs)(*args, **options)


# What a pass is for.
RESULTS = {
  layout.Direction.FORWARD: ('y',),
  layout.Direction.BACKWARD: (
    'dx',
    'd_w_down',
    'd_w_gate_up',
    'd_topk_weights',
  ),
}


@dataclasses.dataclass(frozen=True)
class Case:
  """An image of either pass, with its inputs and its right outputs."""

  image: image_lib.Image
  inputs: dict[str, np.ndarray]
  right: dict[str, np.ndarray]
  routing: _native.Routing

  @property
  def num_tasks(self) -> int:
    return len(self.image.tables['tasks'])


def make_case(
  direction: layout.Direction,
  config: config_lib.MoEConfig,
  policy=precision.PrecisionPolicy(),
  routing: str = 'uniform',
  **options,
) -> Case:
  """Returns a case of one pass."""
  image = compiled(direction, config, policy, **options)
  inputs = inputs_of(direction, config, policy, routing, name='case')
  return Case(
    image=image,
    inputs=inputs,
    right=runtime.launch_serial(image, inputs),
    routing=runtime.route(image, inputs['topk_ids']),
  )


def differing(actual: dict, want: dict) -> list[str]:
  """Returns the names of the tensors whose bytes differ, in order."""
  return [n for n in want if actual[n].tobytes() != want[n].tobytes()]


def with_capacity(config, rows: int):
  return dataclasses.replace(config, capacity=rows)


def without_signals(image, task: int) -> bytearray:
  """Returns the image with a task's signals taken out."""
  blob = bytearray(image)
  image_lib.tables(blob)['tasks']['signal_count'][task] = 0
  return image_lib.seal(blob)


def signalled(tables, task: int) -> set[int]:
  """Returns the events that a task signals."""
  first = tables['tasks'][task]['signal_begin']
  count = tables['tasks'][task]['signal_count']
  return {
    int(s['event']) + i
    for s in tables['signals'][first : first + count]
    for i in range(s['span'])
  }


def first_with_rows(case: Case, kind: layout.Kind) -> int:
  """Returns the first task of a kind that has rows."""
  counts = runtime.route(case.image, case.inputs['topk_ids']).counts
  real = faults.real_rows(case.image, counts) > 0
  kinds = case.image.tables['tasks']['kind']
  return int(np.flatnonzero((kinds == kind) & real)[0])
