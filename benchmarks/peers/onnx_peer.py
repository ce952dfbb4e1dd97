"""ONNX Runtime's com.microsoft.MoE, forward."""

import numpy as np
import onnx
import onnx.helper
import onnxruntime

from benchmarks.peers import peer

_FAR = -1e4  # logit of an expert that a token does not have


class OnnxMoe(peer.Peer):
  """One node.  It routes by itself, so the weights come back as logits."""

  def __init__(self, arrays):
    super().__init__(arrays)
    if arrays['x'].dtype != np.float32:
      raise peer.CannotRun('its CPU kernel is for float32')
    num_experts, d_ff, d_model = arrays['w_down'].shape
    ids, weights = arrays['topk_ids'], arrays['topk_weights']
    logits = np.full((len(ids), num_experts), _FAR, np.float32)
    np.put_along_axis(logits, ids.astype(np.int64), np.log(weights), axis=1)
    # Gate and up take turns, and weights are stored transposed.
    fused = arrays['w_gate_up'].reshape(num_experts, d_model, 2, d_ff)
    fused = fused.transpose(0, 3, 2, 1).reshape(num_experts, 2 * d_ff, d_model)
    weights_of = dict(
      fc1=np.ascontiguousarray(fused),
      fc2=np.ascontiguousarray(arrays['w_down'].transpose(0, 2, 1)),
    )
    self._session = self._load(weights_of, ids.shape[1])
    self._feed = dict(x=arrays['x'], logits=logits)

  def _load(self, weights, top_k: int) -> onnxruntime.InferenceSession:
    node = onnx.helper.make_node(
      'MoE',
      ['x', 'logits', 'fc1', '', 'fc2'],
      ['y'],
      domain='com.microsoft',
      k=top_k,
      activation_type='swiglu',
      swiglu_fusion=1,
      activation_alpha=1.0,
      activation_beta=0.0,
      normalize_routing_weights=1,
    )
    info = onnx.helper.make_tensor_value_info
    kind = onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
      [node],
      'moe',
      [info('x', kind, None), info('logits', kind, None)],
      [info('y', kind, None)],
      # Their values are handed over below: a model holds 2 GiB at most.
      sparse_initializer=[],
      initializer=[self._outside(name, a) for name, a in weights.items()],
    )
    model = onnx.helper.make_model(
      graph,
      opset_imports=[
        onnx.helper.make_opsetid('', 20),
        onnx.helper.make_opsetid('com.microsoft', 1),
      ],
      ir_version=10,
    )
    options = onnxruntime.SessionOptions()
    self._held = [
      onnxruntime.OrtValue.ortvalue_from_numpy(a) for a in weights.values()
    ]
    options.add_external_initializers(list(weights), self._held)
    return onnxruntime.InferenceSession(
      model.SerializeToString(), options, providers=['CPUExecutionProvider']
    )

  @staticmethod
  def _outside(name: str, value: np.ndarray) -> onnx.TensorProto:
    tensor = onnx.TensorProto()
    tensor.name, tensor.data_type = name, onnx.TensorProto.FLOAT
    tensor.dims.extend(value.shape)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = 'location', name
    return tensor

  def forward(self):
    return self._session.run(None, self._feed)

  def results(self, out):
    return dict(y=out[0])

  @staticmethod
  def versions():
    return {'onnxruntime': onnxruntime.__version__}
