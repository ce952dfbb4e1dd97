"""Tests of jax_layer: the runtime's bits and its refusals, through XLA."""

from concurrent import futures
import dataclasses
import functools
import hashlib
import os
import subprocess
import sys
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hpmoe.backend_ascend import compiler
from hpmoe.backend_ascend.frontends import jax_layer
from hpmoe.backend_ascend.frontends import layer_call
from hpmoe.backend_ascend.frontends import layer_testing
from hpmoe.backend_ascend.kernels.host.launch import runtime
from hpmoe.backend_ascend.kernels.host.launch import runtime_testing as testing
from hpmoe.backend_ascend.schedule import schedule_file
from hpmoe.backend_ascend.taskflow import flow as flow_lib
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import tensors

CONFIG, OPTIONS = layer_testing.CONFIG, layer_testing.OPTIONS
POLICIES, F32 = layer_testing.POLICIES, layer_testing.F32
GRADS = layer_testing.GRADS
case, launched = layer_testing.case, layer_testing.launched
named = layer_testing.named


def layer_of(config=CONFIG, policy=F32, **changes):
  """Returns the layer as a function of its five arrays."""
  changes = dict(options=OPTIONS) | changes
  return functools.partial(jax_layer.layer, config, policy, **changes)


def layer_and_grads(layer):
  """Returns a function of (dy, *arrays) to (y, *GRADS)."""

  def run(dy, x, ids, *floats):
    y, pull = jax.vjp(lambda x, *f: layer(x, ids, *f), x, *floats)
    return y, *pull(dy)

  return run


