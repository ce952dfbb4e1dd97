"""Tests of mindspore_layer: the runtime's bits and its refusals, as a Cell."""

import contextlib
import dataclasses
import sys
from unittest import mock

import jax
import mindspore as ms
from mindspore import ops
import numpy as np
import pytest

from hpmoe.backend_ascend import compiler
from hpmoe.backend_ascend.frontends import jax_layer
from hpmoe.backend_ascend.frontends import layer_call
from hpmoe.backend_ascend.frontends import layer_testing
from hpmoe.backend_ascend.frontends import mindspore_layer
from hpmoe.backend_ascend.kernels.host.launch import runtime
from hpmoe.backend_ascend.kernels.host.launch import runtime_testing as testing
from hpmoe.backend_ascend.schedule import schedule_file
from hpmoe.backend_ascend.taskflow import flow as flow_lib
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import tensors

CONFIG, OPTIONS = layer_testing.CONFIG, layer_testing.OPTIONS
POLICIES, F32 = layer_testing.POLICIES, layer_testing.F32
BF16 = POLICIES['bfloat16-before_down']
case, launched = layer_testing.case, layer_testing.launched

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


def named(y, grads):
  """Returns y and the gradients by name, without those of ids."""
  values = (y, *(g for i, g in enumerate(grads) if i != 1))
  names = ('y', *layer_testing.GRADS)
  arrays = map(mindspore_layer.to_numpy, values)
  return dict(zip(names, arrays, strict=True))


def layer_and_grads(cell):
  """Returns a function of (*inputs, dy) to y and the gradients of inputs."""

  def run(x, ids, weights, w_gate_up, w_down, dy):
    arguments = (x, ids, weights, w_gate_up, w_down)
    return cell(*arguments), _pull(cell)(*arguments, dy)

  return run


def refused(run) -> str:
  """Returns the words of an error at run time, of this call and no later."""
  with pytest.raises(RuntimeError) as error:
    run().asnumpy()
  # Of operators that depend on the first one.
  with contextlib.suppress(RuntimeError):
    ms.runtime.synchronize()
  return str(error.value)


