"""The backend's layer as a MindSpore Cell: a custom operator with its gradient.

On a CPU the operator is a C function of `mindspore_ffi_module.cc`, which runs
one launch without Python.  On an Ascend device it is an NPU's operator, which
takes the task image itself; see `mindspore_npu`.

MindSpore is the extra `mindspore`; importing this module imports it.
"""

import os
import struct

# Read once, at MindSpore's import, which else warns of what it does not find.
os.environ.setdefault('GLOG_v', '3')

import ml_dtypes  # noqa: E402
import numpy as np  # noqa: E402

try:
  import mindspore as ms
  from mindspore import nn
  from mindspore import ops
except ImportError as e:
  raise ModuleNotFoundError(
    'mindspore_layer: expected MindSpore, got none; '
    "install the extra: pip install 'hyperparallel-moe[mindspore]'",
    name='mindspore',
  ) from e

from hpmoe.backend_ascend.compiler.orders import schedule_file  # noqa: E402
from hpmoe.backend_ascend.frontends import _mindspore_ffi  # noqa: E402
from hpmoe.backend_ascend.frontends import layer_call  # noqa: E402
from hpmoe.backend_ascend.frontends import mindspore_npu  # noqa: E402
from hpmoe.reference.contract import array_typing as at  # noqa: E402
from hpmoe.reference.contract import config as config_lib  # noqa: E402
from hpmoe.reference.contract import granularity  # noqa: E402
from hpmoe.reference.contract import precision  # noqa: E402
from hpmoe.reference.contract import tensors  # noqa: E402

# MindSpore takes the name for a type of its own, which JAX does not know.
np.sctypeDict['bfloat16'] = ml_dtypes.bfloat16

CPU_OPERATOR = f'{_mindspore_ffi.__file__}:{_mindspore_ffi.function}'

DEVICES = ('cpu', 'ascend')

_images = layer_call.Images(_mindspore_ffi)
register = _images.register
prepare = _images.prepare


def has_ascend() -> bool:
  """Returns whether MindSpore finds an Ascend device that can be used."""
  if mindspore_npu.dry:
    return True
  try:
    ascend = ms.device_context.ascend
    return bool(ascend.is_available()) and ascend.device_count() > 0
  except Exception:  # pylint: disable=broad-except
    # Without a device some of these raise, of several types.
    return False


def _device(device: str | None) -> str:
  if device is None:
    return 'ascend' if ms.get_context('device_target') == 'Ascend' else 'cpu'
  if device not in DEVICES:
    raise ValueError(f'device: expected one of {DEVICES}, got {device!r}')
  if device == 'ascend' and not has_ascend():
    raise ValueError(
      "device: expected 'cpu', got 'ascend': MindSpore finds no Ascend device"
    )
  return device


def to_numpy(tensor: ms.Tensor) -> np.ndarray:
  """Returns a copy; bfloat16 as that of ml_dtypes, which MindSpore's is not."""
  # What asnumpy returns is the tensor's own memory.
  array = tensor.asnumpy().copy()
  if tensor.dtype == ms.bfloat16:
    return array.view(np.uint16).view(ml_dtypes.bfloat16)
  return array


def call_tensor(
  image: layer_call.PartLaunch,
  threads: int | None,
  deadline_s: float,
  scan: bool = False,
) -> ms.Tensor:
  """Returns `[13]` int64: the MindSporeCall of `mindspore_ffi_module.cc`."""
  fields = (threads or 0, deadline_s, image.input_mask, image.output_mask, scan)
  raw = struct.pack('<64sqdQQq', image.digest.encode(), *fields)
  return ms.Tensor(np.frombuffer(raw, np.int64).copy())


def _launch(
  call: layer_call.LayerCall, image: layer_call.PartLaunch, bprop=None
) -> tuple[ops.Custom, ms.Tensor]:
  """Returns the operator of a launch, and its first operand.

  The operator takes that operand, then those of `image.inputs`.
  """
  shapes = tuple(call.shape(name) for name in image.outputs)
  dtypes = tuple(getattr(ms, call.dtype(name)) for name in image.outputs)
  operator = ops.Custom(CPU_OPERATOR, shapes, dtypes, 'aot', bprop=bprop)
  # MindSpore remembers results' shapes by operator, attributes and operands:
  # two layers may differ in what only the image knows, such as capacity.
  operator.add_prim_attr('image', f'{image.digest}/{image.output_mask}')
  return operator, call_tensor(image, call.threads, call.deadline_s, call.scan)