class TestBits:
  @pytest.mark.parametrize('policy', POLICIES.values(), ids=POLICIES)
  def test_of_the_runtime_eagerly_and_under_jit(self, policy):
    # Given.
    inputs, dy = case(policy)
    want = launched(inputs, dy, policy)
    run = layer_and_grads(layer_of(policy=policy))
    for call in (run, jax.jit(run)):
      # When.
      got = named(call(dy, *inputs.values()))
      # Then.
      assert not testing.differing(got, want)

  @pytest.mark.parametrize('routing', testing.ROUTINGS)
  def test_under_awkward_routings(self, routing):
    config = config_testing.sized(r=2, t=9, e=4, k=2, d=8, f=6)
    inputs, dy = case(routing=routing, config=config)
    run = jax.jit(layer_and_grads(layer_of(config)))
    got = named(run(dy, *inputs.values()))
    assert not testing.differing(got, launched(inputs, dy, config=config))

  def test_do_not_depend_on_threads(self):
    inputs, dy = case()
    one, four = (
      named(layer_and_grads(layer_of(threads=n))(dy, *inputs.values()))
      for n in (1, 4)
    )
    assert not testing.differing(one, four)

  def test_of_subnormal_numbers(self):
    # Given: XLA's threads flush them to zero, the runtime does not.
    inputs, dy = case()
    small = inputs | dict(w_down=inputs['w_down'] * np.float32(1e-38))
    want = launched(small, dy)
    tiny = np.finfo(np.float32).tiny
    assert ((want['y'] != 0) & (abs(want['y']) < tiny)).any()
    # When, then.
    got = named(jax.jit(layer_and_grads(layer_of()))(dy, *small.values()))
    assert not testing.differing(got, want)

  def test_of_a_launch_that_xla_calls_back(self):
    # Given: a callback runs on a thread of XLA's.
    inputs, dy = case()
    small = inputs | dict(w_down=inputs['w_down'] * np.float32(1e-38))
    image = testing.compile_layer(CONFIG, F32, row_block=8)
    want = runtime.launch(image, small)['y']
    assert testing.differing(dict(y=want), dict(y=want * 0))
    # When.
    back = jax.jit(
      lambda *arrays: jax.pure_callback(
        lambda *arrays: runtime.launch(
          image, dict(zip(small, map(np.asarray, arrays)))
        )['y'],
        jax.ShapeDtypeStruct(dy.shape, dy.dtype),
        *arrays,
      )
    )
    got = np.asarray(back(*small.values()))
    # Then.
    assert not testing.differing(dict(y=got), dict(y=want))

  def test_of_rows_that_no_token_fills(self):
    # Given: memory that held NaN; what a forward launch saves is checked for
    # it by the backward one, all rows of it.
    inputs, dy = case()
    want = launched(inputs, dy)
    run = jax.jit(layer_and_grads(layer_of()))
    shapes = [s.dims(**CONFIG.dims()) for s in tensors.SPECS.values()]
    for _ in range(5):
      used = [jnp.full(shape, jnp.nan, jnp.float32) for shape in shapes]
      jax.block_until_ready(used)
      del used
      # When, then.
      got = named(run(dy, *inputs.values()))
      assert not testing.differing(got, want)

  def test_value_and_grad_of_a_loss(self):
    # dy is two: every gradient is twice that of ones, exactly.
    inputs, _ = case()
    ones = np.ones_like(inputs['x'])
    want = launched(inputs, ones)

    def loss(x, ids, *floats):
      return 2 * layer_of()(x, ids, *floats).sum()

    grad = jax.value_and_grad(loss, (0, 2, 3, 4))
    for call in (grad, jax.jit(grad)):
      value, grads = call(*inputs.values())
      for name, got in zip(GRADS, grads, strict=True):
        np.testing.assert_array_equal(got, 2 * want[name])
      np.testing.assert_allclose(value, 2 * want['y'].sum(), rtol=1e-4)

  def test_inside_scan(self):
    # Given: three layers, one after the other, in one loop.
    inputs, _ = case()
    x, *rest = inputs.values()

    def scanned(x):
      return jax.lax.scan(
        lambda x, _: (layer_of()(x, *rest), None), x, length=3
      )[0]

    want = [dict(inputs)]
    for _ in range(3):
      y = launched(want[-1], x)['y']
      want.append(want[-1] | dict(x=y))
    # When, then: forward, and the gradient through all three.
    assert np.asarray(scanned(x)).tobytes() == y.tobytes()
    dy = np.ones_like(x)
    for given in want[2::-1]:
      dy = launched(given, dy)['dx']
    got = jax.jit(jax.grad(lambda x: scanned(x).sum()))(x)
    assert np.asarray(got).tobytes() == dy.tobytes()

  def test_with_donated_and_repeated_arguments(self):
    # Given: y may take x's buffer, and dy is x itself.
    inputs, _ = case()
    x, *rest = inputs.values()
    want = launched(inputs, x)

    @functools.partial(jax.jit, donate_argnums=0)
    def step(x):
      return layer_and_grads(layer_of())(x, x, *rest)

    # When, then.
    donated = jnp.array(x)
    assert not testing.differing(named(step(donated)), want)
    assert donated.is_deleted()

  def test_from_several_threads_at_once(self):
    inputs, dy = case()
    want = launched(inputs, dy)
    run = jax.jit(layer_and_grads(layer_of()))
    with futures.ThreadPoolExecutor(4) as pool:
      jobs = [pool.submit(run, dy, *inputs.values()) for _ in range(8)]
    for job in jobs:
      assert not testing.differing(named(job.result()), want)


