"""What holds of every front end: the runtime's bits and its refusals."""

from collections.abc import Callable
import dataclasses
from unittest import mock

import numpy as np
import pytest

from hpmoe.backend_ascend.compiler import compiler
from hpmoe.backend_ascend.compiler.orders import schedule_file
from hpmoe.backend_ascend.frontends import layer_call
from hpmoe.backend_ascend.host.launch import runtime
from hpmoe.backend_ascend.host.launch import runtime_testing as testing
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import storage as storage_lib
from hpmoe.reference.contract import tensors

# Two ranks, rows that are no multiple of a block, a column left over.
CONFIG = config_testing.make_config(r=2, t=21, e=4, k=2, d=17, f=13)
OPTIONS = granularity.Options(row_block=8, col_block=16, num_aic=2, num_aiv=3)
POLICIES = {
  f'{storage}-{placement}': precision.PrecisionPolicy(
    storage, placement=placement
  )
  for storage in storage_lib.KERNEL_FORMATS
  for placement in precision.LAUNCHED_PLACEMENTS
}
POLICIES['float16-combine'] = precision.PrecisionPolicy('float16')
F32 = POLICIES['float32-combine']
GRADS = ('dx', 'd_topk_weights', 'd_w_gate_up', 'd_w_down')


def run_both_passes(
  inputs, dy, policy=F32, config=CONFIG, launch=runtime.launch
):
  """Returns y and the gradients that the runtime computes, by name."""
  options = dict(row_block=8, col_block=16, num_aic=2, num_aiv=3)
  out = launch(testing.compile_layer(config, policy, **options), inputs)
  unread = ['x'] + ['returned'] * (policy.placement in tensors.EARLY)
  saved_names = ('expert_in', 'gate_up', 'activation', 'returned')
  grad_inputs = inputs | {n: out[n] for n in saved_names} | dict(dy=dy)
  grads = launch(
    testing.compile_grad(config, policy, **options),
    {n: a for n, a in grad_inputs.items() if n not in unread},
  )
  return {name: (out | grads)[name] for name in ('y', *GRADS)}


def case(policy=F32, routing='uniform', config=CONFIG):
  """Returns the five inputs by name, and dy."""
  other_inputs = testing.make_inputs(config, policy, name='dy')
  return testing.make_inputs(config, policy, routing), other_inputs['x']


def name_outputs(outputs):
  values = map(np.asarray, outputs)
  return dict(zip(('y', *GRADS), values, strict=True))


def scheduled(storage, options) -> schedule_file.Schedule:
  return schedule_file.Schedule(CONFIG, storage, F32.placement, options)


def compiled():
  """Returns a context that counts forward compilations."""
  return mock.patch.object(
    compiler, 'compile_forward', side_effect=compiler.compile_forward
  )