class TestBits:
  @pytest.mark.parametrize('policy', POLICIES.values(), ids=POLICIES)
  def test_of_the_runtime_and_of_the_jax_layer(self, policy):
    # Given.
    inputs, dy = case(policy)
    want = launched(inputs, dy, policy)
    assert all(np.any(array != 0) for array in want.values())
    # When.
    got = named(
      *layer_and_grads(cell_of(policy=policy))(*tensors_of(inputs, dy))
    )
    x, ids, *floats = inputs.values()
    y, pull = jax.vjp(
      lambda x, *f: jax_layer.layer(CONFIG, policy, x, ids, *f, OPTIONS),
      x,
      *floats,
    )
    values = map(np.asarray, (y, *pull(dy)))
    of_jax = dict(zip(want, values, strict=True))
    # Then.
    assert not testing.differing(got, want)
    assert not testing.differing(of_jax, want)

  # In each of these a Cell may have a gradient that is zero and no error.
  @pytest.mark.parametrize('mode', MODES)
  @pytest.mark.parametrize('policy', [F32, BF16], ids=['float32', 'bfloat16'])
  def test_in_every_mode(self, mode, policy):
    # Given.
    inputs, dy = case(policy)
    want = launched(inputs, dy, policy)
    arguments = tensors_of(inputs, dy)
    cell, wrap = cell_of(policy=policy), MODES[mode]
    # When: the gradient is compiled; and what is compiled has its gradient.
    whole = wrap(layer_and_grads(cell))(*arguments)

    def layer(x, ids, weights, w_gate_up, w_down):
      return cell(x, ids, weights, w_gate_up, w_down)

    compiled = wrap(layer)
    parts = compiled(*arguments[:-1]), _pull(compiled)(*arguments)
    # Then.
    assert not testing.differing(named(*whole), want)
    assert not testing.differing(named(*parts), want)

  def test_in_graph_mode(self):
    inputs, dy = case()
    ms.set_context(mode=ms.GRAPH_MODE)
    try:
      got = named(*layer_and_grads(cell_of())(*tensors_of(inputs, dy)))
    finally:
      ms.set_context(mode=ms.PYNATIVE_MODE)
    assert not testing.differing(got, launched(inputs, dy))

  @pytest.mark.parametrize('routing', testing.ROUTINGS)
  @pytest.mark.parametrize('top_k', [2, 4])
  def test_under_awkward_routings(self, routing, top_k):
    config = config_testing.sized(r=2, t=9, e=4, k=top_k, d=8, f=6)
    inputs, dy = case(routing=routing, config=config)
    got = layer_and_grads(cell_of(config))(*tensors_of(inputs, dy))
    want = launched(inputs, dy, config=config)
    assert not testing.differing(named(*got), want)

  def test_of_layers_that_differ_in_capacity_alone(self):
    # Given: operands of the same shapes, results of others.
    inputs, dy = case()
    for rows in (84, 70):
      config = testing.with_capacity(CONFIG, rows)
      # When, then.
      got = layer_and_grads(cell_of(config))(*tensors_of(inputs, dy))
      want = launched(inputs, dy, config=config)
      assert not testing.differing(named(*got), want)

  def test_of_subnormal_numbers(self):
    # Given: a framework's threads may flush them to zero.
    inputs, dy = case()
    small = inputs | dict(w_down=inputs['w_down'] * np.float32(1e-38))
    want = launched(small, dy)
    tiny = np.finfo(np.float32).tiny
    assert ((want['y'] != 0) & (abs(want['y']) < tiny)).any()
    # When, then.
    got = named(*layer_and_grads(cell_of())(*tensors_of(small, dy)))
    assert not testing.differing(got, want)

  def test_of_rows_that_no_token_fills(self):
    # Given: memory that held NaN; the backward launch checks what it is given.
    inputs, dy = case()
    want, run = launched(inputs, dy), layer_and_grads(cell_of())
    shapes = [s.dims(**CONFIG.dims()) for s in tensors.SPECS.values()]
    for _ in range(5):
      used = [ops.full(shape, float('nan')) for shape in shapes]
      ms.runtime.synchronize()
      del used
      # When, then.
      assert not testing.differing(named(*run(*tensors_of(inputs, dy))), want)

  def test_do_not_depend_on_where_the_inputs_lie(self):
    # Given: memory that is aligned for an element and no more.
    inputs, dy = case()

    def moved(array):
      raw = np.zeros(array.nbytes + 68, np.uint8)
      start = -raw.ctypes.data % 64 + 4
      place = raw[start : start + array.nbytes].view(array.dtype)
      place[...] = array.ravel()
      assert place.ctypes.data % 64 == 4
      return ms.Tensor.from_numpy(place.reshape(array.shape))

    # When, then.
    arguments = list(map(moved, (*inputs.values(), dy)))
    got = named(*layer_and_grads(cell_of())(*arguments))
    assert not testing.differing(got, launched(inputs, dy))

  def test_value_and_grad_of_a_loss_with_repeated_arguments(self):
    # Given: y times x, so that x is used twice.
    inputs, _ = case()
    want = launched(inputs, inputs['x'])
    cell = cell_of()
    arguments = [ms.Tensor(a) for a in inputs.values()]
    loss = lambda x, *rest: (cell(x, *rest) * x).sum()
    # When.
    value, grads = ms.value_and_grad(loss, (0, 3))(*arguments)
    # Then.
    np.testing.assert_array_equal(
      mindspore_layer.to_numpy(grads[0]), want['dx'] + want['y']
    )
    np.testing.assert_array_equal(
      mindspore_layer.to_numpy(grads[1]), want['d_w_gate_up']
    )
    np.testing.assert_allclose(
      float(value), (want['y'] * inputs['x']).sum(), rtol=1e-4
    )

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
    y, grad = ms.vmap(layer)(stack), ms.grad(loss)(stack)
    # Then.
    for i, one in enumerate((x, 2 * x)):
      want = launched(inputs | dict(x=one.asnumpy()), 2 * y[i].asnumpy())
      assert y[i].asnumpy().tobytes() == want['y'].tobytes()
      assert grad[i].asnumpy().tobytes() == want['dx'].tobytes()


def test_a_schedule_decides_the_image(tmp_path):
  path = tmp_path / 'layer.schedule'
  schedule_file.save(
    path,
    schedule_file.Schedule(
      CONFIG,
      F32.storage,
      F32.placement,
      dataclasses.replace(OPTIONS, row_block=4),
    ),
  )
  inputs, dy = case()
  cell = cell_of(options=None, schedule=path)
  got = named(*layer_and_grads(cell)(*tensors_of(inputs, dy)))
  assert not testing.differing(got, launched(inputs, dy))
  assert cell.launch.image != cell_of().launch.image


