"""Tests of mindspore_layer: the runtime's bits and its refusals, as a Cell."""

import contextlib
import sys
from unittest import mock

import mindspore as ms
from mindspore import ops
import numpy as np
import pytest

from hpmoe.backend_ascend.frontends import layer_call
from hpmoe.backend_ascend.frontends import layer_testing
from hpmoe.backend_ascend.frontends import mindspore_layer
from hpmoe.backend_ascend.host.launch import runtime_testing as testing

CONFIG, OPTIONS = layer_testing.CONFIG, layer_testing.OPTIONS
POLICIES, F32 = layer_testing.POLICIES, layer_testing.F32
BF16 = POLICIES['bfloat16-before_down']
case, run_both_passes = layer_testing.case, layer_testing.run_both_passes

# What a function becomes in each of MindSpore's ways to run it.
MODES = {
  'pynative': lambda f: f,
  'ast': ms.jit,
  'ast-fullgraph': lambda f: ms.jit(f, fullgraph=True),
  'bytecode': lambda f: ms.jit(f, capture_mode='bytecode'),
}
_pull = ops.GradOperation(get_all=True, sens_param=True)


@pytest.fixture(autouse=True)
def _cpu(tmp_path, monkeypatch):
  ms.set_device('CPU')
  # Other tests of this process tell errors at once; ours are told when read.
  ms.set_context(pynative_synchronize=False)
  # Compilers that fail leave their graphs in the working directory.
  monkeypatch.chdir(tmp_path)


def cell_of(config=CONFIG, policy=F32, **changes):
  changes = dict(options=OPTIONS) | changes
  return mindspore_layer.MoELayer(config, policy, **changes)


def tensors_of(inputs, dy):
  return [ms.Tensor(a) for a in (*inputs.values(), dy)]


def name_results(y, grads):
  """Returns y and the gradients by name, without those of ids."""
  values = (y, *(g for i, g in enumerate(grads) if i != 1))
  return layer_testing.name_outputs(map(mindspore_layer.to_numpy, values))


def layer_and_grads(cell):
  """Returns a function of (*inputs, dy) to y and the gradients of inputs."""

  def run(x, ids, weights, w_gate_up, w_down, dy):
    arguments = (x, ids, weights, w_gate_up, w_down)
    return cell(*arguments), _pull(cell)(*arguments, dy)

  return run


class TestFrontEnd(layer_testing.FrontEndTests):
  register = staticmethod(mindspore_layer.register)

  def calls(self, config=CONFIG, policy=F32, **options):
    run = layer_and_grads(cell_of(config, policy, **options))
    return [lambda inputs, dy: name_results(*run(*tensors_of(inputs, dy)))]

  def error_text(self, run):
    """Returns the words of an error, of this call and no later."""
    with pytest.raises(RuntimeError) as error:
      run()
    # Of operators that depend on the first one.
    with contextlib.suppress(RuntimeError):
      ms.runtime.synchronize()
    return layer_call.launch_error(str(error.value)) or str(error.value)

  def raw(self, image, *operands, deadline_s=1.0):
    operator = ops.Custom(mindspore_layer.CPU_OPERATOR, (1,), ms.float32, 'aot')
    head = mindspore_layer.call_tensor(image, None, deadline_s)
    operands = [ms.Tensor(a) for a in operands]
    return self.error_text(lambda: operator(head, *operands).asnumpy())

  def nan(self, shape):
    tensor = ops.full(shape, float('nan'))
    ms.runtime.synchronize()
    return tensor

  def test_a_head_of_another_size_is_refused(self):
    operator = ops.Custom(mindspore_layer.CPU_OPERATOR, (1,), ms.float32, 'aot')
    message = self.error_text(
      lambda: operator(ops.zeros(9, ms.int64)).asnumpy()
    )
    assert 'operand 0: expected 104 bytes, got 72' in message


error_text = TestFrontEnd().error_text


