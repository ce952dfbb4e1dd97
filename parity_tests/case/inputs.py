"""Inputs of one check: real or exact data on a named routing, or a file."""

from collections.abc import Callable, Iterable, Mapping
import dataclasses
import functools
import math
import os
import pathlib
from typing import Any

import numpy as np
import safetensors.numpy

from hpmoe.parity_tests.cache import programs
from hpmoe.parity_tests.case import codes
from hpmoe.parity_tests.case import dumps
from hpmoe.parity_tests.case import exact_data
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.case import read_case
from hpmoe.parity_tests.case import routings
from hpmoe.parity_tests.case import text_router
from hpmoe.parity_tests.case import unusual_values
from hpmoe.parity_tests.case import wide_data
from hpmoe.parity_tests.case.layouts import layouts as layouts_lib
from hpmoe.reference.contract import checks
from hpmoe.reference.contract import presets
from hpmoe.reference.contract import stable_random
from hpmoe.reference.contract import storage
from hpmoe.reference.contract import tensors
from hpmoe.reference.contract.config import MoEConfig
from hpmoe.reference.contract.precision import PrecisionPolicy

DATA = passes.DATA

ROUTINGS = ('text', *routings.GENERATORS, *routings.DROPPING)
_CAPACITY_STEP = 16
# Of the gate columns, in turn.  Gates are of order one without: exp(-gate) then
# neither overflows nor vanishes, and a kernel that clamps it looks right.
_GATE_SCALES = np.ones(16)
_GATE_SCALES[[2, 6, 10, 14]] = 2.0 ** np.array([-20, -10, 4, 7])
# Of the up columns, in turn: these are times the limit, where there is one, so
# that some are beyond it and some are not.
_TO_LIMIT = [4, 12]
_OF_PARTS = {
  part: tuple(
    spec.name
    for spec in tensors.FORWARD
    if spec.part == part and spec.role == 'weight'
  )
  for part in ('bias', 'shared')
}
_BIASES, _SHARED = _OF_PARTS.values()
# How a file says which axes of a weight are which: name -> axes.
AXES = {
  name: tensors.SPECS[name].shape for name in ('w_gate_up', 'w_down', *_SHARED)
}
# The plan has R * E counts, which a small file of many ranks squares.
_MAX_COUNTS = 1 << 24


@dataclasses.dataclass(frozen=True)
class LayerInputs:
  """Everything that one layer reads, and where it came from.

  Attributes:
    config: sizes.
    policy: precision.
    arrays: the tensors of `tensors.inputs` and dy by name, in their stored
      dtypes; of exact data dy only where the backward pass is to be exact.
    routing: name of the routing, or the path of its file.
    facts: what a report should say: seed, origin, skew.
    data: one of `DATA`.
  """

  config: MoEConfig
  policy: PrecisionPolicy
  arrays: Mapping[str, np.ndarray]
  routing: str
  facts: Mapping[str, object]
  data: str = 'real'

  def under(self, **fields: Any) -> 'LayerInputs':
    """Returns the same layer with other fields of its policy.

    Raises:
      ValueError: the policy has no such value.
    """
    policy = dataclasses.replace(self.policy, **fields)
    return dataclasses.replace(
      self, policy=policy, arrays=_stored(policy, self.arrays)
    )

  def with_codes(self, form: str, seed: int = 0) -> 'LayerInputs':
    """Returns the same layer, its expert weights quantised; '': as it is.

    Whole numbers stay as they are, see `codes.of_exact`.

    Raises:
      ValueError: codes do not fill words.
    """
    if not form or self.policy.quantised and codes.are_in(self.arrays):
      return self
    if self.data == 'real':
      arrays = codes.of_values(form, self.arrays)
    else:
      arrays = codes.of_exact(form, self.arrays, seed)
    made = dataclasses.replace(self, arrays=arrays)
    return made.under(quantised=form)


