"""The operators for CANN, as far as a machine without it can try them."""

import os
import pathlib
import subprocess

import numpy as np
import pytest

from hpmoe.backend_ascend.compiler import compiler
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.host.launch import runtime
from hpmoe.backend_ascend.host.launch import runtime_testing as testing
from hpmoe.backend_ascend.host.load import arrays
from hpmoe.backend_ascend.twin import twin_testing
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
FAKE = HERE.parent / 'fake_cann'
NAMES = {
  layout.Direction.FORWARD: 'HpmoeLaunch',
  layout.Direction.BACKWARD: 'HpmoeLaunchGrad',
}
# As fake_cann numbers them.
FLOAT, UINT8, BF16 = '0', '1', '2'


@pytest.fixture(scope='module')
def program(tmp_path_factory) -> pathlib.Path:
  binary = tmp_path_factory.mktemp('operator') / 'operator_test'
  subprocess.run(
    [
      os.environ.get('CXX') or 'c++',
      *('-std=c++17', '-Wall', '-Wextra', '-Werror', f'-I{ROOT}', f'-I{FAKE}'),
      *(HERE / 'launch_op.cc', HERE / 'operator_test.cc', '-o', binary),
    ],
    check=True,
  )
  return binary


def _image(direction, storage='bfloat16', placement='combine', **sizes):
  config = config_lib.MoEConfig(
    **dict(num_tokens=12, num_experts=4, top_k=2, d_model=24, d_ff=40)
    | dict(num_ranks=1)
    | sizes
  )
  policy = precision.PrecisionPolicy(
    storage=storage, placement=placement, activation='absolute'
  )
  options = granularity.Options(
    num_aic=3, num_aiv=9, row_block=8, col_block=16, chain_rows=8
  )
  return compiler.COMPILE[direction](config, policy, options).image


def _told(
  program, image, tmp_path, cores=24, direction=None
) -> list[list[str]]:
  (tmp_path / 'image').write_bytes(bytes(image))
  name = NAMES[image.direction if direction is None else direction]
  text = subprocess.run(
    [program, name, tmp_path / 'image', str(cores)],
    check=True,
    capture_output=True,
    text=True,
  ).stdout
  return [line.split() for line in text.splitlines()]


def _of(told, word) -> list[list[str]]:
  return [line[1:] for line in told if line[0] == word]


def _results(direction) -> tuple[str, ...]:
  """Returns what tasks write, in the order of the table of buffers."""
  written = arrays.OUTPUTS[direction]
  names = [b.name.lower() for b in layout.Buffer]
  return tuple(n for n in names if n in written)