class TestBits:
  # In each of these a Cell may have a gradient that is zero and no error.
  @pytest.mark.parametrize('mode', MODES)
  @pytest.mark.parametrize('policy', [F32, BF16], ids=['float32', 'bfloat16'])
  @pytest.mark.few(2)
  def test_in_every_mode(self, mode, policy):
    # Given.
    inputs, dy = case(policy)
    want = run_both_passes(inputs, dy, policy)
    arguments = tensors_of(inputs, dy)
    cell, wrap = cell_of(policy=policy), MODES[mode]
    # When: the gradient is compiled; and what is compiled has its gradient.
    whole = wrap(layer_and_grads(cell))(*arguments)

    def layer(x, ids, weights, w_gate_up, w_down):
      return cell(x, ids, weights, w_gate_up, w_down)

    compiled = wrap(layer)
    parts = compiled(*arguments[:-1]), _pull(compiled)(*arguments)
    # Then.
    assert not testing.differing(name_results(*whole), want)
    assert not testing.differing(name_results(*parts), want)

  def test_in_graph_mode(self):
    inputs, dy = case()
    ms.set_context(mode=ms.GRAPH_MODE)
    try:
      actual = name_results(
        *layer_and_grads(cell_of())(*tensors_of(inputs, dy))
      )
    finally:
      ms.set_context(mode=ms.PYNATIVE_MODE)
    assert not testing.differing(actual, run_both_passes(inputs, dy))

  def test_of_layers_that_differ_in_capacity_alone(self):
    # Given: operands of the same shapes, results of others.
    inputs, dy = case()
    for rows in (84, 70):
      config = testing.with_capacity(CONFIG, rows)
      # When, then.
      actual = layer_and_grads(cell_of(config))(*tensors_of(inputs, dy))
      want = run_both_passes(inputs, dy, config=config)
      assert not testing.differing(name_results(*actual), want)

  def test_do_not_depend_on_where_the_inputs_lie(self):
    # Given: memory that is aligned for an element and no more.
    inputs, dy = case()

    def move_axis(array):
      raw = np.zeros(array.nbytes + 68, np.uint8)
      start = -raw.ctypes.data % 64 + 4
      place = raw[start : start + array.nbytes].view(array.dtype)
      place[...] = array.ravel()
      assert place.ctypes.data % 64 == 4
      return ms.Tensor.from_numpy(place.reshape(array.shape))

    # When, then.
    arguments = list(map(move_axis, (*inputs.values(), dy)))
    actual = name_results(*layer_and_grads(cell_of())(*arguments))
    assert not testing.differing(actual, run_both_passes(inputs, dy))

  def test_value_and_grad_of_a_loss_with_repeated_arguments(self):
    # Given: y times x, so that x is used twice.
    inputs, _ = case()
    want = run_both_passes(inputs, inputs['x'])
    cell = cell_of()
    arguments = [ms.Tensor(a) for a in inputs.values()]
    loss = lambda x, *rest: (cell(x, *rest) * x).sum()
    # When.
    value, grads = ms.value_and_grad(loss, (0, 3))(*arguments)
    # Then.
    dx, d_w_gate_up = map(mindspore_layer.to_numpy, grads)
    np.testing.assert_array_equal(dx, want['dx'] + want['y'])
    np.testing.assert_array_equal(d_w_gate_up, want['d_w_gate_up'])
    total = (want['y'] * inputs['x']).sum()
    np.testing.assert_allclose(float(value), total, rtol=1e-4)

  def test_under_vmap(self):
    # Given.
    inputs, _ = case()
    x, *rest = (ms.Tensor(a) for a in inputs.values())
    cell = cell_of()
    layer = lambda x: cell(x, *rest)
    stack = ops.stack([x, 2 * x])

    def loss(stack):
      y = ms.vmap(layer)(stack)
      return (y * y).sum()

    # When.
    outputs = ms.vmap(layer)(stack), ms.grad(loss)(stack)
    # Then: as arrays, since MindSpore refuses an int as an index at times.
    y, grad = (tensor.asnumpy() for tensor in outputs)
    for i, values in enumerate((x, 2 * x)):
      want = run_both_passes(inputs | dict(x=values.asnumpy()), 2 * y[i])
      assert y[i].tobytes() == want['y'].tobytes()
      assert grad[i].tobytes() == want['dx'].tobytes()