def make_inputs(
  preset: presets.Preset,
  ranks: int,
  tokens: int | None = None,
  dtype: str = 'float32',
  routing: str = 'text',
  seed: int = 0,
  text: str | os.PathLike[str] | None = None,
  placement: str = 'combine',
  capacity: int | None = None,
  bias: bool = False,
  limit: float = 0.0,
  d_shared: int = 0,
) -> LayerInputs:
  """Returns seeded inputs whose stages are all of order one.

  The same tokens (R * T of them) and experts, only dealt differently, for any
  number of ranks.

  Args:
    preset: the shape.
    ranks: R.
    tokens: T instead of the preset's.
    dtype: storage, one of `exact_data.STORAGE`.
    routing: one of `ROUTINGS`, or the path of a file with `topk_ids`.
    seed: of all values.
    text: path of the text that x embeds; None means the one shipped.
    placement: where the routing weight multiplies.
    capacity: N; None means what the fullest rank receives, rounded up as the
      preset's `capacity_step` says, so that there is always empty space.
    bias: whether both GEMMs add one.
    limit: of the activation, which some values of up are to exceed; 0: none.
    d_shared: S, of the shared experts, the same on all ranks; 0: none.

  Raises:
    ValueError: an argument, a file or the data do not suit (one line, which
      names it); `exact_data.ExactnessError` is one.
  """
  if dtype not in exact_data.STORAGE:
    raise ValueError(
      f'dtype: expected one of {list(exact_data.STORAGE)}, got {dtype!r}'
    )
  policy = PrecisionPolicy(storage=dtype, placement=placement)
  config = presets.config(preset, ranks, tokens, capacity)
  config = dataclasses.replace(config, bias=bias, d_shared=d_shared)
  x = text_router.embed(config, text_router.read(text), seed)
  routed = _route(preset.router, config, routing, x, seed)
  has_others = config.num_experts >= config.top_k + 2
  if preset.starved and has_others and routing in ROUTINGS:
    routed = routings.starved(routed, config)
  config = _with_capacity(config, routed.topk_ids, preset.capacity_step)
  facts: dict[str, object] = dict(
    seed=seed,
    preset=preset.name,
    text=str(text or text_router.DEFAULT_TEXT.name),
    note=routed.note,
    **routings.skew(config, routed.topk_ids),
  )
  storage = exact_data.STORAGE[dtype]
  if config.sublayer:
    arrays = _of_sublayer(config, storage, routed, seed)
  else:
    arrays = dict(
      x=unusual_values.x(x.astype(storage), seed),
      topk_ids=routed.topk_ids,
      topk_weights=(
        unusual_values.weights(routed.topk_weights)
        if routing in ROUTINGS and preset.is_routed
        else routed.topk_weights
      ),
      **_weights(config, storage, seed, limit),
      **_biases(config, storage, seed),
      **_shared(config, storage, seed, limit),
      dy=draw_dy(config, storage, seed),
    )
  checks.check_inputs(config, policy, arrays)
  return LayerInputs(config, policy, arrays, routing, facts)


def with_data(
  made: LayerInputs, data: str, backward: bool, seed: int
) -> LayerInputs:
  """Returns data of another kind on the same routing.

  Args:
    made: real inputs.
    data: one of `DATA` but 'real'.
    backward: whether the backward pass is to be exact too.
    seed: of the values.

  Raises:
    exact_data.ExactnessError: no such data suit the layer.
  """
  policy = dataclasses.replace(made.policy, activation='absolute')
  make: Callable = functools.partial(exact_data.make, backward=backward)
  if data == 'wide':
    make = wide_data.make
    policy = dataclasses.replace(policy, limit=0.0, offset=0.0)
  ids = made.arrays['topk_ids']
  # Proved exact when they were drawn: what is kept has the very same bits.
  arrays = programs.remembered(
    __package__,
    (data, backward, seed, made.config, policy),
    [ids],
    lambda: make(made.config, policy, ids, seed)[0],
  )
  return dataclasses.replace(
    made, policy=policy, arrays=_stored(policy, arrays), data=data
  )