def test_images_are_compiled_once():
  config = config_testing.sized(r=1, t=3, e=2, k=1, d=4, f=4)
  with mock.patch.object(
    compiler, 'compile_forward', side_effect=compiler.compile_forward
  ) as compiled:
    cell_of(config)
    cell_of(config, threads=1)
  assert compiled.call_count == 1


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
  @pytest.mark.parametrize('name', tensors.INPUTS)
  def test_shape_is_named(self, name):
    inputs, _ = case()
    inputs[name] = inputs[name][:, :1]
    with pytest.raises(ValueError, match=f'^{name}: expected shape'):
      cell_of()(*map(ms.Tensor, inputs.values()))

  @pytest.mark.parametrize('name', tensors.INPUTS)
  def test_dtype_is_named(self, name):
    inputs, _ = case()
    inputs[name] = inputs[name].astype(np.float16)
    with pytest.raises(
      ValueError, match=f'^{name}: expected dtype .*, got float16'
    ):
      cell_of()(*map(ms.Tensor, inputs.values()))

  def test_when_it_is_compiled(self):
    inputs, _ = case()
    inputs['w_down'] = inputs['w_down'][:, :1]
    with pytest.raises(ValueError, match=r'^w_down: expected shape .* got \(2'):
      ms.jit(cell_of())(*map(ms.Tensor, inputs.values()))

  def test_what_is_no_tensor_is_named(self):
    inputs, _ = case()
    given = [ms.Tensor(a) for a in inputs.values()]
    given[3] = inputs['w_gate_up']
    with pytest.raises(ValueError, match='w_gate_up: expected a mindspore.Ten'):
      cell_of()(*given)

  def test_options(self):
    with pytest.raises(ValueError, match='threads: expected 1 to 4096, got 0'):
      cell_of(threads=0)
    for deadline in (0.0, float('nan')):
      with pytest.raises(ValueError, match='deadline_s: expected'):
        cell_of(deadline_s=deadline)

  def test_schedule_of_another_layer(self):
    other = schedule_file.Schedule(CONFIG, 'float16', 'combine', OPTIONS)
    with pytest.raises(ValueError, match='schedule: expected one of this'):
      cell_of(options=None, schedule=other)

  @pytest.mark.parametrize('name', ['config', 'policy', 'options'])
  def test_what_is_no_config_policy_or_options_is_named(self, name):
    with pytest.raises(ValueError, match=f'^{name}: expected a .*, got {{'):
      cell_of(**{name: {'num_tokens': 3}})

  def test_corrupt_image(self):
    image = bytearray(testing.compile_layer(CONFIG, F32))
    image[len(image) // 2] ^= 1
    with pytest.raises(ValueError, match='crc32'):
      mindspore_layer.register(image)


class TestTransformationsRefused:
  @pytest.mark.parametrize('mode', ['pynative', 'ast'])
  def test_gradient_of_the_gradient(self, mode):
    inputs, _ = case()
    x, *rest = (ms.Tensor(a) for a in inputs.values())
    cell = cell_of()

    def loss(x):
      y = cell(x, *rest)
      return (y * y).sum()

    def slope(x):
      return (ms.grad(loss)(x) * x).sum()

    with pytest.raises((RuntimeError, TypeError)):
      MODES[mode](ms.grad(slope))(x).asnumpy()

  def test_forward_mode(self):
    inputs, _ = case()
    x, *rest = (ms.Tensor(a) for a in inputs.values())
    cell = cell_of()
    layer = lambda x: cell(x, *rest)
    with pytest.raises((RuntimeError, TypeError)):
      ms.jvp(layer, x, x)


class TestRefusedWhenItRuns:
  @pytest.mark.parametrize('bad', ['twice', 'range', 'capacity', 'nan', '-inf'])
  def test_with_the_words_of_the_runtime(self, bad):
    # Given.
    config = CONFIG
    inputs, dy = case()
    ids = inputs['topk_ids']
    if bad == 'twice':
      ids[1, 3] = 2
    elif bad == 'range':
      ids[0, 4, 1] = CONFIG.num_experts
    elif bad == 'capacity':
      config = testing.with_capacity(CONFIG, 40)
    else:
      inputs['w_gate_up'][1, 0, 2, 3] = float(bad)
    with pytest.raises(ValueError) as want:
      image = testing.compile_layer(config, F32, row_block=8)
      runtime.launch(image, inputs)
    # When, then.
    cell, given = cell_of(config, scan=True), tensors_of(inputs, dy)[:-1]
    said = refused(lambda: cell(*given))
    assert layer_call.launch_error(said) == str(want.value)

  def test_when_it_is_compiled(self):
    inputs, _ = case()
    inputs['x'][1, 20, 16] = np.inf
    given = map(ms.Tensor, inputs.values())
    call = ms.jit(cell_of(scan=True))
    assert 'x: expected finite values, got inf at (1, 20, 16)' in refused(
      lambda: call(*given)
    )

  def test_dy_that_is_not_finite(self):
    inputs, dy = case()
    dy[0, 1, 2] = np.nan
    given = tensors_of(inputs, dy)
    run = lambda: _pull(cell_of(scan=True))(*given)[0]
    assert 'dy: expected finite values, got nan at (0, 1, 2)' in refused(run)

  def test_leaves_no_numbers_and_the_next_call_is_right(self):
    # Given: an error may be told after results were read.
    inputs, dy = case()
    cell = cell_of(scan=True)
    bad = inputs | dict(x=np.full_like(inputs['x'], np.inf))
    y = cell(*tensors_of(bad, dy)[:-1])
    # When.
    refused(lambda: y)
    # Then.
    assert np.isnan(y.asnumpy()).all()
    got = named(*layer_and_grads(cell)(*tensors_of(inputs, dy)))
    assert not testing.differing(got, launched(inputs, dy))

  def test_deadlock_is_told_as_the_runtime_tells_it(self):
    # Given: an image in which one task forgets to signal.
    config = config_testing.sized(r=2, t=5, e=4, k=2, d=8, f=12)
    inputs, dy = case(config=config)
    image = testing.compile_layer(config, F32, row_block=8)
    spoilt = testing.without_signals(image, 0)
    with pytest.raises(runtime.WaitError) as want:
      runtime.launch(spoilt, inputs)
    # When, then.
    with mock.patch.object(compiler, 'compile_forward') as compiled:
      compiled.return_value.image = spoilt
      cell = cell_of(config, options=flow_lib.Options(row_block=8))
    told = refused(lambda: cell(*tensors_of(inputs, dy)[:-1]))
    assert str(want.value) in told
    assert 'waits for event' in told

  @staticmethod
  def refusal(head, *operands):
    """Returns the words that a call with one result is refused with."""
    operator = ops.Custom(mindspore_layer.CPU_OPERATOR, (1,), ms.float32, 'aot')
    return refused(lambda: operator(head, *map(ms.Tensor, operands)))

  def test_image_that_nobody_registered(self):
    nobody = layer_call.Part('a' * 64, (), ())
    head = mindspore_layer.call_tensor(nobody, None, 1.0)
    message = self.refusal(head)
    assert 'image: expected one that this process compiled' in message
    assert f'got {"a" * 64}' in message

  def test_graph_that_is_not_the_image_s(self):
    inputs, _ = case()
    image = mindspore_layer.register(testing.compile_layer(CONFIG, F32))
    image = layer_call.whole(image)
    head = mindspore_layer.call_tensor(image, None, 1.0)
    arrays = [inputs[name] for name in image.inputs]
    short = [arrays[0][:1], *arrays[1:]]
    for operands, message in (
      ((head[:9], *arrays[:1]), 'operand 0: expected 104 bytes, got 72'),
      ((head, *arrays[:1]), 'operands: expected 5, got 2'),
      ((head, *arrays), 'results: expected 9, got 1'),
      ((head, *short), 'topk_ids: expected 336 bytes, got 168'),
    ):
      assert message in self.refusal(*operands)

  @pytest.mark.parametrize('deadline', [0.0, -1.0, 1e300, np.nan])
  def test_deadline_that_no_clock_counts(self, deadline):
    inputs, _ = case()
    image = mindspore_layer.register(testing.compile_layer(CONFIG, F32))
    image = layer_call.whole(image)
    head = mindspore_layer.call_tensor(image, None, deadline)
    message = self.refusal(head, *(inputs[name] for name in image.inputs))
    assert 'deadline_s: expected seconds in (0, 1e9], got ' in message


def test_what_no_launch_said_is_not_taken_for_it():
  assert layer_call.launch_error('Error message is x') is None
  assert layer_call.launch_error("For 'Custom', something") is None


class TestDevice:
  def test_none_is_the_one_that_was_set(self):
    assert cell_of().launch.func == mindspore_layer.CPU_OPERATOR

  def test_ascend_without_one_is_refused(self):
    with pytest.raises(ValueError, match="^device: expected 'cpu', got 'asc"):
      cell_of(device='ascend')

  def test_others_are_refused(self):
    with pytest.raises(ValueError, match=r"^device: expected one of .* 'gpu'"):
      cell_of(device='gpu')


def test_without_mindspore_the_extra_is_named():
  name = 'hpmoe.backend_ascend.frontends.mindspore_layer'
  without = {k: v for k, v in sys.modules.items() if k != name}
  with (
    mock.patch.dict(sys.modules, without | {'mindspore': None}, clear=True),
    pytest.raises(ImportError, match=r"pip install 'hyperparallel-moe\[minds"),
  ):
    __import__(name)