class TestToNumpy:
  @pytest.mark.parametrize('policy', [F32, BF16])
  def test_is_a_copy_with_the_dtype_of_ml_dtypes(self, policy):
    array = case(policy)[1]
    tensor = ms.Tensor(array)
    copy = mindspore_layer.to_numpy(tensor)
    assert copy.dtype == array.dtype
    assert copy.tobytes() == array.tobytes()
    copy[...] = 0
    assert mindspore_layer.to_numpy(tensor).tobytes() == array.tobytes()


class TestArgumentsRefused:
  def test_when_it_is_compiled(self):
    inputs, _ = case()
    inputs['w_down'] = inputs['w_down'][:, :1]
    with pytest.raises(ValueError, match=r'^w_down: expected shape .* got \(2'):
      ms.jit(cell_of())(*map(ms.Tensor, inputs.values()))

  def test_what_is_no_tensor_is_named(self):
    inputs, _ = case()
    operands = [ms.Tensor(a) for a in inputs.values()]
    operands[3] = inputs['w_gate_up']
    with pytest.raises(ValueError, match='w_gate_up: expected a mindspore.Ten'):
      cell_of()(*operands)


class TestTransformationsRefused:
  @pytest.fixture
  def layer_and_x(self):
    x, *rest = (ms.Tensor(a) for a in case()[0].values())
    cell = cell_of()
    return lambda x: cell(x, *rest), x

  @pytest.mark.parametrize('mode', ['pynative', 'ast'])
  def test_gradient_of_the_gradient(self, mode, layer_and_x):
    layer, x = layer_and_x

    def loss(x):
      y = layer(x)
      return (y * y).sum()

    def slope(x):
      return (ms.grad(loss)(x) * x).sum()

    with pytest.raises((RuntimeError, TypeError)):
      MODES[mode](ms.grad(slope))(x).asnumpy()

  def test_forward_mode(self, layer_and_x):
    layer, x = layer_and_x
    with pytest.raises((RuntimeError, TypeError)):
      ms.jvp(layer, x, x)


class TestRefusedWhenItRuns:
  def test_when_it_is_compiled(self):
    inputs, _ = case()
    inputs['x'][1, 20, 16] = np.inf
    operands = map(ms.Tensor, inputs.values())
    call = ms.jit(cell_of(scan=True))
    message = error_text(lambda: call(*operands).asnumpy())
    assert 'x: expected finite values, got inf at (1, 20, 16)' in message

  def test_leaves_no_numbers_and_the_next_call_is_right(self):
    # Given: an error may be told after results were read.
    inputs, dy = case()
    cell = cell_of(scan=True)
    bad = inputs | dict(x=np.full_like(inputs['x'], np.inf))
    y = cell(*tensors_of(bad, dy)[:-1])
    # When.
    error_text(y.asnumpy)
    # Then.
    assert np.isnan(y.asnumpy()).all()
    actual = name_results(*layer_and_grads(cell)(*tensors_of(inputs, dy)))
    assert not testing.differing(actual, run_both_passes(inputs, dy))


def test_what_no_launch_said_is_not_taken_for_it():
  assert layer_call.launch_error('Error message is x') is None
  assert layer_call.launch_error("For 'Custom', something") is None


class TestDevice:
  def test_none_is_the_one_that_was_set(self):
    assert cell_of().launch.func == mindspore_layer.CPU_OPERATOR

  @pytest.mark.parametrize(
    'device, message',
    [('ascend', "'cpu', got 'asc"), ('gpu', "one of .* 'gpu'")],
  )
  def test_others_are_refused(self, device, message):
    with pytest.raises(ValueError, match=f'^device: expected {message}'):
      cell_of(device=device)


def test_without_mindspore_the_extra_is_named():
  name = 'hpmoe.backend_ascend.frontends.mindspore_layer'
  other_modules = {k: v for k, v in sys.modules.items() if k != name}
  with (
    mock.patch.dict(
      sys.modules, other_modules | {'mindspore': None}, clear=True
    ),
    pytest.raises(ImportError, match=r"pip install 'hyperparallel-moe\[minds"),
  ):
    __import__(name)