class TestSchedule:
  schedule = schedule_file.Schedule(
    CONFIG,
    F32.storage,
    F32.placement,
    dataclasses.replace(OPTIONS, row_block=4),
  )

  def test_decides_the_image_of_a_layer_from_a_file(self, tmp_path):
    # Given a schedule in a file, when the layer runs by it, then the bits are
    # those of any other schedule, by an image of its own.
    path = tmp_path / 'layer.schedule'
    schedule_file.save(path, self.schedule)
    inputs, dy = case()
    with mock.patch.object(
      layer_call.compiler,
      'compile_forward',
      wraps=layer_call.compiler.compile_forward,
    ) as compiled:
      run = layer_and_grads(layer_of(options=None, schedule=path))
      got = named(run(dy, *inputs.values()))
    assert not testing.differing(got, launched(inputs, dy, F32))
    assert compiled.call_args.args[2].row_block == 4

  def test_of_another_layer_is_refused(self):
    other = dataclasses.replace(self.schedule, storage='bfloat16')
    inputs, _ = case()
    run = layer_of(options=None, schedule=other)
    with pytest.raises(ValueError, match='schedule: expected one of this'):
      run(*inputs.values())

  def test_beside_options_is_refused(self):
    inputs, _ = case()
    with pytest.raises(ValueError, match='options: expected none beside'):
      layer_of(schedule=self.schedule)(*inputs.values())


def test_images_are_compiled_once():
  config = config_testing.sized(r=1, t=3, e=2, k=1, d=4, f=4)
  inputs, dy = case(config=config)
  with mock.patch.object(
    compiler, 'compile_forward', side_effect=compiler.compile_forward
  ) as compiled:
    for call in (layer_of(config), jax.jit(layer_of(config))):
      call(*inputs.values())
    layer_and_grads(layer_of(config))(dy, *inputs.values())
  assert compiled.call_count == 1


class TestTransformationsRefused:
  @pytest.mark.parametrize('wrap', [lambda f: f, jax.jit, jax.grad])
  def test_vmap(self, wrap):
    inputs, _ = case()
    x, *rest = inputs.values()
    call = wrap(lambda x: layer_of()(x, *rest).sum())
    with pytest.raises(NotImplementedError, match='axis of 3.*num_tokens'):
      jax.vmap(call)(jnp.stack([x] * 3))

  def test_gradient_of_vmap(self):
    inputs, _ = case()
    x, *rest = inputs.values()
    mapped = jax.vmap(lambda x: layer_of()(x, *rest))
    with pytest.raises(NotImplementedError, match='vmap'):
      jax.grad(lambda x: mapped(x).sum())(jnp.stack([x] * 3))

  def test_forward_mode(self):
    inputs, _ = case()
    x, *rest = inputs.values()
    with pytest.raises(TypeError, match='forward-mode'):
      jax.jvp(lambda x: layer_of()(x, *rest), (x,), (x,))

  def test_gradient_of_the_gradient(self):
    inputs, _ = case()
    x, *rest = inputs.values()
    grad = jax.grad(lambda x: layer_of()(x, *rest).sum())
    with pytest.raises(ValueError, match='cannot be differentiated'):
      jax.grad(lambda x: grad(x).sum())(x)


class TestArgumentsRefused:
  @pytest.mark.parametrize('name', tensors.INPUTS)
  @pytest.mark.parametrize('wrap', [lambda f: f, jax.jit])
  def test_shape_is_named(self, name, wrap):
    inputs, _ = case()
    inputs[name] = inputs[name][:, :1]
    with pytest.raises(ValueError, match=f'^{name}: expected shape'):
      wrap(layer_of())(*inputs.values())

  @pytest.mark.parametrize('name', tensors.INPUTS)
  def test_dtype_is_named(self, name):
    inputs, _ = case()
    inputs[name] = inputs[name].astype(np.float16)
    with pytest.raises(
      ValueError, match=f'^{name}: expected dtype .*, got float16'
    ):
      layer_of()(*inputs.values())

  def test_what_is_no_array_is_named(self):
    inputs, _ = case()
    inputs['w_down'] = inputs['w_down'].tolist()
    with pytest.raises(ValueError, match='w_down: expected an array, got list'):
      layer_of()(*inputs.values())

  def test_options(self):
    arrays = case()[0].values()
    with pytest.raises(ValueError, match='threads: expected 1 to 4096, got 0'):
      layer_of(threads=0)(*arrays)
    for deadline in (0.0, float('nan')):
      with pytest.raises(ValueError, match='deadline_s: expected'):
        layer_of(deadline_s=deadline)(*arrays)

  @pytest.mark.parametrize('name', ['config', 'policy', 'options'])
  def test_what_is_no_config_policy_or_options_is_named(self, name):
    arrays = case()[0].values()
    with pytest.raises(ValueError, match=f'^{name}: expected a .*, got {{'):
      layer_of(**{name: {'num_tokens': 3}})(*arrays)

  def test_float64_policy(self):
    golden = F32.golden()
    with pytest.raises(ValueError, match='storage|float64'):
      inputs, _ = case()
      layer_of(policy=golden)(
        *(
          a.astype(np.float64) if n in ('x', 'w_gate_up', 'w_down') else a
          for n, a in inputs.items()
        )
      )


