"""The backend's layer as a JAX function: an XLA FFI call with its gradient.

An image reaches the native handler by the SHA-256 of its bytes, which is all
that the compiled graph holds.  As an attribute or constant, megabytes of image
would be copied, printed and hashed with every compilation.  A handle by
contents costs this: a graph that was exported runs in another process only
after `prepare` for the same layer there; before that it is refused.
"""

import dataclasses
import functools
import hashlib
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np

from hpmoe.backend_ascend import compiler
from hpmoe.backend_ascend.taskflow import flow as flow_lib
from hpmoe.backend_ascend.taskflow import layout
from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors

try:
  from hpmoe.backend_ascend.frontends import _jax_ffi
except ImportError as e:
  raise ImportError(
    'jax_layer: expected the extension _jax_ffi, got none; build the project '
    'with jax installed and without -DHPMOE_JAX=OFF'
  ) from e

_TARGET = 'hpmoe_launch'
_FORWARD = layout.Direction.FORWARD
_BACKWARD = layout.Direction.BACKWARD
_MAX_THREADS = 4096
_MAX_DEADLINE_S = 1e9


def check_api(built: tuple[int, int], header: str) -> None:
  """Refuses an extension that the installed XLA would not call.

  Args:
    built: major and minor version of the FFI that the extension was built for.
    header: text of the `c_api.h` of the installed jaxlib.

  Raises:
    ImportError: the installed FFI is another major version, or older.
  """
  found = re.findall(r'#define XLA_FFI_API_M(?:AJOR|INOR) (\d+)', header)
  major, minor = map(int, found)
  if built[0] != major or built[1] > minor:
    raise ImportError(
      f'jax_layer: expected an extension built for XLA FFI {major}.{minor} '
      f'or older, got {built[0]}.{built[1]}; build the project again with '
      'the jax that it runs beside'
    )


def _register_handler() -> None:
  # XLA itself would only say, at the first call, that there is no handler.
  folder = pathlib.Path(jax.ffi.include_dir())
  header = (folder / 'xla/ffi/api/c_api.h').read_text()
  check_api(_jax_ffi.api_version, header)
  jax.ffi.register_ffi_target(_TARGET, _jax_ffi.handler(), platform='cpu')


_register_handler()


@dataclasses.dataclass(frozen=True)
class _Layer:
  """What decides a call beside its arrays; hashable, so jit sees it as one."""

  config: config_lib.MoEConfig
  policy: precision.PrecisionPolicy
  options: flow_lib.Options
  threads: int | None
  deadline_s: float

  def check(self) -> None:
    for name, kind in (
      ('config', config_lib.MoEConfig),
      ('policy', precision.PrecisionPolicy),
      ('options', flow_lib.Options),
    ):
      if not isinstance(getattr(self, name), kind):
        raise ValueError(
          f'{name}: expected a {kind.__name__}, got {getattr(self, name)!r}'
        )
    if self.threads is not None and not 1 <= self.threads <= _MAX_THREADS:
      raise ValueError(
        f'threads: expected 1 to {_MAX_THREADS}, got {self.threads}'
      )
    if not 0 < self.deadline_s <= _MAX_DEADLINE_S:
      raise ValueError(
        f'deadline_s: expected seconds in (0, {_MAX_DEADLINE_S:g}], '
        f'got {self.deadline_s}'
      )

  def image(self, direction: layout.Direction) -> '_Registered':
    return _compiled(direction, self.config, self.policy, self.options)

  def aval(self, name: str) -> jax.ShapeDtypeStruct:
    spec = tensors.SPECS[name]
    kinds = {'storage': self.policy.storage, 'f32': 'float32', 'i32': 'int32'}
    shape = spec.dims(**self.config.dims())
    return jax.ShapeDtypeStruct(shape, jnp.dtype(kinds[spec.kind]))


@dataclasses.dataclass(frozen=True)
class _Registered:
  """An image that the native part holds: its digest, and names in order."""

  digest: str
  inputs: tuple[str, ...]
  outputs: tuple[str, ...]


def register(image) -> _Registered:
  """Hands a task image, any contiguous buffer, to the native part for good.

  Raises:
    ValueError: the image is truncated, corrupt or inconsistent.
  """
  digest = hashlib.sha256(image).hexdigest()
  names = _jax_ffi.register(digest, np.frombuffer(image, np.uint8))
  return _Registered(digest, *map(tuple, names))


# Compiled once; kept as long as the process, as compiled graphs may be.
@functools.cache
def _compiled(
  direction: layout.Direction,
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  options: flow_lib.Options,
) -> _Registered:
  forward = direction == _FORWARD
  compile_ = compiler.compile_forward if forward else compiler.compile_backward
  return register(compile_(config, policy, options).image)


def prepare(
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  options: flow_lib.Options = flow_lib.Options(),
) -> None:
  """Compiles both passes of a layer, so that exported graphs of it run here.

  Raises:
    ValueError: sizes, policy or options are out of range.
  """
  for direction in layout.Direction:
    _compiled(direction, config, policy, options)


