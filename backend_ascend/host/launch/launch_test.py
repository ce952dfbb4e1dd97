"""A launch that only computes has the bits of one that checks."""

from concurrent import futures
import contextlib
import dataclasses
import functools
import itertools
import os
import subprocess
import sys

import numpy as np
import pytest

from hpmoe.backend_ascend import _native
from hpmoe.backend_ascend.compiler import compiler
from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.host.checks import faults
from hpmoe.backend_ascend.host.checks import modes as modes_lib
from hpmoe.backend_ascend.host.launch import runtime
from hpmoe.backend_ascend.host.launch import runtime_testing as testing
from hpmoe.backend_ascend.host.load import arrays
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import halved_testing
from hpmoe.reference.contract import poison as poison_lib
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import presets
from hpmoe.reference.contract import storage as storage_lib
from hpmoe.reference.contract import tensors

LAYERS = testing.LAYERS
# Columns of tasks: all, so that `down` makes the activation, and fewer.
COLS = (256, 8)
# What a layer that will be differentiated keeps beside x.
KEPT_NAMES = ('gate_up', 'activation', 'expert_out', 'y')
SPARED = ('expert_in', 'returned')


def policy(storage='float32', placement='combine'):
  return precision.PrecisionPolicy(storage=storage, placement=placement)


