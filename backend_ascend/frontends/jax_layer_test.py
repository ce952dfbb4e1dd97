"""Tests of jax_layer: the runtime's bits and its refusals, through XLA."""

from concurrent import futures
import contextlib
import functools
import hashlib
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hpmoe.backend_ascend.frontends import jax_layer
from hpmoe.backend_ascend.frontends import layer_testing
from hpmoe.backend_ascend.host.launch import runtime_testing as testing
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import granularity

CONFIG, OPTIONS = layer_testing.CONFIG, layer_testing.OPTIONS
POLICIES, F32 = layer_testing.POLICIES, layer_testing.F32
case, run_both_passes = layer_testing.case, layer_testing.run_both_passes
name_outputs = layer_testing.name_outputs


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


# One or the other, with the same text, by the path that a call takes in jaxlib.
ERRORS = (jax.errors.JaxRuntimeError, ValueError)


class TestFrontEnd(layer_testing.FrontEndTests):
  register = staticmethod(jax_layer.register)

  def calls(self, config=CONFIG, policy=F32, **options):
    run = layer_and_grads(layer_of(config, policy, **options))
    return [
      lambda inputs, dy, run=run: name_outputs(run(dy, *inputs.values()))
      for run in (run, jax.jit(run))
    ]

  def error_text(self, run):
    with pytest.raises(ERRORS) as error:
      run()
    return str(error.value)

  def raw(self, image, *operands, deadline_s=1.0):
    call = jax.ffi.ffi_call(
      'hpmoe_launch', jax.ShapeDtypeStruct((1,), np.float32)
    )
    attributes = dict(threads=np.int32(0), deadline_s=np.float64(deadline_s))
    attributes |= dict(given=np.int64(0), asked=np.int64(0), scan=False)
    run = lambda: np.asarray(call(*operands, image=image.digest, **attributes))
    return self.error_text(run)

  def nan(self, shape):
    return jax.block_until_ready(jnp.full(shape, jnp.nan, jnp.float32))


class TestBits:
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
      y = run_both_passes(want[-1], x)['y']
      want.append(want[-1] | dict(x=y))
    # When, then: forward, and the gradient through all three.
    assert np.asarray(scanned(x)).tobytes() == y.tobytes()
    dy = np.ones_like(x)
    for layer_inputs in want[2::-1]:
      dy = run_both_passes(layer_inputs, dy)['dx']
    actual = jax.jit(jax.grad(lambda x: scanned(x).sum()))(x)
    assert np.asarray(actual).tobytes() == dy.tobytes()

  def test_with_donated_and_repeated_arguments(self):
    # Given: y may take x's buffer, and dy is x itself.
    inputs, _ = case()
    x, *rest = inputs.values()
    want = run_both_passes(inputs, x)

    @functools.partial(jax.jit, donate_argnums=0)
    def step(x):
      return layer_and_grads(layer_of())(x, x, *rest)

    # When, then.
    donated = jnp.array(x)
    assert not testing.differing(name_outputs(step(donated)), want)
    assert donated.is_deleted()

  def test_from_several_threads_at_once(self):
    inputs, dy = case()
    want = run_both_passes(inputs, dy)
    run = jax.jit(layer_and_grads(layer_of()))
    with futures.ThreadPoolExecutor(4) as pool:
      jobs = [pool.submit(run, dy, *inputs.values()) for _ in range(8)]
    for job in jobs:
      assert not testing.differing(name_outputs(job.result()), want)


class TestTransformationsRefused:
  MAPS = [
    lambda f: jax.vmap(f),
    lambda f: jax.vmap(jax.jit(f)),
    lambda f: jax.vmap(jax.grad(f)),
    lambda f: jax.grad(lambda x: jax.vmap(f)(x).sum()),
  ]

  @staticmethod
  def total_of_x():
    """Returns the layer's sum as a function of x, and x."""
    x, *rest = case()[0].values()
    return lambda x: layer_of()(x, *rest).sum(), x

  @pytest.mark.parametrize('map_', MAPS)
  def test_vmap(self, map_):
    call, x = self.total_of_x()
    with pytest.raises(NotImplementedError, match='vmap.*axis of 3.*num_token'):
      map_(call)(jnp.stack([x] * 3))

  def test_forward_mode(self):
    call, x = self.total_of_x()
    with pytest.raises(TypeError, match='forward-mode'):
      jax.jvp(call, (x,), (x,))

  def test_gradient_of_the_gradient(self):
    call, x = self.total_of_x()
    grad = jax.grad(call)
    with pytest.raises(ValueError, match='cannot be differentiated'):
      jax.grad(lambda x: grad(x).sum())(x)


class TestArgumentsRefused:
  def test_what_is_no_array_is_named(self):
    inputs, _ = case()
    inputs['w_down'] = inputs['w_down'].tolist()
    with pytest.raises(ValueError, match='w_down: expected an array, got list'):
      layer_of()(*inputs.values())

  def test_float64_policy(self):
    with pytest.raises(ValueError, match='storage'):
      jax_layer.prepare(CONFIG, F32.golden())


class TestRefusedWhenItRuns:
  def test_deadline(self):
    # Given: idle threads, and a deadline far below the length of a task.
    config = config_testing.make_config(r=1, t=512, e=1, k=1, d=512, f=512)
    options = granularity.Options(
      row_block=512, col_block=1024, num_aic=1, num_aiv=2
    )
    inputs, _ = case(config=config)
    layer = layer_of(config, options=options, threads=3, deadline_s=1e-6)
    with pytest.raises(ERRORS, match='deadline: '):
      jax.block_until_ready(layer(*inputs.values()))


@pytest.mark.parametrize(
  'supported, fits', [((0, 0), 1), ((0, 2), 1), ((0, 3), 0), ((1, 0), 0)]
)
def test_an_extension_that_xla_would_not_call_is_refused(supported, fits):
  header = '#define XLA_FFI_API_MAJOR 0\n//\n#define XLA_FFI_API_MINOR 2\n'
  error = pytest.raises(ImportError, match=r'FFI 0\.2 or older, got \d\.\d')
  with contextlib.nullcontext() if fits else error:
    jax_layer.check_api(supported, header)


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


@pytest.mark.slow
def test_graph_of_the_compilation_cache_finds_its_image(tmp_path):
  # Given: a cached executable outlives the process whose image it names.
  caching = dict(
    JAX_COMPILATION_CACHE_DIR=str(tmp_path),
    JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS='0',
    JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES='-1',
  )

  def run():
    command = [sys.executable, '-c', CACHED]
    env = os.environ | caching
    return subprocess.check_output(command, text=True, env=env).split()

  # When.
  first, second = run(), run()
  # Then.
  y = np.asarray(layer_of()(*case()[0].values()))
  digest = hashlib.sha256(y).hexdigest()
  assert first == ['False', digest]
  assert second == ['True', digest]