def _launch(
  layer_: _Layer, image: _Registered, arrays: dict[str, at.Array]
) -> dict[str, at.Array]:
  """Returns every output of the image, by name, from one FFI call."""
  call = jax.custom_batching.custom_vmap(
    lambda *operands: tuple(
      jax.ffi.ffi_call(_TARGET, list(map(layer_.aval, image.outputs)))(
        *operands,
        image=image.digest,
        threads=np.int32(layer_.threads or 0),
        deadline_s=np.float64(layer_.deadline_s),
      )
    )
  )
  call.def_vmap(_refuse_vmap)
  outputs = call(*(arrays[name] for name in image.inputs))
  return dict(zip(image.outputs, outputs, strict=True))


def _refuse_vmap(axis_size, in_batched, *operands):
  del in_batched, operands
  raise NotImplementedError(
    'jax_layer.layer: expected not to be mapped by vmap, got an axis of '
    f'{axis_size}; the layer has a rank and a token axis of its own: put the '
    'mapped axis into the token axis of x, topk_ids and topk_weights, with '
    'num_tokens so many times larger, or use jax.lax.map'
  )


def _check(layer_: _Layer, arrays: dict[str, at.Array]) -> None:
  for name, array in arrays.items():
    want = layer_.aval(name)
    if not hasattr(array, 'dtype') or not hasattr(array, 'shape'):
      raise ValueError(f'{name}: expected an array, got {type(array).__name__}')
    if array.dtype != want.dtype:
      raise ValueError(
        f'{name}: expected dtype {want.dtype}, got {array.dtype}'
      )
    if array.shape != want.shape:
      raise ValueError(
        f'{name}: expected shape {want.shape}, got {array.shape}'
      )


def _forward(layer_: _Layer, arguments) -> dict[str, at.Array]:
  """Returns the five inputs and what a forward launch computes, by name."""
  arrays = dict(zip(tensors.INPUTS, arguments, strict=True))
  return arrays | _launch(layer_, layer_.image(_FORWARD), arrays)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _call(layer_: _Layer, *arguments):
  return _forward(layer_, arguments)['y']


def _call_forward(layer_: _Layer, *arguments):
  arrays = _forward(layer_, arguments)
  read = layer_.image(_BACKWARD).inputs
  return arrays['y'], {name: arrays[name] for name in read if name != 'dy'}


def _call_backward(layer_: _Layer, saved, dy):
  grads = _launch(layer_, layer_.image(_BACKWARD), saved | dict(dy=dy))
  # Ids have no gradient.
  return tuple(grads.get(_GRAD_OF.get(name, '')) for name in tensors.INPUTS)


_GRAD_OF = dict(
  x='dx',
  topk_weights='d_topk_weights',
  w_gate_up='d_w_gate_up',
  w_down='d_w_down',
)
_call.defvjp(_call_forward, _call_backward)


def layer(
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  x: at.Float[at.Array, 'R T D'],
  topk_ids: at.Int32[at.Array, 'R T K'],
  topk_weights: at.Float[at.Array, 'R T K'],
  w_gate_up: at.Float[at.Array, 'R L D 2*F'],
  w_down: at.Float[at.Array, 'R L F D'],
  options: flow_lib.Options = flow_lib.Options(),
  *,
  threads: int | None = None,
  deadline_s: float = 60.0,
) -> at.Float[at.Array, 'R T D']:
  """Returns `y` `[R, T, D]`, storage dtype, of one launch of the megakernel.

  Differentiable in reverse, once, by one launch of the backward image; works
  eagerly and under jit, on CPUs.  Same bits as `runtime.launch`, always.

  Args:
    config: sizes.
    policy: dtypes, placement of the weights, activation.
    x: `[R, T, D]` storage.
    topk_ids: `[R, T, K]` int32.
    topk_weights: `[R, T, K]` float32.
    w_gate_up: `[R, L, D, 2F]` storage, gate columns first.
    w_down: `[R, L, F, D]` storage.
    options: granularity of both images.
    threads: OS threads of a launch; None lets the runtime choose.
    deadline_s: a launch in which no task ends for so long is stopped.

  Raises:
    ValueError: a shape, dtype or option is not as above; or the gradient is
      differentiated.
    TypeError: forward-mode differentiation.
    NotImplementedError: vmap, at the trace; names what to do instead.
    jax.errors.JaxRuntimeError: when it runs: a value is not finite, ids are no
      routing, a rank or an expert gets more rows than there is room for, or the
      launch stopped; with the text of `runtime.launch`.  On some of its paths
      jaxlib raises ValueError in its place.
  """
  layer_ = _Layer(config, policy, options, threads, deadline_s)
  layer_.check()
  arguments = (x, topk_ids, topk_weights, w_gate_up, w_down)
  _check(layer_, dict(zip(tensors.INPUTS, arguments)))
  return _call(layer_, *arguments)