def _forward(call: layer_call.LayerCall) -> layer_call.PartLaunch:
  """Returns the launch of a layer that may be differentiated."""
  image = _images.find_image(call, layer_call.FORWARD)
  return image.select(
    tensors.INPUTS, ('y', *layer_call.list_saved(call.policy))
  )


# What follows is parsed by MindSpore where it compiles: plain loops and tuples.


def _pick(values, places):
  result = ()
  for place in places:
    result = result + (values[place],)  # type: ignore[assignment]
  return result


def _places(names: tuple[str, ...], among: tuple[str, ...]) -> tuple[int, ...]:
  return tuple(among.index(name) for name in names)


def _gradient(call: layer_call.LayerCall):
  """Returns the forward operator's `bprop`, by one launch of the backward."""
  forward = _forward(call)
  image = _images.find_image(call, layer_call.BACKWARD).select(
    ('dy', *layer_call.gradient_inputs(call.policy)),
    layer_call.GRAD_OF.values(),
  )
  backward, head = _launch(call, image)
  # What the forward operator took, what it returned, and dy.
  operand_names = (*forward.inputs, *forward.outputs, 'dy')
  read = _places(image.inputs, operand_names)
  y = forward.outputs.index('y')
  grad_of = layer_call.GRAD_OF
  ids = forward.inputs.index('topk_ids')
  floats = [name for name in forward.inputs if name in grad_of]
  grads = _places(tuple(grad_of[name] for name in floats), image.outputs)
  if forward.inputs[ids:] != ('topk_ids', *floats):
    raise AssertionError(f'inputs: expected ids first, got {forward.inputs}')

  def bprop(head_, ids_, weights, x, w_gate_up, w_down, out, dout):
    operands = (ids_, weights, x, w_gate_up, w_down) + out + (dout[y],)
    results = backward(head, *_pick(operands, read))
    no_gradient = (ops.zeros_like(head_), ops.zeros_like(ids_))
    return no_gradient + _pick(results, grads)

  # Bytecode mode compiles code once, and takes one layer's for another's.
  bprop.__code__ = bprop.__code__.replace()
  return bprop


def _checker(call: layer_call.LayerCall):
  """Returns what checks shapes and dtypes, in compiled code once."""
  right = tuple(call.shape(name) for name in tensors.INPUTS)
  right_dtypes = tuple(getattr(ms, call.dtype(n)) for n in tensors.INPUTS)

  @ops.constexpr
  def check(shapes, dtypes):
    # Bytecode mode compiles Python that it should leave alone, loops wrongly.
    if shapes == right and dtypes == right_dtypes:
      return True
    return _refuse(call, shapes, dtypes)

  return check


def _refuse(call: layer_call.LayerCall, shapes, dtypes) -> None:
  for name, shape, dtype in zip(tensors.INPUTS, shapes, dtypes, strict=True):
    if isinstance(dtype, np.dtype):
      raise ValueError(f'{name}: expected a mindspore.Tensor, got numpy')
    call.check_array(name, tuple(shape), str(dtype).lower())