class TestOperators:
  @pytest.mark.parametrize('direction', NAMES)
  def test_take_and_give_what_the_image_does(
    self, program, tmp_path, direction
  ):
    # Given an operator, when it is asked for its operands and results, then
    # they are those of a launch, by name and in the order of the kernels.
    told = _told(program, _image(direction), tmp_path)
    inputs = [line[0] for line in _of(told, 'input')]
    taken = {*arrays.INPUTS[direction]} - {'topk_ids'}
    assert inputs[:3] == ['image', 'tables', 'state']
    assert {*inputs[3:]} == taken and len(inputs) == 3 + len(taken)
    assert [line[0] for line in _of(told, 'output')] == list(
      _results(direction)
    )
    optional = [line[0] for line in _of(told, 'input') if 'optional' in line]
    backward = direction == layout.Direction.BACKWARD
    assert optional == ['returned'] * backward
    assert _of(told, 'attr') == [['header'], ['deadline_us']]
    assert _of(told, 'chip') == [['ascend910b'], ['ascend910_93']]
    kernel = 'hpmoe_launch_grad.cc' if backward else 'hpmoe_launch.cc'
    signature = (HERE / kernel).read_text().split('hpmoe_launch')[-1]
    arguments = signature[: signature.index('{')].replace('GM_ADDR', '')
    order = [a.strip(' ()\n') for a in arguments.split('(')[1].split(',')]
    given = [*inputs, *_results(direction), 'workspace', 'tiling']
    assert order == given

  @pytest.mark.parametrize('direction', NAMES)
  @pytest.mark.parametrize('storage', ['float32', 'bfloat16'])
  @pytest.mark.parametrize('num_ranks', [1, 2])
  def test_infer_the_shapes_and_dtypes_of_the_contract(
    self, program, tmp_path, direction, storage, num_ranks
  ):
    image = _image(direction, storage, num_ranks=num_ranks)
    told = _told(program, image, tmp_path)
    assert _of(told, 'shapes') == _of(told, 'types') == [['0']]
    for i, name in enumerate(_results(direction)):
      shape = tensors.SPECS[name].dims(**image.config.dims())
      assert _of(told, 'shape')[i] == [str(size) for size in shape], name
      stored = BF16 if storage == 'bfloat16' else FLOAT
      is_float = arrays.dtype(image, name) == np.float32
      wanted = FLOAT if is_float else stored
      assert _of(told, 'type')[i] == [str(i), wanted], name

  def test_ask_for_the_image_cores_and_a_workspace(self, program, tmp_path):
    # Given 3 cube and 9 vector cores, when tiled, then 5 blocks of 1 and 2
    # start at once, and the deadline reaches the kernel.
    image = _image(layout.Direction.BACKWARD, placement='before_down')
    told = _told(program, image, tmp_path)
    sizes = image.config.dims()
    links = -(-image.options.expert_capacity // 8)
    assert links > 1
    line = lambda count: -(-4 * count // 64) * 64
    own = (
      2 * line(sizes['N'])
      + line(sizes['T'] * sizes['K'])
      + line(sizes['L'] * sizes['F'] * sizes['D'])
      + line(sizes['L'] * 2 * sizes['F'] * sizes['D'])
    )
    assert _of(told, 'tiling') == [['0']]
    assert _of(told, 'blocks') == [
      ['5', 'mode', '1', 'workspace', str((16 << 20) + own), 'deadline', '250']
    ]

  @pytest.mark.parametrize(
    'sizes, storage, cores',
    [
      (dict(num_ranks=2), 'float32', 24),  # needs a symmetric heap
      (dict(), 'float16', 24),  # no kernel
      (dict(), 'float32', 4),  # needs 5 blocks
    ],
  )
  def test_refuse_to_tile_what_cannot_run(
    self, program, tmp_path, sizes, storage, cores
  ):
    image = _image(layout.Direction.FORWARD, storage, **sizes)
    told = _told(program, image, tmp_path, cores)
    assert _of(told, 'tiling') == [['1']]

  def test_refuse_what_is_no_header(self, program, tmp_path):
    image = bytearray(_image(layout.Direction.FORWARD))
    image[0] ^= 1
    told = _told(program, image, tmp_path, direction=layout.Direction.FORWARD)
    for what in ('shapes', 'types', 'tiling'):
      assert _of(told, what) == [['1']]


@pytest.fixture(scope='module')
def kernels(tmp_path_factory) -> pathlib.Path:
  binary = tmp_path_factory.mktemp('kernels') / 'kernel_test'
  twin_testing.compile_program(HERE / 'kernel_test.cc', binary)
  return binary


@pytest.mark.parametrize('direction', NAMES)
@pytest.mark.parametrize(
  'storage', ['bfloat16', pytest.param('float32', marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
  'placement', ['before_down', pytest.param('combine', marks=pytest.mark.slow)]
)
def test_kernels_store_the_bits_of_a_host_s_launch(
  program, kernels, tmp_path, direction, storage, placement
):
  # Given the cores, deadline and workspace that tiling asks for, and blobs as
  # a front end makes them, when the kernel runs, then every element is the
  # host's, every core ends, and the twin finds nothing.
  from hpmoe.backend_ascend.frontends import _mindspore_ffi as ffi

  image = _image(direction, storage, placement)
  given = testing.inputs_of(direction, image.config, image.policy, exact=True)
  wanted = runtime.launch(image, given)
  told = _told(program, image, tmp_path)
  blocks, _, _, _, workspace, _, deadline = _of(told, 'blocks')[0]
  head = np.frombuffer(bytearray(image), np.uint8)
  tables = ffi.npu_tables(head, given['topk_ids'])
  operands = dict(image=bytes(head), tables=tables, state=ffi.npu_state(head))
  operands |= {n: given[n].tobytes() for n, *_ in _of(told, 'input')[3:]}
  results = {name: wanted[name].tobytes() for name in _results(direction)}
  operands |= {name: bytes(len(result)) for name, result in results.items()}
  operands['workspace'] = b'\xff' * int(workspace)
  operands['tiling'] = np.uint64(deadline).tobytes()
  before, places = b'', {}
  for name, held in operands.items():
    places[name] = len(before)
    before += held + bytes(1024 - len(held) % 512)
  arguments = [str(word) for place in places.items() for word in place]
  ran = subprocess.run(
    [kernels, blocks, *arguments], input=before, capture_output=True, check=True
  )
  assert ran.stderr.decode() == ''
  left = {n: ran.stdout[at:][: len(operands[n])] for n, at in places.items()}
  assert ffi.npu_end(head, np.frombuffer(left['state'], np.uint8)) == ''
  assert not [name for name in results if left[name] != results[name]]