# One or the other, with the same text, by the path that a call takes in jaxlib.
RAISED = (jax.errors.JaxRuntimeError, ValueError)


class TestRefusedWhenItRuns:
  @pytest.mark.parametrize('wrap', [lambda f: f, jax.jit])
  @pytest.mark.parametrize('bad', ['twice', 'range', 'capacity', 'nan', '-inf'])
  def test_with_the_words_of_the_runtime(self, bad, wrap):
    # Given.
    config = CONFIG
    inputs, _ = case()
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
    with pytest.raises(RAISED) as got:
      layer = layer_of(config, scan=True)
      jax.block_until_ready(wrap(layer)(*inputs.values()))
    assert str(want.value) in str(got.value)

  def test_weights_of_the_router_always(self):
    inputs, _ = case()
    inputs['topk_weights'][1, 2, 0] = np.nan
    with pytest.raises(RAISED, match=r'topk_weights: .* nan at \(1, 2, 0\)'):
      jax.block_until_ready(layer_of()(*inputs.values()))

  def test_bfloat16_that_is_not_finite(self):
    policy = POLICIES['bfloat16-combine']
    inputs, _ = case(policy)
    inputs['x'][1, 20, 16] = np.inf
    with pytest.raises(RAISED, match=r'x: .* got inf at \(1, 20, 16\)'):
      layer = layer_of(policy=policy, scan=True)
      jax.block_until_ready(layer(*inputs.values()))

  def test_dy_that_is_not_finite(self):
    inputs, dy = case()
    dy[0, 1, 2] = np.nan
    run = layer_and_grads(layer_of(scan=True))
    with pytest.raises(RAISED, match=r'dy: .* got nan at \(0, 1, 2\)'):
      jax.block_until_ready(run(dy, *inputs.values()))

  def test_deadlock_is_told_as_the_runtime_tells_it(self):
    # Given: an image in which one task forgets to signal.
    config = config_testing.sized(r=2, t=5, e=4, k=2, d=8, f=8)
    inputs, _ = case(config=config)
    image = testing.compile_layer(config, F32, row_block=8)
    spoilt = testing.without_signals(image, 0)
    with pytest.raises(runtime.WaitError) as want:
      runtime.launch(spoilt, inputs)
    # When, then.
    with mock.patch.object(compiler, 'compile_forward') as compiled:
      compiled.return_value.image = spoilt
      with pytest.raises(RAISED) as got:
        layer = layer_of(config, options=flow_lib.Options(row_block=8))
        jax.block_until_ready(layer(*inputs.values()))
    assert str(want.value) in str(got.value)
    assert 'waits for event' in str(got.value)

  def test_deadline(self):
    # Given: idle threads, and a deadline far below the length of a task.
    config = config_testing.sized(r=1, t=512, e=1, k=1, d=512, f=512)
    options = flow_lib.Options(
      row_block=512, col_block=1024, num_aic=1, num_aiv=2
    )
    inputs, _ = case(config=config)
    layer = layer_of(config, options=options, threads=3, deadline_s=1e-6)
    with pytest.raises(RAISED, match='deadline: '):
      jax.block_until_ready(layer(*inputs.values()))

  @staticmethod
  def refusal(digest, *operands, deadline_s=1.0):
    """Returns the words that a call with one result is refused with."""
    call = jax.ffi.ffi_call(
      'hpmoe_launch', jax.ShapeDtypeStruct((1,), np.float32)
    )
    attributes = dict(threads=np.int32(0), deadline_s=np.float64(deadline_s))
    attributes |= dict(given=np.int64(0), asked=np.int64(0), scan=False)
    with pytest.raises(RAISED) as error:
      jax.block_until_ready(call(*operands, image=digest, **attributes))
    return str(error.value)

  def test_image_that_nobody_registered(self):
    message = self.refusal('abc')
    assert 'image: expected one that this process compiled' in message
    assert '`prepare`' in message and 'got abc' in message

  def test_graph_that_is_not_the_image_s(self):
    inputs, _ = case()
    image = jax_layer.register(testing.compile_layer(CONFIG, F32))
    arrays = [inputs[name] for name in image.inputs]
    short = [arrays[0][:1], *arrays[1:]]
    for operands, message in (
      (arrays[:1], 'operands: expected 5, got 1'),
      (arrays, 'results: expected 9, got 1'),
      (short, 'topk_ids: expected 336 bytes, got 168'),
    ):
      assert message in self.refusal(image.digest, *operands)

  @pytest.mark.parametrize('deadline', [0, -1, 1e300, np.inf, np.nan])
  def test_deadline_that_no_clock_counts(self, deadline):
    inputs, _ = case()
    image = jax_layer.register(testing.compile_layer(CONFIG, F32))
    arrays = [inputs[name] for name in image.inputs]
    message = self.refusal(image.digest, *arrays, deadline_s=deadline)
    assert 'deadline_s: expected seconds in (0, 1e9], got ' in message


