"""The Cell on an NPU: CANN operators, which take the task image itself.

Theirs is the source of `device/`, built by `make ascend-npu`.  A
launch is of one rank: the rows that it sends land in its own results.  PYNATIVE
only, for the routing is planned on the host from ids that are known there.
"""

from collections.abc import Callable

import mindspore as ms
from mindspore import nn
from mindspore import ops
import numpy as np

from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.frontends import _mindspore_ffi
from hpmoe.backend_ascend.frontends import layer_call
from hpmoe.reference.contract import tensors

# The names under which the operators register themselves.
OPERATORS = {
  layer_call.FORWARD: 'HpmoeLaunch',
  layer_call.BACKWARD: 'HpmoeLaunchGrad',
}
# Where a CPU takes an NPU's way, what stands in for `ops.Custom`: see
# `models/mindspore/dry_run.py`.
dry: Callable[..., Callable[..., tuple[ms.Tensor, ...]]] | None = None
# What they take before the layer's tensors; see device/operator.
_CALL = ('image', 'tables', 'state')


def _info(name, operands: dict[str, str], results: dict[str, str], attrs):
  """Returns the registration of an operator for some dtypes, by name."""
  formats = {
    'uint8': ops.DataType.U8_Default,
    'float32': ops.DataType.F32_Default,
    'bfloat16': ops.DataType.BF16_Default,
  }
  info = ops.CustomRegOp(name)
  for i, operand in enumerate(operands):
    info = info.input(i, operand, 'required')
  for i, result in enumerate(results):
    info = info.output(i, result, 'required')
  for attr, (kind, value) in attrs.items():
    info = info.attr(attr, 'required', kind, value)
  kinds = [formats[d] for d in (*operands.values(), *results.values())]
  return info.dtype_format(*kinds).target('Ascend').get_op_info()


class Pass:
  """One pass of a layer: an operator, and what it takes beside tensors."""

  def __init__(self, call: layer_call.LayerCall, direction: layout.Direction):
    """Compiles the image.

    Raises:
      ValueError: sizes, policy or options are out of range, or an NPU has no
        kernels for them.
    """
    if call.options.relay:
      raise ValueError(
        'relay: expected none on an NPU of its own, got one: nothing crosses'
      )
    image = call.compile(direction)
    self._image = np.frombuffer(bytearray(image), np.uint8)
    self._state = _mindspore_ffi.npu_state(self._image)
    names = layer_call.Images(_mindspore_ffi).register(image)
    self.inputs = tuple(n for n in names.inputs if n != 'topk_ids')
    self.outputs = tuple(n for n in names.outputs if n not in tensors.PLAN)
    shapes = tuple(call.shape(name) for name in self.outputs)
    dtypes = tuple(getattr(ms, call.dtype(name)) for name in self.outputs)
    words = np.frombuffer(
      self._image[: layout.HEADER.itemsize].tobytes(), np.int64
    )
    attrs = dict(
      header=('listInt', ','.join(map(str, words))),
      deadline_us=('int', str(round(call.deadline_s * 1e6))),
    )
    operands = dict.fromkeys(_CALL, 'uint8')
    name = OPERATORS[direction]
    self._operator = (dry or ops.Custom)(
      name,
      shapes,
      dtypes,
      'aot',
      reg_info=_info(
        name,
        operands | {name: call.dtype(name) for name in self.inputs},
        {name: call.dtype(name) for name in self.outputs},
        attrs,
      ),
    )
    self._head = ms.Tensor(self._image)

  def __call__(
    self, topk_ids: ms.Tensor, operands: dict[str, ms.Tensor]
  ) -> dict[str, ms.Tensor]:
    """Returns what the pass's tasks write.

    Raises:
      ValueError: the ids are no routing, or exceed the layer's capacity.
      RuntimeError: a core did not end; names what it waited for.
    """
    ids = np.ascontiguousarray(topk_ids.asnumpy())
    tables = _mindspore_ffi.npu_tables(self._image, ids)
    state = ms.Tensor(np.frombuffer(bytearray(self._state), np.uint8))
    results = self._operator(
      self._head,
      ms.Tensor(np.frombuffer(tables, np.uint8)),
      state,
      *(operands[name] for name in self.inputs),
    )
    left = np.ascontiguousarray(state.asnumpy())
    message = None if dry else _mindspore_ffi.npu_end(self._image, left)
    if message:
      raise RuntimeError(message)
    return dict(zip(self.outputs, results, strict=True))


class NpuMoELayer(nn.Cell):
  """`y` `[1, T, D]`, storage dtype, of one launch on an NPU.

  Called as `mindspore_layer.MoELayer`, with the same errors.  The gradient
  launches the forward image again, which costs a launch and saves no tensor.
  """

  def __init__(self, call: layer_call.LayerCall):
    """Compiles both passes.

    Raises:
      ValueError: the layer has several ranks, or an NPU has no kernels for it.
    """
    super().__init__()
    if call.config.num_ranks != 1:
      raise ValueError(
        'config.num_ranks: expected 1 on an Ascend device, got '
        f'{call.config.num_ranks}: several are processes of their own, each '
        'with a frontends.npus.mindspore_npus.NpusMoELayer'
      )
    self._call = call
    self.forward_pass = Pass(call, layer_call.FORWARD)
    self.backward_pass = Pass(call, layer_call.BACKWARD)

  def tensors(self, *arguments: ms.Tensor) -> dict[str, ms.Tensor]:
    """Returns `tensors.STAGES` by name, of one launch."""
    operands = dict(zip(tensors.INPUTS, arguments, strict=True))
    for name, tensor in operands.items():
      self._call.check_array(
        name, tuple(tensor.shape), str(tensor.dtype).lower()
      )
    return self.forward_pass(operands['topk_ids'], operands)

  def construct(self, x, topk_ids, topk_weights, w_gate_up, w_down):
    """See the class."""
    outputs = self.tensors(x, topk_ids, topk_weights, w_gate_up, w_down)
    return outputs['y']

  def bprop(self, x, topk_ids, topk_weights, w_gate_up, w_down, out, dout):
    """Returns the gradient of each argument."""
    del out
    arguments = (x, topk_ids, topk_weights, w_gate_up, w_down)
    operands = dict(zip(tensors.INPUTS, arguments, strict=True))
    operands |= self.tensors(*arguments) | dict(dy=dout)
    grads = self.backward_pass(topk_ids, operands)
    return layer_call.grads_by_input(grads, ops.zeros_like(topk_ids))
