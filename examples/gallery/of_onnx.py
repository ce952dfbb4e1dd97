"""A model of one node for ONNX Runtime's MoE operator."""

import numpy as np
import onnx
import onnx.helper
import onnxruntime

_CODES = {
  'float32': onnx.TensorProto.FLOAT,
  'float16': onnx.TensorProto.FLOAT16,
  'bfloat16': onnx.TensorProto.BFLOAT16,
}


def experts(x, logits, w_gate_up, w_down, alpha):
  """Returns what the one expert of each row makes of it.

  Args:
    x: [S, D].
    logits: [S, E], of which the greatest is the row's expert.
    w_gate_up: [E, D, 2F]; the operator has gate and up by turns, transposed.
    w_down: [E, F, D].
    alpha: of gate sigmoid(alpha gate) up.
  """
  code = _CODES[str(x.dtype)]
  num_experts, d_model, width = w_gate_up.shape
  fc1 = w_gate_up.reshape(num_experts, d_model, 2, width // 2)
  fc1 = fc1.transpose(0, 3, 2, 1).reshape(num_experts, width, d_model)
  fed = dict(x=x, logits=logits, fc1=fc1, fc2=w_down.transpose(0, 2, 1))
  node = onnx.helper.make_node(
    'MoE',
    ['x', 'logits', 'fc1', '', 'fc2'],
    ['y'],
    domain='com.microsoft',
    k=1,
    activation_type='swiglu',
    swiglu_fusion=1,
    activation_alpha=alpha,
    activation_beta=0.0,
    normalize_routing_weights=1,
  )
  info = onnx.helper.make_tensor_value_info
  graph = onnx.helper.make_graph(
    [node],
    'moe',
    [info(name, code, a.shape) for name, a in fed.items()],
    [info('y', code, None)],
  )
  opsets = [('', 20), ('com.microsoft', 1)]
  model = onnx.helper.make_model(
    graph,
    opset_imports=[onnx.helper.make_opsetid(*opset) for opset in opsets],
    ir_version=10,
  )
  session = onnxruntime.InferenceSession(
    model.SerializeToString(), providers=['CPUExecutionProvider']
  )
  held = {name: np.ascontiguousarray(a) for name, a in fed.items()}
  return session.run(None, held)[0]