def _stored(
  policy: PrecisionPolicy, arrays: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
  """Returns inputs, each in the dtype that the policy gives it."""
  # Codes and scales have a dtype of their own.
  dtypes = {n: policy.dtype(n) for n in arrays if n in tensors.SPECS}
  return {
    n: a.astype(storage.FORMATS[dtypes[n]].numpy, copy=False)
    if dtypes.get(n) in storage.FORMATS
    else a
    for n, a in arrays.items()
  }


def with_weights(made: LayerInputs, dtype: str) -> LayerInputs:
  """Returns the same with routing weights that a narrow dtype has.

  They are rounded to it, and stay float32: who reads either reads the same.

  Raises:
    exact_data.ExactnessError: data that were exact are not so any more.
  """
  weights = made.arrays['topk_weights']
  rounded = weights.astype(storage.FORMATS[dtype].numpy).astype(np.float32)
  if np.array_equal(rounded, weights):
    return made
  arrays = {**made.arrays, 'topk_weights': rounded}
  if made.data != 'real':
    exact_data.prove(made.config, made.policy, arrays)
  facts = {**made.facts, 'topk_weights': f'rounded to {dtype}'}
  return dataclasses.replace(made, arrays=arrays, facts=facts)


def load_safetensors(
  path: str | os.PathLike[str],
  placement: str = 'combine',
  capacity: int | None = None,
  seed: int = 0,
  quantised: str = '',
) -> LayerInputs:
  """Returns the inputs in a file; their shapes are the config.

  Args:
    path: a .safetensors (or .npz or .pt) file with the tensors of
      `tensors.INPUTS`, and those of parts that the layer has: x, weights and
      biases in one storage dtype; ids int32; routing weights float32.  It may
      hold dy, and nothing else.  A tensor that is laid out otherwise has its
      layout in the metadata, under its name; so has a weight whose last two
      axes are equally long, as `save_safetensors` writes it: transposed it
      would look the same.
    placement: where the routing weight multiplies.
    capacity: N, as for `make_inputs`.
    seed: of dy, if the file holds none.
    quantised: as for `of_arrays`.

  Raises:
    ValueError: the file is unreadable or truncated, or a tensor is missing,
      unknown, or has a wrong shape, dtype or value; the text names it.
  """
  held, notes = dumps.read(pathlib.Path(path))
  laid = _laid(notes)
  try:
    if quantised and codes.are_in(held):
      made = of_arrays(held, placement, capacity, seed, quantised)
    else:
      _check_names(held)
      arrays = _undone(held, laid) if laid else held
      _refuse_other_shapes(arrays)
      told = {name: AXES[name] for name in {*laid} & {*AXES}}
      _check_axes(arrays, notes | told)
      made = of_arrays(arrays, placement, capacity, seed)
  except ValueError as error:
    raise ValueError(f'{path}: {error}') from error
  return dataclasses.replace(made, routing=str(path))


def layouts_of(
  path: str | os.PathLike[str],
) -> dict[str, layouts_lib.Layout]:
  """Returns the layouts that a file of tensors says it has, but for ours.

  Raises:
    ValueError: one is none, or the file cannot be read.
  """
  return _laid(dumps.read(pathlib.Path(path))[1])


def _laid(notes: Mapping[str, str]) -> dict[str, layouts_lib.Layout]:
  return layouts_lib.of(
    {
      name: notes[name]
      for name, spec in tensors.SPECS.items()
      if notes.get(name, spec.shape) != spec.shape
    }
  )


def _check_names(given: Iterable[str], form: str = '') -> None:
  bias, shared = (not {*some}.isdisjoint(given) for some in _OF_PARTS.values())
  layer = tensors.Parts(bias=bias, d_shared=int(shared))
  needed = codes.in_place(form, tensors.inputs(layer))
  for name in (*needed, *given):
    if name not in given or name not in (*needed, 'dy'):
      raise ValueError(
        f'{name}: expected {", ".join(needed)} and maybe dy, got '
        f'{", ".join(given)}'
      )


def _undone(
  held: Mapping[str, np.ndarray], laid: Mapping[str, layouts_lib.Layout]
) -> dict[str, np.ndarray]:
  """Returns tensors as ours.

  Raises:
    ValueError: one has another shape or dtype.
  """
  laid = {name: laid.get(name) or layouts_lib.plain(name) for name in held}
  sizes = _sizes(held, laid)
  policy = PrecisionPolicy(read_case.as_numpy(held['x']).dtype.name)
  return {
    name: layouts_lib.as_stored(
      name,
      one.undo(read_case.as_numpy(held[name]), sizes),
      policy.dtype(name),
    )
    for name, one in laid.items()
  }


def _sizes(
  held: Mapping[str, np.ndarray], laid: Mapping[str, layouts_lib.Layout]
) -> dict[str, int]:
  """Returns the length of each axis of ours; R is 1 where no tensor has it."""
  found: dict[str, int] = {}
  for several in (False, True):
    for name, one in laid.items():
      shape = held[name].shape
      if len(shape) != len(one.axes) or 0 in shape:
        raise ValueError(
          f'{name}: expected [{" ".join(one.axes)}], none of them 0, got '
          f'{list(shape)}'
        )
      for axis, size in zip(one.axes, shape):
        parts = one.parts(axis)
        rest = [part for part in parts if part not in found]
        if len(rest) == 1 and (len(parts) > 1) == several:
          known = [found[part] for part in parts if part in found]
          found[rest[0]] = size // math.prod(known)
    found.setdefault('R', 1)
  found |= {'F': found['2F'] // 2, 'E': found['R'] * found['L'], 'N': 0}
  return found | {'S': found.get('S', found.get('2S', 0) // 2)}


def of_arrays(
  given: Mapping[str, np.ndarray],
  placement: str = 'combine',
  capacity: int | None = None,
  seed: int = 0,
  quantised: str = '',
) -> LayerInputs:
  """Returns inputs of those values; their shapes are the config.

  Args:
    given: the tensors of `tensors.INPUTS`, biases, maybe dy; numpy's or another
      framework's; dtypes as for `load_safetensors`.
    placement: where the routing weight multiplies.
    capacity: N, as for `make_inputs`.
    seed: of dy, if none is given.
    quantised: a form of `codes` that may be given in place of expert weights.

  Raises:
    ValueError: a tensor is missing, unknown, or has a wrong shape, dtype or
      value; the text names it.
  """
  form = quantised if codes.are_in(given) else ''
  _check_names(given, form)
  arrays = {
    name: read_case.as_numpy(read_case.bits_of(value))
    for name, value in given.items()
  }
  if form:
    codes.check(form, arrays)
    arrays |= codes.values(form, arrays)
  config = _config_of_shapes(arrays, capacity)
  if arrays['x'].dtype not in exact_data.STORAGE.values():
    raise ValueError(
      f'x: expected one of {list(exact_data.STORAGE)}, got {arrays["x"].dtype}'
    )
  policy = PrecisionPolicy(
    storage=str(arrays['x'].dtype), placement=placement, quantised=form
  )
  checks.check_ids(config, arrays['topk_ids'])
  config = _with_capacity(config, arrays['topk_ids'])
  checks.check_inputs(config, policy, arrays)
  if 'dy' in arrays:
    checks.check_arrays(config, policy, arrays, ['dy'])
    checks.check_finite('dy', arrays['dy'])
  else:
    arrays['dy'] = draw_dy(config, arrays['x'].dtype, seed)
  facts = routings.skew(config, arrays['topk_ids'])
  return LayerInputs(config, policy, arrays, 'given', facts)


def save_safetensors(
  path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray]
) -> None:
  """Writes a layer's inputs as `load_safetensors` reads them."""
  safetensors.numpy.save_file(
    {name: np.ascontiguousarray(array) for name, array in arrays.items()},
    path,
    metadata={name: axes for name, axes in AXES.items() if name in arrays},
  )


def _of_sublayer(config, storage, routed, seed) -> dict[str, np.ndarray]:
  """Returns what a sub-layer reads, and d_gate_up, normal.

  Of the tokens some are zeros, some large, and some so small that their mean
  square is about the norm's epsilon.
  """

  def drawn(name: str) -> np.ndarray:
    shape = tensors.SPECS[name].dims(**config.dims())
    return stable_random.normal(stable_random.seed_of(name, seed), shape)

  activation, d_gate_up = drawn('activation'), drawn('d_gate_up')
  activation[:, 3::13] = 0
  activation[:, 2::11] *= 64
  activation[:, 1::17] *= 2.0**-10
  # The norm divides their gradients by as little: a mean over all rows would be
  # theirs alone.
  d_gate_up[:, 3::13] *= 2.0**-10
  d_gate_up[:, 1::17] *= 2.0**-10
  return dict(
    activation=activation.astype(storage),
    topk_ids=routed.topk_ids,
    topk_weights=routed.topk_weights,
    w_gate_up=(drawn('w_gate_up') / np.sqrt(config.d_model)).astype(storage),
    w_down=(drawn('w_down') / np.sqrt(config.d_ff)).astype(storage),
    w_norm=(1 + drawn('w_norm') / 4).astype(storage),
    d_gate_up=d_gate_up.astype(storage),
  )


def draw_dy(config: MoEConfig, storage: np.dtype, seed: int) -> np.ndarray:
  """Returns `[R, T, D]` storage, normal; the same for any number of ranks."""
  shape = tensors.SPECS['dy'].dims(**config.dims())
  drawn = stable_random.normal(stable_random.seed_of('dy', seed), shape)
  return drawn.astype(storage)


def _check_axes(
  arrays: Mapping[str, np.ndarray], notes: Mapping[str, str]
) -> None:
  """Refuses a weight whose shape and file leave it open to two readings."""
  for name, axes in AXES.items():
    if name not in arrays:
      continue
    is_square = 1 < arrays[name].shape[-2] == arrays[name].shape[-1]
    said = notes.get(name, '' if is_square else axes)
    if said != axes:
      raise ValueError(
        f'{name}: expected its axes in the metadata of a .safetensors file, '
        f'{{{name!r}: {axes!r}}}, since its shape {list(arrays[name].shape)} '
        f'fits the transposed weight too, got {said!r}'
      )


def _route(router, config, routing, x, seed) -> routings.TokenRouting:
  if routing == 'text':
    scores = text_router.gate_scores(config, x, seed)
    return text_router.route(config, router, scores, seed)
  if routing in ROUTINGS:
    return routings.make(routing, config, seed)
  if os.path.splitext(routing)[1] in dumps.SUFFIXES:
    return routings.load(routing, config, seed)
  raise ValueError(
    f'routing: expected one of {list(ROUTINGS)} or a file that ends in one '
    f'of {list(dumps.SUFFIXES)}, got {routing!r}'
  )


def _with_capacity(config, topk_ids, step=_CAPACITY_STEP) -> MoEConfig:
  if config.capacity is not None:
    return config
  most = int(routings.skew(config, topk_ids)['max_rows_of_rank'])
  steps = most // step + 1
  # An even number of odd steps may be what a block divides, after all.
  steps += step % 2 and steps % 2 == 0
  return dataclasses.replace(config, capacity=steps * step)


def _biases(config, storage, seed) -> dict[str, np.ndarray]:
  """Returns biases of every expert, normal and half of what they add to."""
  found = {}
  for name in _BIASES if config.bias else ():
    shape = tensors.SPECS[name].dims(**config.dims())
    drawn = stable_random.normal(stable_random.seed_of(name, seed), shape)
    found[name] = (drawn / 2).astype(storage)
  return found


def _shared(config, storage, seed, limit) -> dict[str, np.ndarray]:
  """Returns weights of shared experts, drawn as those of an expert are."""
  if not config.d_shared:
    return {}
  layer = dataclasses.replace(config.shared(), num_ranks=1, num_experts=1)
  seed = stable_random.seed_of('shared', seed)
  found = tensors.of_shared(_weights(layer, storage, seed, limit))
  return {n: np.repeat(a, config.num_ranks, axis=0) for n, a in found.items()}


def _weights(config, storage, seed, limit) -> dict[str, np.ndarray]:
  """Returns normal weights over the root of their fan-in, expert by expert.

  Gates of a few features are spread by `_GATE_SCALES`, tiny to saturating;
  where that enlarges them, up is smaller by as much, so that no feature
  outweighs the others.  Up of a few others is of the order of a limit.
  """
  ranks, local = config.num_ranks, config.experts_per_rank
  width, hidden = config.d_model, config.d_ff
  shapes = dict(w_gate_up=(width, 2 * hidden), w_down=(hidden, width))
  weights = {}
  gate = np.resize(_GATE_SCALES, hidden)
  up = 1 / np.maximum(_GATE_SCALES, 1)
  if limit:
    up[_TO_LIMIT] = limit
  spread = np.concatenate([gate, np.resize(up, hidden)])
  scales = dict(w_gate_up=spread, w_down=1.0)
  for name, shape in shapes.items():
    weights[name] = np.empty((ranks, local, *shape), storage)
    for expert in range(config.num_experts):
      drawn = stable_random.normal(
        stable_random.seed_of(name, expert, seed), shape
      )
      drawn /= np.sqrt(shape[0])
      drawn *= scales[name]
      weights[name][divmod(expert, local)] = drawn
  return weights


def _refuse_other_shapes(arrays) -> None:
  for name in (*tensors.INPUTS, *({*_SHARED} & {*arrays})):
    axes = tensors.SPECS[name].shape.split()
    if arrays[name].ndim != len(axes) or 0 in arrays[name].shape:
      raise ValueError(
        f'{name}: expected shape [{", ".join(axes)}], none of them 0, got '
        f'{list(arrays[name].shape)}'
      )


def _config_of_shapes(arrays, capacity) -> MoEConfig:
  _refuse_other_shapes(arrays)
  ranks, num_tokens, width = arrays['x'].shape
  _, local, _, both = arrays['w_gate_up'].shape
  _, experts, depth, _ = arrays['w_down'].shape
  if experts != local:
    raise ValueError(
      f'w_down: expected L={local} experts of a rank, as in w_gate_up, got '
      f'L={experts}'
    )
  if 2 * depth != both:
    raise ValueError(
      f'w_down: expected F to be half of 2F={both} in w_gate_up, got F={depth}'
    )
  if ranks * ranks * local > _MAX_COUNTS:
    raise ValueError(
      f'w_gate_up: expected R * E of at most {_MAX_COUNTS}, got R={ranks} '
      f'and E={ranks * local}'
    )
  return MoEConfig(
    num_ranks=ranks,
    num_tokens=num_tokens,
    num_experts=ranks * local,
    top_k=arrays['topk_ids'].shape[2],
    d_model=width,
    d_ff=both // 2,
    capacity=capacity,
    bias='b_gate_up' in arrays,
    d_shared=arrays[_SHARED[1]].shape[1] if _SHARED[1] in arrays else 0,
  )
