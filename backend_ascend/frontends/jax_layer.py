"""The backend's layer as a JAX function: an XLA FFI call with its gradient.

The graph names an image by its digest (`layer_call`), which costs this: a graph
that was exported runs in another process only after `prepare` for the same
layer there; before that it is refused.
"""

import functools
import os
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np

from hpmoe.backend_ascend.compiler.orders import schedule_file
from hpmoe.backend_ascend.frontends import layer_call
from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import granularity
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
_images = layer_call.Images(_jax_ffi)
register = _images.register
prepare = _images.prepare


def check_api(extension_version: tuple[int, int], header: str) -> None:
  """Refuses an extension that the installed XLA would not call.

  Args:
    extension_version: (major, minor) of the FFI that the extension was built
      for.
    header: text of the `c_api.h` of the installed jaxlib.

  Raises:
    ImportError: the installed FFI is another major version, or older.
  """
  versions = re.findall(r'#define XLA_FFI_API_M(?:AJOR|INOR) (\d+)', header)
  major, minor = map(int, versions)
  if extension_version[0] != major or extension_version[1] > minor:
    raise ImportError(
      f'jax_layer: expected an extension built for XLA FFI {major}.{minor} '
      f'or older, got {".".join(map(str, extension_version))}; build the '
      'project again with the installed jax'
    )


def _register_handler() -> None:
  # XLA itself would only say, at the first call, that there is no handler.
  folder = pathlib.Path(jax.ffi.include_dir())
  header = (folder / 'xla/ffi/api/c_api.h').read_text()
  check_api(_jax_ffi.api_version, header)
  jax.ffi.register_ffi_target(_TARGET, _jax_ffi.handler(), platform='cpu')


_register_handler()


def _aval(layer_: layer_call.LayerCall, name: str) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(layer_.shape(name), jnp.dtype(layer_.dtype(name)))


def _launch(
  layer_: layer_call.LayerCall,
  image: layer_call.PartLaunch,
  arrays: dict[str, at.Array],
) -> dict[str, at.Array]:
  """Returns what is asked of the image, by name, from one FFI call."""
  call = jax.custom_batching.custom_vmap(
    lambda *operands: tuple(
      jax.ffi.ffi_call(_TARGET, [_aval(layer_, n) for n in image.outputs])(
        *operands,
        image=image.digest,
        threads=np.int32(layer_.threads or 0),
        deadline_s=np.float64(layer_.deadline_s),
        given=np.int64(image.input_mask),
        asked=np.int64(image.output_mask),
        scan=layer_.scan,
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


def _check(layer_: layer_call.LayerCall, arrays: dict[str, at.Array]) -> None:
  for name, array in arrays.items():
    if not hasattr(array, 'dtype') or not hasattr(array, 'shape'):
      raise ValueError(f'{name}: expected an array, got {type(array).__name__}')
    layer_.check_array(name, array.shape, str(array.dtype))


def _forward(
  layer_: layer_call.LayerCall, arguments, output_names: tuple[str, ...]
) -> dict[str, at.Array]:
  """Returns the five inputs and what is asked of a forward launch, by name."""
  arrays = dict(zip(tensors.INPUTS, arguments, strict=True))
  image = _images.find_image(layer_, layer_call.FORWARD)
  return arrays | _launch(
    layer_, image.select(tensors.INPUTS, output_names), arrays
  )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _call(layer_: layer_call.LayerCall, *arguments):
  return _forward(layer_, arguments, ('y',))['y']


def _call_forward(layer_: layer_call.LayerCall, *arguments):
  saved_names = layer_call.list_saved(layer_.policy)
  arrays = _forward(layer_, arguments, ('y', *saved_names))
  read = layer_call.gradient_inputs(layer_.policy)
  return arrays['y'], {name: arrays[name] for name in read}


def _call_backward(layer_: layer_call.LayerCall, saved_arrays, dy):
  image = _images.find_image(layer_, layer_call.BACKWARD)
  launch = image.select(('dy', *saved_arrays), layer_call.GRAD_OF.values())
  grads = _launch(layer_, launch, saved_arrays | dict(dy=dy))
  return layer_call.grads_by_input(grads, ids=None)


_call.defvjp(_call_forward, _call_backward)


def layer(
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  x: at.Float[at.Array, 'R T D'],
  topk_ids: at.Int32[at.Array, 'R T K'],
  topk_weights: at.Float[at.Array, 'R T K'],
  w_gate_up: at.Float[at.Array, 'R L D 2*F'],
  w_down: at.Float[at.Array, 'R L F D'],
  options: granularity.Options | None = None,
  *,
  schedule: schedule_file.Schedule | str | os.PathLike | None = None,
  threads: int | None = None,
  deadline_s: float = 60.0,
  scan: bool = False,
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
    options: granularity of both images; None means `granularity.host_options`.
    schedule: of `hpmoe tune`, or its file, in place of `options`.
    threads: OS threads of a launch; None lets the runtime choose.
    deadline_s: a launch in which no task ends for so long is stopped.
    scan: whether every input is looked through for values that are not finite;
      routing weights always are.

  Raises:
    OSError: the file of the schedule cannot be read.
    ValueError: a shape, dtype or option is not as above, the schedule is
      damaged or of another layer; or the gradient is differentiated.
    TypeError: forward-mode differentiation.
    NotImplementedError: vmap, at the trace; names what to do instead.
    jax.errors.JaxRuntimeError: when it runs: a value that is looked at is not
      finite, ids are no routing, a rank or an expert gets more rows than there
      is room for, or the launch stopped; with the text of `runtime.launch`.  On
      some of its paths jaxlib raises ValueError in its place.
  """
  options = layer_call.options_of(config, policy, options, schedule)
  layer_ = layer_call.LayerCall(
    config, policy, options, threads, deadline_s, scan
  )
  layer_.check()
  arguments = (x, topk_ids, topk_weights, w_gate_up, w_down)
  _check(layer_, dict(zip(tensors.INPUTS, arguments)))
  return _call(layer_, *arguments)


def forward(
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  x: at.Float[at.Array, 'R T D'],
  topk_ids: at.Int32[at.Array, 'R T K'],
  topk_weights: at.Float[at.Array, 'R T K'],
  w_gate_up: at.Float[at.Array, 'R L D 2*F'],
  w_down: at.Float[at.Array, 'R L F D'],
  options: granularity.Options | None = None,
  *,
  schedule: schedule_file.Schedule | str | os.PathLike | None = None,
  threads: int | None = None,
  deadline_s: float = 60.0,
) -> dict[str, at.Array]:
  """Returns `tensors.PLAN` and `STAGES` by name, of one launch.

  For who looks inside; `layer` is what has a gradient.  Arguments and errors
  are those of `layer` that scans.
  """
  options = layer_call.options_of(config, policy, options, schedule)
  layer_ = layer_call.LayerCall(config, policy, options, threads, deadline_s)
  layer_.check()
  arguments = (x, topk_ids, topk_weights, w_gate_up, w_down)
  arrays = dict(zip(tensors.INPUTS, arguments))
  _check(layer_, arrays)
  image = _images.find_image(layer_, layer_call.FORWARD)
  return _launch(layer_, layer_call.whole(image), arrays)
