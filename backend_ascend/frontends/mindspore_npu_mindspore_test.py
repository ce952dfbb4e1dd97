"""The Cell of an NPU, with the operators emulated on the host.

What an operator is registered as and given is as on a device; what it computes
is the runtime's, from those operands alone.
"""

from unittest import mock

import mindspore as ms
from mindspore import ops
import numpy as np
import pytest

from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.frontends import layer_testing
from hpmoe.backend_ascend.frontends import mindspore_layer
from hpmoe.backend_ascend.frontends import mindspore_npu
from hpmoe.backend_ascend.host.launch import runtime
from hpmoe.backend_ascend.host.launch import runtime_testing as testing
from hpmoe.reference.contract import config_testing

CONFIG = config_testing.make_config(r=1, t=21, e=4, k=2, d=17, f=13)
POLICIES = {
  name: policy
  for name, policy in layer_testing.POLICIES.items()
  if policy.storage != 'float16' and policy.placement != 'epilogue'
}
_LINE = 64


class Operator:
  """What CANN would find under a name."""

  operators: list['Operator'] = []
  # What each core's line says that it ended with: reason, task, event,
  # expected, actual.
  end: tuple[int, ...] = (1,)

  def __init__(self, name, shapes, dtypes, kind, reg_info):
    assert kind == 'aot' and reg_info['op_name'] == name
    assert reg_info['target'] == 'Ascend'
    self.name, self.shapes, self.info = name, shapes, reg_info
    Operator.operators.append(self)

  def __call__(self, image, tables, state, *operands):
    self.image = image_lib.load(image.asnumpy().tobytes())
    names = [row['name'] for row in self.info['inputs']]
    assert names[:3] == ['image', 'tables', 'state']
    arrays = {
      name: mindspore_layer.to_numpy(a)
      for name, a in zip(names[3:], operands, strict=True)
    }
    arrays['topk_ids'] = self._ids(tables.asnumpy())
    operators = runtime.launch(self.image, arrays)
    self._leave(state.asnumpy())
    outputs = [row['name'] for row in self.info['outputs']]
    return tuple(ms.Tensor(operators[name]) for name in outputs)

  def _ids(self, tables: np.ndarray) -> np.ndarray:
    sizes = self.image.config.dims()
    experts, slots = sizes['E'], sizes['T'] * sizes['K']
    # Of LaunchArgs: distances, but for the bits that say from where.
    slice_begin, slice_slots = tables[40:56].view(np.int64) & (1 << 56) - 1
    begin = tables[slice_begin:][: 8 * (experts + 1)].view(np.int64)
    slot = tables[slice_slots:][: 4 * slots].view(np.int32)
    ids = np.zeros(slots, np.int32)
    for expert in range(experts):
      ids[slot[begin[expert] : begin[expert + 1]]] = expert
    return ids.reshape(1, sizes['T'], sizes['K'])

  def _leave(self, state: np.ndarray) -> None:
    cores = self.image.options.num_aic + self.image.options.num_aiv
    ends = state[-cores * _LINE :].view(np.int32).reshape(cores, -1)
    assert not ends.any()
    ends[:, : len(self.end)] = self.end


@pytest.fixture(autouse=True)
def _with_npu(monkeypatch):
  ms.set_device('CPU')
  monkeypatch.setattr(mindspore_layer, 'has_ascend', lambda: True)
  monkeypatch.setattr(ops, 'Custom', Operator)
  monkeypatch.setattr(Operator, 'operators', [])


def _cell(policy=layer_testing.F32, config=CONFIG, **changes):
  return mindspore_layer.MoELayer(
    config, policy, layer_testing.OPTIONS, device='ascend', **changes
  )


@pytest.mark.parametrize('name', POLICIES)
def test_layer_and_gradient_are_those_of_the_operators(name):
  # Given a layer of one rank, when it and its gradient are called, then they
  # have the bits of launches on what the operators were given.
  policy = POLICIES[name]
  inputs, dy = layer_testing.case(policy, config=CONFIG)
  want = layer_testing.run_both_passes(inputs, dy, policy, CONFIG)
  cell = _cell(policy)
  operands = [ms.Tensor(array) for array in inputs.values()]
  pull = ops.GradOperation(get_all=True, sens_param=True)
  grads = pull(cell)(*operands, ms.Tensor(dy))
  operators = (cell(*operands), *(grads[i] for i in (0, 2, 3, 4)))
  actual = layer_testing.name_outputs(map(mindspore_layer.to_numpy, operators))
  assert not testing.differing(actual, want)


def test_operators_are_registered_with_the_image_header():
  _cell(deadline_s=0.25)
  forward, backward = Operator.operators
  assert [o.name for o in Operator.operators] == [
    'HpmoeLaunch',
    'HpmoeLaunchGrad',
  ]
  for operator in (forward, backward):
    header, deadline = operator.info['attr']
    assert (header['name'], deadline['name']) == ('header', 'deadline_us')
    words = np.array([int(w) for w in header['defaultValue'].split(',')])
    raw = words.astype(np.int64).tobytes()
    assert np.frombuffer(raw, layout.HEADER)[0]['num_tokens'] == 21
    assert deadline['defaultValue'] == '250000'


def test_the_device_of_mindspore_decides():
  with mock.patch.object(ms, 'get_context', return_value='Ascend'):
    cell = mindspore_layer.MoELayer(
      CONFIG, layer_testing.F32, layer_testing.OPTIONS
    )
  assert isinstance(cell, mindspore_npu.NpuMoELayer)


@pytest.mark.parametrize(
  'end, message',
  [
    ((0,), r'^AIC 0 of rank 0: expected it to end, got no word of it$'),
    (
      (2, 1, 3, 8, 7),
      r'^rank 0: deadline: \w+ task 1 \(.*waits for event 3, .* 8, got 7; not ',
    ),
  ],
)
def test_a_launch_that_did_not_end_says_why(monkeypatch, end, message):
  monkeypatch.setattr(Operator, 'end', end)
  inputs, _ = layer_testing.case(config=CONFIG)
  with pytest.raises(RuntimeError, match=message):
    _cell()(*map(ms.Tensor, inputs.values()))


@pytest.mark.parametrize(
  'config, policy, message',
  [
    (layer_testing.CONFIG, layer_testing.F32, r'^config.num_ranks: expected 1'),
    (
      CONFIG,
      layer_testing.POLICIES['float16-combine'],
      r'^policy.storage: expected float32 or bfloat16',
    ),
  ],
)
def test_what_an_npu_cannot_do_is_refused(config, policy, message):
  with pytest.raises(ValueError, match=message):
    _cell(policy, config)


def test_wrong_arguments_are_refused():
  inputs, _ = layer_testing.case(config=CONFIG)
  inputs['w_down'] = inputs['w_down'][..., 1:]
  with pytest.raises(ValueError, match=r'^w_down: expected shape'):
    _cell()(*map(ms.Tensor, inputs.values()))