def test_corrupt_image_is_refused():
  image = bytearray(testing.compile_layer(CONFIG, F32))
  image[len(image) // 2] ^= 1
  with pytest.raises(ValueError, match='crc32'):
    jax_layer.register(image)


class TestApiVersion:
  HEADER = '#define XLA_FFI_API_MAJOR 0\n//\n#define XLA_FFI_API_MINOR 2\n'

  @pytest.mark.parametrize('built', [(0, 0), (0, 2)])
  def test_same_or_older_extension(self, built):
    jax_layer.check_api(built, self.HEADER)

  @pytest.mark.parametrize('built', [(0, 3), (1, 0)])
  def test_extension_that_xla_would_not_call(self, built):
    with pytest.raises(ImportError, match=r'FFI 0\.2 or older, got \d\.\d'):
      jax_layer.check_api(built, self.HEADER)


CACHED = """
import hashlib
import jax, numpy as np
from hpmoe.backend_ascend.frontends import jax_layer_test as test

hits = []
jax.monitoring.register_event_listener(
    lambda event, **_: hits.append(event.endswith('/cache_hits'))
)
y = jax.jit(test.layer_of())(*test.case()[0].values())
print(sum(hits) > 0, hashlib.sha256(np.asarray(y)).hexdigest())
"""


def test_graph_of_the_compilation_cache_finds_its_image(tmp_path):
  # Given: a cached executable outlives the process whose image it names.
  caching = dict(
    JAX_COMPILATION_CACHE_DIR=str(tmp_path),
    JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS='0',
    JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES='-1',
  )

  def run():
    return subprocess.run(
      [sys.executable, '-c', CACHED],
      check=True,
      capture_output=True,
      text=True,
      env=os.environ | caching,
    ).stdout.split()

  # When.
  first, second = run(), run()
  # Then.
  y = np.asarray(layer_of()(*case()[0].values()))
  digest = hashlib.sha256(y).hexdigest()
  assert first == ['False', digest]
  assert second == ['True', digest]