class MoELayer(nn.Cell):
  """`y` `[R, T, D]`, storage dtype, of one launch of the megakernel.

  Called with

    x: `[R, T, D]` storage.
    topk_ids: `[R, T, K]` int32.
    topk_weights: `[R, T, K]` float32.
    w_gate_up: `[R, L, D, 2F]` storage, gate columns first.
    w_down: `[R, L, F, D]` storage.

  It has no parameters of its own.  Differentiable in reverse, once, by one
  launch of the backward image.  Same bits as `runtime.launch`, always.

  Raises:
    ValueError: when called or compiled: a shape or dtype is not as above.
    RuntimeError: when it runs, which may be where a result is first used: a
      value that is looked at is not finite, ids are no routing, a rank or an
      expert gets more rows than there is room for, or the launch stopped; with
      the text of `runtime.launch`.
  """

  def __new__(cls, config, policy, options=None, **launch_options):
    """Returns the Cell of the device: on an NPU one of another class."""
    device = _device(launch_options.get('device'))
    if device == 'cpu':
      return super().__new__(cls)
    schedule = launch_options.get('schedule')
    if options is None and schedule is None:
      options = granularity.NPU_OPTIONS
    options = layer_call.options_of(config, policy, options, schedule)
    call = layer_call.LayerCall(
      config, policy, options, deadline_s=launch_options.get('deadline_s', 60.0)
    )
    call.check()
    return mindspore_npu.NpuMoELayer(call)

  def __init__(
    self,
    config: config_lib.MoEConfig,
    policy: precision.PrecisionPolicy,
    options: granularity.Options | None = None,
    *,
    schedule: schedule_file.Schedule | str | os.PathLike | None = None,
    device: str | None = None,
    threads: int | None = None,
    deadline_s: float = 60.0,
    scan: bool = False,
  ):
    """Compiles both passes.

    Args:
      config: sizes.
      policy: dtypes, placement of the weights, activation.
      options: granularity of both images; None means
        `granularity.host_options`, and on an NPU `granularity.NPU_OPTIONS`.
      schedule: of `hpmoe tune`, or its file, in place of `options`.
      device: 'cpu', 'ascend', or None: the one of `mindspore.set_device`.
      threads: OS threads of a launch; None lets the runtime choose.
      deadline_s: a launch in which no task ends for so long is stopped.
      scan: whether every input is looked through for values that are not
        finite; routing weights always are.

    Raises:
      OSError: the file of the schedule cannot be read.
      ValueError: an argument is out of range, there is no such device, or the
        schedule is damaged or of another layer.
    """
    super().__init__()
    options = layer_call.options_of(config, policy, options, schedule)
    call = layer_call.LayerCall(
      config, policy, options, threads, deadline_s, scan
    )
    call.check()
    image = _forward(call)
    self.launch, self.head = _launch(call, image, _gradient(call))
    self.read = _places(image.inputs, tensors.INPUTS)
    self.y = image.outputs.index('y')
    self.check = _checker(call)
    whole = layer_call.whole(_images.find_image(call, layer_call.FORWARD))
    self.look, self.look_head = _launch(call, whole)
    self.look_read = _places(whole.inputs, tensors.INPUTS)
    self.outputs = whole.outputs

  def construct(
    self,
    x: at.Float[ms.Tensor, 'R T D'],
    topk_ids: at.Int32[ms.Tensor, 'R T K'],
    topk_weights: at.Float[ms.Tensor, 'R T K'],
    w_gate_up: at.Float[ms.Tensor, 'R L D 2*F'],
    w_down: at.Float[ms.Tensor, 'R L F D'],
  ):
    """See the class."""
    operands = self.check_arguments(
      x, topk_ids, topk_weights, w_gate_up, w_down
    )
    return self.launch(self.head, *_pick(operands, self.read))[self.y]

  def check_arguments(self, x, topk_ids, topk_weights, w_gate_up, w_down):
    """Returns the arguments, whose shapes and dtypes are the layer's."""
    self.check(
      (x.shape, topk_ids.shape, topk_weights.shape, w_gate_up.shape)
      + (w_down.shape,),
      (x.dtype, topk_ids.dtype, topk_weights.dtype, w_gate_up.dtype)
      + (w_down.dtype,),
    )
    return (x, topk_ids, topk_weights, w_gate_up, w_down)

  def tensors(self, *arguments: ms.Tensor) -> dict[str, ms.Tensor]:
    """Returns `tensors.PLAN` and `STAGES` by name, of one launch.

    For who looks inside; the Cell is what has a gradient.  Arguments and errors
    are those of a Cell that scans.
    """
    operands = self.check_arguments(*arguments)
    results = self.look(self.look_head, *_pick(operands, self.look_read))
    return dict(zip(self.outputs, results, strict=True))