class FrontEndTests:
  """What holds of every front end; a test class of each derives from it.

  `calls` are its ways to run the layer and its gradient, functions of (inputs,
  dy) to arrays by name, for a config, a policy and options; `refused` the words
  of an error at run time, `register` its keeping of an image, `raw` a call of
  its operator without the checks of Python, `nan` an array of NaN.
  """

  calls: Callable[..., list]
  error_text: Callable[..., str]
  register: Callable[..., layer_call.Registered]
  raw: Callable[..., str]
  nan: Callable

  def call(self, inputs, dy, config=CONFIG, policy=F32, **options):
    return self.calls(config, policy, **options)[0](inputs, dy)

  @pytest.mark.parametrize('policy', POLICIES.values(), ids=POLICIES)
  @pytest.mark.few(3)
  def test_bits_of_the_runtime(self, policy):
    inputs, dy = case(policy)
    want = run_both_passes(inputs, dy, policy)
    assert all(np.any(array != 0) for array in want.values())
    for call in self.calls(policy=policy):
      assert not testing.differing(call(inputs, dy), want)

  def test_bits_of_subnormal_numbers(self):
    # Given: a framework's threads flush them to zero, the runtime does not.
    inputs, dy = case()
    small = inputs | dict(w_down=inputs['w_down'] * np.float32(1e-38))
    want = run_both_passes(small, dy)
    tiny = np.finfo(np.float32).tiny
    assert ((want['y'] != 0) & (abs(want['y']) < tiny)).any()
    for call in self.calls():
      assert not testing.differing(call(small, dy), want)

  def test_bits_of_rows_that_no_token_fills(self):
    # Given: memory that held NaN; what a forward launch saves is checked for
    # it by the backward one, all rows of it.
    inputs, dy = case()
    want, (*_, call) = run_both_passes(inputs, dy), self.calls()
    for _ in range(5):
      shapes = (s.dims(**CONFIG.dims()) for s in tensors.SPECS.values())
      memory = [self.nan(shape) for shape in shapes]
      del memory
      assert not testing.differing(call(inputs, dy), want)

  def test_a_schedule_decides_the_image(self, tmp_path):
    # Given a schedule in a file, when the layer runs by it, then the bits are
    # those of any other schedule, by an image of its own.
    path, options = tmp_path / 'layer.schedule', OPTIONS
    options = dataclasses.replace(options, row_block=4)
    schedule_file.save(path, scheduled(F32.storage, options))
    inputs, dy = case()
    with compiled() as compile_mock:
      actual = self.call(inputs, dy, options=None, schedule=path)
    assert not testing.differing(actual, run_both_passes(inputs, dy))
    assert compile_mock.call_args.args[2].row_block == 4

  def test_images_are_compiled_once(self):
    config = config_testing.make_config(r=1, t=3, e=2, k=1, d=4, f=4)
    inputs, dy = case(config=config)
    with compiled() as compile_mock:
      for call in (*self.calls(config), *self.calls(config, threads=1)):
        call(inputs, dy)
    assert compile_mock.call_count == 1

  @pytest.mark.parametrize('name', tensors.INPUTS)
  def test_a_wrong_shape_or_dtype_is_named(self, name):
    inputs, dy = case()
    for call in self.calls():
      wrong = inputs | {name: inputs[name][:, :1]}
      with pytest.raises(ValueError, match=f'^{name}: expected shape'):
        call(wrong, dy)
    wrong = inputs | {name: inputs[name].astype(np.float16)}
    with pytest.raises(ValueError, match=f'^{name}: expected dtype .*float16'):
      self.call(wrong, dy)

  @pytest.mark.parametrize(
    'options, message',
    [
      (dict(threads=0), 'threads: expected 1 to 4096, got 0'),
      (dict(deadline_s=0.0), 'deadline_s: expected'),
      (dict(deadline_s=float('nan')), 'deadline_s: expected'),
      *(
        ({name: {'num_tokens': 3}}, f'^{name}: expected a .*, got {{')
        for name in ('config', 'policy', 'options')
      ),
      (
        dict(schedule=scheduled(F32.storage, OPTIONS)),
        'options: expected none',
      ),
      (
        dict(options=None, schedule=scheduled('float16', OPTIONS)),
        'schedule: expected one of this',
      ),
    ],
    ids=str,
  )
  def test_what_does_not_fit_is_refused(self, options, message):
    with pytest.raises(ValueError, match=message):
      self.call(*case(), **options)

  @pytest.mark.parametrize('bad', ['twice', 'range', 'capacity'])
  def test_bad_values_are_refused_with_the_words_of_the_runtime(self, bad):
    config, (inputs, dy) = CONFIG, case()
    ids = inputs['topk_ids']
    if bad == 'twice':
      ids[1, 3] = 2
    elif bad == 'range':
      ids[0, 4, 1] = CONFIG.num_experts
    else:
      config = testing.with_capacity(CONFIG, 40)
    with pytest.raises(ValueError) as want:
      image = testing.compile_layer(config, F32, row_block=8)
      runtime.launch(image, inputs)
    for call in self.calls(config, scan=True):
      message = self.error_text(lambda call=call: call(inputs, dy))
      assert str(want.value) in message

  @pytest.mark.parametrize(
    'policy, name, index, scan, bad',
    [
      (F32, 'topk_weights', (1, 2, 0), False, 'inf'),
      (POLICIES['bfloat16-combine'], 'x', (1, 20, 16), True, '-inf'),
      (F32, 'w_gate_up', (1, 0, 2, 3), True, 'nan'),
      (F32, 'dy', (0, 1, 2), True, 'inf'),
    ],
  )
  def test_values_that_are_not_finite_are_refused(
    self, policy, name, index, scan, bad
  ):
    inputs, dy = case(policy)
    (inputs | dict(dy=dy))[name][index] = float(bad)
    for call in self.calls(policy=policy, scan=scan):
      message = self.error_text(lambda call=call: call(inputs, dy))
      assert f'{name}: expected finite values, got {bad} at {index}' in message

  def test_a_deadlock_is_told_as_the_runtime_tells_it(self):
    # Given: an image in which one task forgets to signal.
    config = config_testing.make_config(r=2, t=5, e=4, k=2, d=8, f=10)
    inputs, dy = case(routing='one_expert_first', config=config)
    image = testing.compile_layer(config, F32, row_block=8)
    spoilt = testing.without_signals(image, 0)
    with pytest.raises(runtime.WaitError) as want:
      runtime.launch(spoilt, inputs)
    options = granularity.Options(row_block=8)
    with mock.patch.object(compiler, 'compile_forward') as compile_mock:
      compile_mock.return_value.image = spoilt
      run = lambda: self.call(inputs, dy, config, options=options)
      message = self.error_text(run)
    assert str(want.value) in message and 'waits for event' in message

  def test_a_corrupt_image_is_refused(self):
    image = bytearray(testing.compile_layer(CONFIG, F32))
    image[len(image) // 2] ^= 1
    with pytest.raises(ValueError, match='crc32'):
      self.register(image)

  def test_an_image_that_nobody_registered_is_refused(self):
    message = self.raw(layer_call.PartLaunch('a' * 64, (), ()))
    assert 'image: expected one that this process compiled' in message
    assert '`prepare`' in message and f'got {"a" * 64}' in message

  def test_a_graph_that_is_not_the_image_s_is_refused(self):
    inputs, _ = case()
    image = layer_call.whole(self.register(testing.compile_layer(CONFIG, F32)))
    arrays = [inputs[name] for name in image.inputs]
    for operands, expected in (
      (arrays[:1], 'operands: expected 5, got '),
      (arrays, 'results: expected 9, got 1'),
      ([arrays[0][:1], *arrays[1:]], 'topk_ids: expected 336 bytes, got 168'),
    ):
      assert expected in self.raw(image, *operands)
    for deadline in (0.0, -1.0, 1e300, np.nan):
      message = self.raw(image, *arrays, deadline_s=deadline)
      assert 'deadline_s: expected seconds in (0, 1e9], got ' in message
