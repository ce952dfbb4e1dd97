"""The host runtime equals the page-long interpreter bit for bit."""

import numpy as np
import pytest

from hpmoe.backend_ascend.compiler import interpreter
from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.host.checks import modes
from hpmoe.backend_ascend.host.launch import runtime
from hpmoe.backend_ascend.host.launch import runtime_testing as testing
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors

# No tile divides these layers, so that tiles, row blocks and slices are cut.
TILES = dict(row_block=4, col_block=6, put_rows=3, num_aic=2, num_aiv=3)


def build_case(
  layer='two_ranks', routing='uniform', placement='combine', **options
):
  """Returns an image, and inputs for which every order of sums is exact."""
  config = testing.LAYERS[layer]
  policy = precision.PrecisionPolicy(
    options.pop('storage', 'float32'),
    placement=placement,
    activation='absolute',
  )
  image = testing.compile_layer(config, policy, **(TILES | options))
  return image, testing.make_inputs(config, policy, routing, exact=True)


def assert_same_bits(actual: dict, expected: dict):
  assert set(expected) == set(tensors.STAGES)
  assert testing.differing(actual, expected) == []


@pytest.mark.parametrize('routing', testing.ROUTINGS)
@pytest.mark.parametrize('layer', testing.LAYERS)
@pytest.mark.few(10)
def test_runtime_equals_interpreter(layer, routing):
  # Given a layer of 1, 2 or 4 ranks, then all stage tensors are equal.
  image, inputs = build_case(layer, routing)
  expected = interpreter.interpret(image, inputs)
  if layer != 'one_of_everything':
    assert all(np.any(expected[name]) for name in expected)
  assert_same_bits(runtime.launch(image, inputs, threads=2), expected)


@pytest.mark.parametrize('grain', granularity.EVENT_GRAINS)
@pytest.mark.parametrize('storage', layout.DTYPES)
@pytest.mark.parametrize('placement', precision.LAUNCHED_PLACEMENTS)
@pytest.mark.few(6)
def test_policies_and_event_grains(placement, storage, grain):
  image, inputs = build_case(
    placement=placement, storage=storage, event_grain=grain
  )
  expected = interpreter.interpret(image, inputs)
  assert_same_bits(runtime.launch(image, inputs), expected)


@pytest.mark.parametrize('seed', range(3))
@pytest.mark.parametrize('layer', ['one_rank', 'two_ranks', 'four_ranks'])
@pytest.mark.few(2)
def test_shuffled_order(layer, seed):
  # Given workers that step in a drawn order, here and in the runtime, then
  # bits are those of workers in turn.
  image, inputs = build_case(layer)
  expected = interpreter.interpret(image, inputs)
  shuffled = np.random.default_rng(seed)
  assert_same_bits(interpreter.interpret(image, inputs, shuffled), expected)
  permuted = modes.Modes(permute=seed, late_puts=True)
  shuffled_run = runtime.run(image, inputs, threads=1, modes=permuted)
  assert_same_bits(shuffled_run.outputs, expected)


def test_every_event_ends_at_its_threshold():
  image, inputs = build_case('four_ranks', 'empty_experts')
  launch = interpreter.Interpreter(image, inputs)
  launch.run()
  assert (launch.counters == launch.tables['events']['threshold']).all()


def test_swiglu_on_real_data():
  policy = precision.PrecisionPolicy()
  config = testing.LAYERS['two_ranks']
  image = testing.compile_layer(config, policy, **TILES)
  inputs = testing.make_inputs(config, policy)
  expected = runtime.launch(image, inputs)
  actual = interpreter.interpret(image, inputs)
  np.testing.assert_allclose(actual['y'], expected['y'], rtol=0, atol=1e-5)


def test_a_lost_signal_is_a_deadlock():
  image, inputs = build_case()
  kinds = image.tables['tasks']['kind']
  task = int(np.flatnonzero(kinds == layout.Kind.DISPATCH)[0])
  broken_image = testing.without_signals(image, task)
  launch = interpreter.Interpreter(image, inputs)
  launch.tables = image_lib.tables(broken_image)
  with pytest.raises(RuntimeError, match='no task is ready'):
    launch.run()


@pytest.mark.parametrize('pass_name', ['backward', 'relay'])
def test_other_passes_are_refused(pass_name):
  config = testing.LAYERS['two_ranks']
  if pass_name == 'backward':
    image = testing.compile_grad(config)
  else:
    image = testing.compile_layer(config, relay=True)
  with pytest.raises(ValueError, match='image: expected the forward pass'):
    interpreter.interpret(image, {})
