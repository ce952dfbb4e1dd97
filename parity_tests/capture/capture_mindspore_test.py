"""A layer of a decoder in MindSpore, recorded as it trains, and judged."""

import mindspore as ms
from mindspore import nn
from mindspore import ops as ms_ops
import numpy as np
import pytest

import hpmoe
from hpmoe.models.mindspore import decoder
from hpmoe.models.mindspore import model_testing
from hpmoe.models.mindspore import moe
from hpmoe.parity_tests.case import read_case


@pytest.fixture(autouse=True)
def _cpu():
  ms.set_device('CPU')
  ms.set_context(pynative_synchronize=True)


def _train(layer, backward=True) -> list[np.ndarray]:
  """Returns the loss of a decoder with this layer, and gradients of it."""
  config, params, tokens = model_testing.model('qwen3_plain')
  names = [name for name in params if 'experts' in name or 'embed' in name]

  def loss(*values):
    tensors = {**params, **dict(zip(names, values))}
    logits, _ = decoder.forward(tensors, config, tokens, moe=layer)
    return decoder.next_token_loss(logits, tokens)

  values = [params[name] for name in names]
  if not backward:
    return [loss(*values).asnumpy()]
  total, grads = ms.value_and_grad(loss, tuple(range(len(names))))(*values)
  return [total.asnumpy(), *(grad.asnumpy() for grad in grads)]


def _verdict(folder, direction='both'):
  case = hpmoe.Case(input=f'{folder}/inputs.safetensors', direction=direction)
  return hpmoe.check(f'outputs:{folder}', case, lanes=['bounded', 'standard'])


def _lose_expert(x, ids, weights, w_gate_up, w_down, policy):
  """Loses what expert 3 returns."""
  is_kept = (ids != 3).astype(weights.dtype)
  return moe.framework(x, ids, weights * is_kept, w_gate_up, w_down, policy)


def _cut_gradient(x, ids, weights, w_gate_up, w_down, policy):
  """Loses the gradient of w_down of expert 3."""
  is_expert_3 = (ms_ops.arange(w_down.shape[1]) == 3).reshape(1, -1, 1, 1)
  w_down_cut = ms_ops.where(is_expert_3, ms_ops.stop_gradient(w_down), w_down)
  return moe.framework(x, ids, weights, w_gate_up, w_down_cut, policy)


def test_a_layer_of_a_decoder_is_right_and_its_run_as_without(tmp_path):
  plain = _train(moe.framework)

  with hpmoe.capture(moe.framework, tmp_path / 'out', call=1) as layer:
    recorded = _train(layer)

  for actual, expected in zip(recorded, plain, strict=True):
    np.testing.assert_array_equal(actual, expected)
  report = _verdict(tmp_path / 'out')
  assert report.is_pass, str(report)
  names = ('y', 'dx', 'd_topk_weights', 'd_w_gate_up', 'd_w_down')
  assert {report.stages[name] for name in names} == {'pass'}


@pytest.mark.parametrize(
  ('layer', 'stage'),
  [(_lose_expert, 'y'), (_cut_gradient, 'd_w_down')],
  ids=('lost', 'cut'),
)
@pytest.mark.few(1)
def test_a_fault_in_it_is_found(tmp_path, layer, stage):
  with hpmoe.capture(
    layer, tmp_path, x='x', topk_ids='ids', call=0, topk_weights='weights'
  ) as tapped:
    _train(tapped)
  report = _verdict(tmp_path)
  assert report.first_failure.stage == stage
  if stage == 'd_w_down':
    assert report.first_failure.expert == 3


def test_a_forward_pass_alone(tmp_path):
  with hpmoe.capture(moe.framework, tmp_path, call=0) as layer:
    _train(layer, backward=False)
  assert 'dy' not in read_case.read(f'{tmp_path}/inputs.safetensors')[0]
  assert _verdict(tmp_path, 'forward').is_pass


class _Experts(nn.Cell):
  """A layer that holds its weights, `[E, 2F, D]` and `[E, D, F]`."""

  def __init__(self, w_gate_up, w_down):
    super().__init__()
    self.gate_up_proj = ms.Parameter(w_gate_up, name='gate_up_proj')
    self.down_proj = ms.Parameter(w_down, name='down_proj')

  def construct(self, hidden_states, top_k_index, top_k_weights):
    weights = (self.gate_up_proj, self.down_proj)
    return moe.framework(
      hidden_states[None],
      top_k_index[None],
      top_k_weights[None],
      *(actual.swapaxes(1, 2)[None] for actual in weights),
      hpmoe.PrecisionPolicy(),
    )[0]


def test_of_two_calls_of_a_cell_one_is_recorded(tmp_path):
  # Given a Cell that is called twice, with a gradient through both calls,
  rng = np.random.default_rng(0)
  cell = _Experts(
    ms.Tensor(rng.normal(size=(8, 32, 32)).astype(np.float32) / 6),
    ms.Tensor(rng.normal(size=(8, 32, 16)).astype(np.float32) / 4),
  )
  x = ms.Tensor(rng.normal(size=(16, 32)).astype(np.float32))
  ids = ms.Tensor(rng.permuted(np.tile(np.arange(8), (16, 1)), axis=1)[:, :2])
  weights = ms.Tensor(rng.random((16, 2)).astype(np.float32))
  own = cell.construct, cell.gate_up_proj

  def loss(x, weights):
    return (cell(cell(x, ids, weights), ids, weights) * x).sum()

  # when the second is recorded,
  with hpmoe.capture(cell, tmp_path, call=1):
    step = ms.value_and_grad(loss, (0, 1), cell.trainable_params())
    step(x, weights)

  # then its gradients are its own, and the Cell is as before.
  report = _verdict(tmp_path)
  assert report.is_pass, str(report)
  assert {report.stages[n] for n in ('dx', 'd_w_gate_up')} == {'pass'}
  assert own == (cell.construct, cell.gate_up_proj)


def test_tensors_of_mindspore_are_read_as_they_are():
  values = np.arange(6, dtype=np.float32).reshape(2, 3)
  for dtype in (ms.float32, ms.bfloat16, ms.float16):
    tensor = ms.Tensor(values).astype(dtype)
    for actual, right in ((tensor, values), (tensor.swapaxes(0, 1), values.T)):
      bits = read_case.bits_of(actual)
      assert bits.flags.c_contiguous
      np.testing.assert_array_equal(
        read_case.as_numpy(bits).astype(np.float32), right
      )