def differing(config, actual, want, ids) -> list[str]:
  """Returns names of tensors that differ in rows that a rank has."""
  local = config.experts_per_rank
  owned = np.bincount(ids.reshape(-1) // local, minlength=config.num_ranks)

  def valid(name, array):
    if tensors.SPECS[name].shape.split()[1] != 'N':
      return array.tobytes()
    return b''.join(slab[:n].tobytes() for slab, n in zip(array, owned))

  return [n for n in actual if valid(n, actual[n]) != valid(n, want[n])]


def passes(config, pol, inputs, **options):
  """Yields image, inputs and all right tensors of a pass, then of the other.

  `inputs` gain what a forward pass made, and dy.
  """
  image = testing.compile_layer(config, pol, **options)
  want = runtime.launch(image, inputs, threads=1)
  yield image, dict(inputs), want
  image = testing.compile_grad(config, pol, **options)
  inputs |= want | dict(dy=testing.make_inputs(config, pol, name='dy')['x'])
  read_arrays = {n: inputs[n] for n in arrays.INPUTS[image.direction]}
  yield image, read_arrays, runtime.launch(image, read_arrays, threads=1)


# Tensors to ask for, again and again of one loaded image; None: the finals.
REQUESTS = {
  layout.Direction.FORWARD: (
    *(('y',), KEPT_NAMES, ('returned',), ('expert_in',)),
    *(arrays.OUTPUTS[layout.Direction.FORWARD], None),
  ),
  layout.Direction.BACKWARD: (
    *(None, ('dx',), ('d_w_down',), ('d_expert_out',)),
    arrays.OUTPUTS[layout.Direction.BACKWARD],
  ),
}


class TestBothPasses:
  def check(self, config, pol, inputs, **options):
    # Given what a forward pass kept, or x and expert_out in place of some of
    # it, when a part of a pass's tensors is asked for, then they have the bits
    # of a launch that checks.
    for image, read_arrays, want in passes(config, pol, inputs, **options):
      reads = [read_arrays]
      if image.direction:
        spare = {n: inputs[n] for n in ('x', 'expert_out')} | read_arrays
        reads += [{n: a for n, a in spare.items() if n not in SPARED}]
      launch = runtime.Launch(image, threads=2)
      for read, names in itertools.product(reads, REQUESTS[image.direction]):
        actual = launch.run(read, names).outputs
        assert not differing(config, actual, want, inputs['topk_ids']), names
        assert tuple(actual) == (launch.finals if names is None else names)

  @pytest.mark.parametrize(
    'layer, routing, chain, relay, placement, storage',
    halved_testing.covering(
      *(LAYERS, ('uniform', 'empty_experts'), (None, 16), (False, True)),
      *(precision.LAUNCHED_PLACEMENTS, storage_lib.KERNEL_FORMATS),
    ),
  )
  def test_bits(self, layer, routing, chain, relay, placement, storage):
    config, pol = LAYERS[layer], policy(storage, placement)
    options = dict(row_block=16, chain_rows=chain, relay=relay)
    for cols in COLS:
      inputs = testing.make_inputs(config, pol, routing)
      self.check(config, pol, inputs, col_block=cols, **options)

  @pytest.mark.parametrize('relay', [False, True])
  @pytest.mark.parametrize('rank', [0, 7])
  def test_bits_where_seven_ranks_of_eight_have_no_row(self, rank, relay):
    config = config_testing.make_config(r=8, t=5, e=16, k=2, d=12, f=7)
    inputs = testing.make_inputs(config, policy())
    inputs['topk_ids'][...] = [2 * rank + 1, 2 * rank]
    options = dict(row_block=16, col_block=8, relay=relay)
    self.check(config, policy(), inputs, **options)


class TestHostOptions:
  @pytest.mark.parametrize('layer', LAYERS)
  def test_bits_and_whole_columns(self, layer):
    # Given tiles that suit a shape, when it is launched, then bits are those of
    # small tiles, and nothing but one tensor of rows is made for y.
    config = LAYERS[layer]
    inputs = testing.make_inputs(config, policy(), name='host')
    want = runtime.launch(
      testing.compile_layer(config, policy(), row_block=16), inputs, threads=1
    )
    options = granularity.host_options(config)
    assert options.row_block % 16 == 0
    image = compiler.compile_forward(config, policy(), options).image
    launch = runtime.Launch(image)
    rows = config.num_ranks * config.num_rows
    arena = [rows * config.d_model * 4, rows * 4, rows * 4]
    for _ in range(3):
      assert launch.run(inputs).outputs['y'].tobytes() == want['y'].tobytes()
      assert launch.arena_bytes == sum(-(-part // 64) * 64 for part in arena)

  def test_blocks_hold_twice_an_even_load_up_to_a_limit(self):
    blocks = [
      granularity.host_options(
        config_testing.make_config(r=2, t=t, e=8, k=2, d=8, f=8)
      ).row_block
      for t in (1, 64, 100, 4096)
    ]
    assert blocks == [16, 64, 112, 512]

  def test_blocks_with_rows_lie_in_all_queues(self):
    # Given experts with more row blocks than rows fill, when tasks are dealt,
    # then no two full blocks share a queue while another has none: threads
    # would wait for it.
    for experts, limit in ((8, 1), (128, 2)):
      config = config_testing.make_config(r=1, t=256, e=experts, k=2, d=8, f=8)
      flow = compiler.compile_forward(
        config, policy(), granularity.host_options(config)
      ).flow
      tasks = flow.tasks[flow.tasks['kind'] == layout.Kind.DOWN]
      assert len(set(tasks['row_begin'])) > 1
      full = tasks[tasks['row_begin'] == 0]
      assert np.bincount(full['core']).max() <= limit, experts


class TestOneAfterAnother:
  @pytest.mark.parametrize('relay', [False, True])
  @pytest.mark.parametrize('placement', precision.LAUNCHED_PLACEMENTS)
  def test_nothing_is_left_of_the_launch_before(self, placement, relay):
    # Given an image whose arena holds another launch, when tokens, their
    # weights or their experts are others, then bits are those of a launch that
    # checks.
    config, pol = LAYERS['four_ranks'], policy(placement=placement)
    first = testing.make_inputs(config, pol)
    other = testing.make_inputs(config, pol, 'empty_experts', name='other')
    image = testing.compile_layer(
      config, pol, row_block=4, col_block=8, relay=relay
    )
    launch = runtime.Launch(image, threads=1)
    for names in ((), ('x',), ('topk_weights',), ('topk_ids',), tuple(other)):
      inputs = first | {n: other[n] for n in names}
      want = runtime.launch(image, inputs, threads=1)
      actual = launch.run(inputs, ('y',)).outputs
      assert not differing(config, actual, want, inputs['topk_ids']), names


def _view(array: np.ndarray, layout_name: str) -> np.ndarray:
  """Returns memory that is no writable array as `array`, for one reason."""
  if layout_name == 'read-only':
    array.flags.writeable = False
  elif layout_name == 'strides':
    return np.repeat(array, 2, axis=-1)[..., ::2]
  elif layout_name == 'aligned':
    memory = np.empty(array.nbytes + 1, np.uint8)
    return np.ndarray(array.shape, array.dtype, memory, offset=1)
  return array


class TestRefused:
  CONFIG = LAYERS['one_rank']

  def setup_method(self):
    pol = policy()
    self.image = testing.compile_layer(self.CONFIG, pol, row_block=16)
    self.inputs = testing.make_inputs(self.CONFIG, pol)
    self.launch = runtime.Launch(self.image)

  def test_values_only_where_scanned(self):
    # Given an infinite weight, then a launch that scans refuses it.
    self.inputs['w_down'][0, 0, 0, 0] = np.inf
    self.launch.run(self.inputs)
    self.inputs['topk_weights'][0, 1, 1] = np.nan
    with pytest.raises(ValueError, match='topk_weights: .* got nan'):
      self.launch.run(self.inputs)
    self.inputs['topk_weights'][0, 1, 1] = 1
    scanning = runtime.Launch(self.image, scan=True)
    with pytest.raises(ValueError, match='w_down: expected finite .* got inf'):
      scanning.run(self.inputs)

  @pytest.mark.parametrize('names', [['nothing'], ['y', 'dx'], 'y', [['y']]])
  def test_a_tensor_that_is_not_made(self, names):
    # Given no tensor of the image, or letters of one's name, then it is said.
    with pytest.raises(
      ValueError, match=r'names: expected a list .* got '
    ) as e:
      self.launch.run(self.inputs, names)
    assert str(e.value).endswith(f'got {names!r}')

  def test_inputs_that_are_missing_or_of_no_forward_pass(self):
    for name in ('dy', 'expert_out', 'nothing'):
      with pytest.raises(ValueError, match=rf"inputs: .* got .*'{name}'"):
        self.launch.run(self.inputs | {name: self.inputs['x']})
    del self.inputs['w_down']
    with pytest.raises(ValueError, match="inputs: expected .*'w_down'.*, got "):
      self.launch.run(self.inputs)

  @pytest.mark.parametrize(
    'shape, dtype, layout_name, message',
    [
      ((1, 33, 24), 'f8', '', 'expected a writable'),
      ((33, 24), 'f4', '', r'.*got float32 \(33, 24\)$'),
      ((1, 33, 24), 'f4', 'read-only', 'expected .*read-only'),
      ((1, 33, 24), 'f4', 'strides', 'expected .*strides'),
      ((1, 33, 24), 'f4', 'aligned', 'expected .*aligned'),
    ],
  )
  def test_an_output_says_what_is_wrong_with_it(
    self, shape, dtype, layout_name, message
  ):
    y = _view(np.empty(shape, dtype), layout_name)
    with pytest.raises(ValueError, match=rf"out\['y'\]: {message}"):
      self.launch.run(self.inputs, out=dict(y=y))

  def test_an_output_that_is_no_array_or_not_asked_for(self):
    with pytest.raises(ValueError, match=r"out\['y'\]: .* got list"):
      self.launch.run(self.inputs, out=dict(y=[1.0]))
    read_arrays = dict(expert_out=np.empty((1, 66, 24), np.float32))
    with pytest.raises(ValueError, match=r"out: .* got \['expert_out'\]"):
      self.launch.run(self.inputs, out=read_arrays)

  def test_what_holds_an_image_is_none(self):
    compiled = compiler.compile_forward(LAYERS['one_rank'], policy())
    with pytest.raises(TypeError, match=r'^image: expected .*, got Compiled$'):
      runtime.Launch(compiled)

  @pytest.mark.parametrize(
    'error, name, value',
    [
      (TypeError, 'threads', 1.5),
      (TypeError, 'threads', '2'),
      (TypeError, 'deadline_s', 'x'),
      (TypeError, 'isa', 5),
      (ValueError, 'threads', 0),
      (ValueError, 'threads', 10**12),  # which no native integer holds
      (ValueError, 'deadline_s', 0),
      (ValueError, 'deadline_s', float('nan')),
      (ValueError, 'isa', 'neither'),
    ],
  )
  def test_an_option_of_another_type_or_range(self, error, name, value):
    with pytest.raises(error, match=rf'^{name}: expected .*got {value!r}'):
      runtime.Launch(self.image, **{name: value})

  @pytest.mark.parametrize('other', ['x', 'w_down', 'expert_in'])
  def test_an_output_that_overlaps(self, other):
    # Given memory of an input, or of another output, for an output, then it is
    # refused: tasks would read what others have written.
    memory = np.zeros(33 * 24 + 66 * 24, np.float32)
    out = dict(y=memory[: 33 * 24].reshape(1, 33, 24))
    if other == 'expert_in':
      out[other] = memory[1 : 1 + 66 * 24].reshape(1, 66, 24)
    else:
      shape = self.inputs[other].shape
      memory = np.zeros(max(33 * 24, np.prod(shape)), np.float32)
      out['y'] = memory[-33 * 24 :].reshape(1, 33, 24)
      self.inputs[other] = memory[: np.prod(shape)].reshape(shape)
    with pytest.raises(ValueError, match='out: .* overlap'):
      self.launch.run(self.inputs, out, out=out)


@functools.cache
def small(
  direction: layout.Direction, layer='two_ranks', *layer_args, **options
):
  """Returns a case of blocks of 8 rows; `of`: arguments of `policy`."""
  return testing.make_case(
    direction, LAYERS[layer], policy(*layer_args), row_block=8, **options
  )


_ALL_MODES = modes_lib.Modes(
  permute=3, late_puts=True, races=True, guards=True, trace=True, times=True
)


class TestChecked:
  """The modes reach tasks whose tensors are fused away."""

  @pytest.mark.parametrize(
    'direction, placement, relay',
    halved_testing.covering(
      layout.Direction, precision.LAUNCHED_PLACEMENTS, (False, True)
    ),
  )
  def test_every_mode_finds_nothing_and_changes_no_bit(
    self, direction, placement, relay
  ):
    # Given all modes at once, when only results are asked for, then they have
    # the bits of a launch of all tensors, nothing races and each task ends.
    layer_args = direction, 'four_ranks', 'bfloat16', placement
    for cols in COLS:
      case = small(*layer_args, col_block=cols, relay=relay, chain_rows=8)
      launch = runtime.Launch(case.image, threads=2)
      actual = launch.run(case.inputs, modes=_ALL_MODES)
      assert actual.num_races == 0
      assert sorted(actual.order) == list(range(len(actual.order)))
      assert not testing.differing(
        actual.outputs, {n: case.right[n] for n in actual.outputs}
      )

  @pytest.mark.parametrize(
    'kind, tensor',
    [
      (layout.Kind.COMBINE, 'expert_out'),
      (layout.Kind.DOWN, 'gate_up'),
      (layout.Kind.COMBINE_GRAD, 'd_expert_in'),
      (layout.Kind.TOPK_WEIGHT_GRAD, 'd_gate_up'),
    ],
  )
  def test_a_wait_that_is_skipped_is_a_race_on_what_is_read(self, kind, tensor):
    # Given a task that reads owners' rows, or gates, in place of a tensor that
    # nobody made, when it does not wait, then that is a race on those.
    direction = layout.Direction(kind > layout.Kind.COMBINE)
    case = small(direction, 'four_ranks', 'float32', 'before_down')
    task = int(np.flatnonzero(case.image.tables['tasks']['kind'] == kind)[0])
    launch = runtime.Launch(case.image, threads=1)
    actual = launch.run(
      case.inputs,
      [*launch.finals, *(['gate_up'] if tensor == 'gate_up' else [])],
      modes=modes_lib.Modes(races=True),
      fault=faults.Fault('skipped_wait', task),
    )
    assert {race.tensor for race in actual.races} == {tensor}
    assert all(task == race.blame.index for race in actual.races)

  def test_headers_that_a_signal_counts_by_are_read_whatever_is_made(self):
    # Given rows that stay home, when the put home that only counts them does
    # not wait, then it races with who writes the headers it counts by.
    case = small(layout.Direction.FORWARD, 'four_ranks')
    # Headers of an earlier buffer may count too few, which is a deadlock.
    kinds = image_lib.tables(case.image)['tasks']['kind']
    raced = set()
    for task in np.flatnonzero(kinds == layout.Kind.RETURN):
      with contextlib.suppress(runtime.WaitError, ValueError):
        actual = runtime.Launch(case.image, threads=1).run(
          case.inputs,
          ['y', 'expert_in'],
          modes=modes_lib.Modes(races=True),
          fault=faults.Fault('skipped_wait', int(task)),
        )
        own_races = [race for race in actual.races if race.blame.index == task]
        raced |= {race.tensor for race in own_races}
    assert raced == {'expert_in'}

  def test_an_event_that_was_signalled_too_often_is_broken(self):
    # Given a task that signals twice as much as its readers wait for, then
    # every bit may be right, and yet the launch is refused.
    case = small(layout.Direction.FORWARD)
    blob = bytearray(case.image)
    tables = image_lib.tables(blob)
    task = testing.first_with_rows(case, layout.Kind.DOWN)
    tables['signals']['amount'][tables['tasks']['signal_begin'][task]] *= 2
    launch = runtime.Launch(image_lib.seal(blob))
    with pytest.raises(
      runtime.BrokenError, match=r'^event \d+, expert_out\(rank .* worth .* got'
    ):
      launch.run(case.inputs, modes=modes_lib.Modes(races=True))

  def test_a_fault_spoils_what_is_made_and_nothing_else(self):
    # Given a fault of values, when only y is asked for, then it is as wrong as
    # in a launch of all tensors if the task's own tensor is made, though what
    # it reads is not; otherwise there is nothing to spoil.
    case = small(layout.Direction.FORWARD)
    for name, kind in (
      ('swapped_experts', layout.Kind.DOWN),
      ('narrow_operands_bf16', layout.Kind.DOWN),
      ('dropped_k_term', layout.Kind.DOWN),
      ('lost_k_slot', layout.Kind.COMBINE),
      ('misplaced_weight', layout.Kind.COMBINE),
    ):
      fault = faults.Fault(name, testing.first_with_rows(case, kind))
      want = runtime.launch(case.image, case.inputs, fault=fault)['y']
      actual = runtime.Launch(case.image).run(case.inputs, fault=fault)
      assert actual.outputs['y'].tobytes() == want.tobytes(), name
      assert want.tobytes() != case.right['y'].tobytes(), name
    for name, kind in (
      ('swapped_experts', layout.Kind.GATE_UP),
      ('zero_output', layout.Kind.SWIGLU),
      ('off_by_one_row', layout.Kind.RETURN),
      ('stale_row', layout.Kind.DISPATCH),
    ):
      fault = faults.Fault(name, testing.first_with_rows(case, kind))
      with pytest.raises(faults.NoEffect):
        runtime.Launch(case.image).run(case.inputs, fault=fault)

  def test_gradients_of_gathered_rows_are_spoilt_as_those_of_made_ones(self):
    # Given weight gradients whose rows are gathered where their tokens lie,
    # when their sums are narrowed or cut, then bits are those of a launch in
    # which the rows were put side by side.
    case = small(layout.Direction.BACKWARD)
    for name in (
      'narrow_operands_bf16',
      'dropped_k_term',
      'narrow_accumulator',
      'wrong_accumulation',
      'weight_grad_twice',
    ):
      task = testing.first_with_rows(case, layout.Kind.GATE_UP_WEIGHT_GRAD)
      fault = faults.Fault(name, task)
      want = runtime.launch(case.image, case.inputs, fault=fault)
      actual = runtime.Launch(case.image).run(case.inputs, fault=fault).outputs
      assert testing.differing(want, case.right) == ['d_w_gate_up'], name
      assert not testing.differing(actual, {n: want[n] for n in actual}), name

  def test_replay_captures_and_heals_what_is_made(self):
    # Given tasks that read given tensors, when only y is asked for, then each
    # task that makes something has the bits that it has if all is made, what
    # nobody made is not captured, and y is right although no task but the last
    # did its work.
    case = small(layout.Direction.FORWARD)
    kinds = case.image.tables['tasks']['kind']

    def run(actions):
      actions = np.asarray(actions, np.uint8)
      modes = modes_lib.Modes(actions=actions, heal_with=case.right)
      return runtime.Launch(case.image).run(case.inputs, modes=modes)

    actual = run(np.full(len(kinds), modes_lib.ISOLATED)).captures
    compiled = {
      n for n, a in actual.items() if not poison_lib.is_poison(a).all()
    }
    assert compiled == {'expert_out', 'y'}
    for name in compiled:
      own = ~poison_lib.is_poison(actual[name])
      assert (actual[name][own] == case.right[name][own]).all()
    healed = run(np.where(kinds == layout.Kind.COMBINE, 1, 4)).outputs
    assert healed['y'].tobytes() == case.right['y'].tobytes()


class TestIdsOfTheCaller:
  @pytest.mark.parametrize('layer', ['one_rank', 'four_ranks'])
  def test_are_not_read_once_they_were_checked(self, layer):
    # Given ids that others write to while tasks run (here tasks themselves do:
    # y lies in their memory, which Python would refuse), then y is that of the
    # ids that were checked.  In a process of its own: it would end.
    module = self.__module__
    script = f'from {module} import launch_on_ids; launch_on_ids({layer!r})'
    path = os.pathsep.join(sys.path)
    ran = subprocess.run(
      [sys.executable, '-c', script], env=os.environ | dict(PYTHONPATH=path)
    )
    assert ran.returncode == 0


def launch_on_ids(layer: str) -> None:
  """Launches with y in the memory of ids; y must be right."""
  config = LAYERS[layer]
  image = testing.compile_layer(config, policy(), row_block=4, token_block=4)
  inputs = testing.make_inputs(config, policy())
  want = runtime.launch(image, inputs, threads=1)['y']
  y = np.zeros_like(want)
  ids = y.view(np.int32).reshape(-1)[: inputs['topk_ids'].size]
  ids[:] = inputs['topk_ids'].reshape(-1)
  inputs['topk_ids'] = ids.reshape(inputs['topk_ids'].shape)
  _native.Launch(image_lib.load(image)).run(
    inputs, dict(y=y), _native.LaunchOptions(threads=1)
  )
  assert y.tobytes() == want.tobytes()


class TestUnaligned:
  @pytest.mark.parametrize('name', ['x', 'topk_ids', 'w_down'])
  def test_is_copied(self, name):
    # Given an array that lies between its elements' addresses, as a file's may,
    # then a launch reads an aligned copy: others are undefined in C++.
    config = LAYERS['two_ranks']
    image = testing.compile_layer(config, policy(), row_block=16)
    inputs = testing.make_inputs(config, policy())
    want, read_arrays = runtime.launch(image, inputs), inputs[name]
    memory = np.zeros(read_arrays.nbytes + 1, np.uint8)
    inputs[name] = np.ndarray(
      read_arrays.shape, read_arrays.dtype, memory, offset=1
    )
    inputs[name][...] = read_arrays
    assert arrays.fitting(image, name, inputs[name]).flags.aligned
    actual = runtime.Launch(image).run(inputs).outputs
    assert actual['y'].tobytes() == want['y'].tobytes()


class TestAtOnce:
  @pytest.mark.parametrize('relay', [False, True])
  def test_launches_of_several_threads_have_their_bits(self, relay):
    # Given more threads than cores, each with a routing of its own, when they
    # launch one image at once, then each has the bits of a launch that checks.
    config = LAYERS['four_ranks']
    image = testing.compile_layer(
      config, policy(), row_block=4, col_block=8, relay=relay
    )
    routings = ('uniform', 'empty_experts', 'one_rank')
    read_arrays = [testing.make_inputs(config, policy(), r) for r in routings]
    want = [
      runtime.launch(image, i, threads=1)['y'].tobytes() for i in read_arrays
    ]
    shared_launch = runtime.Launch(image, threads=3)

    def launch(turn: int) -> bool:
      index = turn % len(read_arrays)
      return (
        shared_launch.run(read_arrays[index]).outputs['y'].tobytes()
        == want[index]
      )

    with futures.ThreadPoolExecutor(6) as pool:
      assert all(pool.map(launch, range(60)))


class TestArena:
  @pytest.mark.parametrize('token, slot', [(0, 0), (17, 1)])
  def test_outlives_a_launch_that_is_refused(self, token, slot):
    # Given an image that was launched, when ids are refused as they are read,
    # then its memory is kept, and the next launch has the bits of the first.
    config = LAYERS['one_rank']
    inputs = testing.make_inputs(config, policy())
    launch = runtime.Launch(testing.compile_layer(config, policy()))
    want = launch.run(inputs).outputs['y'].tobytes()
    arena_bytes = launch.arena_bytes
    bad_ids = inputs['topk_ids'].copy()
    bad_ids[0, token, slot] = -1
    with pytest.raises(ValueError, match='topk_ids: .* got -1'):
      launch.run(inputs | dict(topk_ids=bad_ids))
    assert launch.arena_bytes == arena_bytes > 0
    assert launch.run(inputs).outputs['y'].tobytes() == want


def test_a_result_of_a_sublayer_has_zeros_past_its_last_row(monkeypatch):
  # Given memory that held something else, when a launch only computes, then
  # its packed result has what tasks wrote and zeros: nobody cuts it.
  rows = 2 * 37
  config = presets.config(presets.get('tp_norm'), ranks=2)
  config = dataclasses.replace(config, capacity=rows + 6)
  image = testing.compile_layer(config, policy())
  dims, generator = config.dims(), testing.rng('sublayer')
  inputs = {
    name: generator.normal(size=tensors.SPECS[name].dims(**dims))
    for name in tensors.inputs(config)
  }
  inputs = {name: a.astype(np.float32) for name, a in inputs.items()}
  inputs['topk_ids'] = np.broadcast_to(np.arange(2, dtype=np.int32), (2, 37, 2))
  monkeypatch.setattr(np, 'empty', lambda *a, **k: np.full(*a[:1], 7, *a[1:]))
  gate_up = runtime.Launch(image).run(inputs).outputs['gate_up']
  assert gate_up[:, :rows].all() and not gate_up[:, rows:].any()
