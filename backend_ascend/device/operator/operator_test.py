"""The operators for CANN, on a machine without CANN."""

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

FOLDER = pathlib.Path(__file__).resolve().parent
ROOT = FOLDER.parents[2]
FAKE = FOLDER.parent / 'fake_cann'
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
      *(FOLDER / 'launch_op.cc', FOLDER / 'operator_test.cc', '-o', binary),
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


def _run_program(
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


def _select_lines(lines, word) -> list[list[str]]:
  return [line[1:] for line in lines if line[0] == word]


def _results(direction) -> tuple[str, ...]:
  """Returns the tensors that tasks write, in the order of the buffers."""
  output_names = arrays.OUTPUTS[direction]
  names = [b.name.lower() for b in layout.Buffer]
  return tuple(n for n in names if n in output_names)


class TestOperators:
  @pytest.mark.parametrize('direction', NAMES)
  @pytest.mark.few(1)
  def test_take_and_give_what_the_image_does(
    self, program, tmp_path, direction
  ):
    # Given an operator, when it is asked for its operands and results, then
    # they are those of a launch, by name and in the order of the kernels.
    lines = _run_program(program, _image(direction), tmp_path)
    inputs = [line[0] for line in _select_lines(lines, 'input')]
    operand_names = {*arrays.INPUTS[direction]} - {'topk_ids'}
    assert inputs[:3] == ['image', 'tables', 'state']
    assert {*inputs[3:]} == operand_names and len(inputs) == 3 + len(
      operand_names
    )
    assert [line[0] for line in _select_lines(lines, 'output')] == list(
      _results(direction)
    )
    optional = [
      line[0] for line in _select_lines(lines, 'input') if 'optional' in line
    ]
    backward = direction == layout.Direction.BACKWARD
    assert optional == ['returned'] * backward
    assert _select_lines(lines, 'attr') == [['header'], ['deadline_us']]
    assert _select_lines(lines, 'chip') == [['ascend910b'], ['ascend910_93']]
    kernel = 'hpmoe_launch_grad.cc' if backward else 'hpmoe_launch.cc'
    signature = (FOLDER / kernel).read_text().split('hpmoe_launch')[-1]
    arguments = signature[: signature.index('{')].replace('GM_ADDR', '')
    order = [a.strip(' ()\n') for a in arguments.split('(')[1].split(',')]
    expected_order = [*inputs, *_results(direction), 'workspace', 'tiling']
    assert order == expected_order

  @pytest.mark.parametrize('direction', NAMES)
  @pytest.mark.parametrize('storage', ['float32', 'bfloat16'])
  @pytest.mark.parametrize('num_ranks', [1, 2])
  def test_infer_the_shapes_and_dtypes_of_the_contract(
    self, program, tmp_path, direction, storage, num_ranks
  ):
    image = _image(direction, storage, num_ranks=num_ranks)
    lines = _run_program(program, image, tmp_path)
    assert (
      _select_lines(lines, 'shapes') == _select_lines(lines, 'types') == [['0']]
    )
    for i, name in enumerate(_results(direction)):
      shape = tensors.SPECS[name].dims(**image.config.dims())
      assert _select_lines(lines, 'shape')[i] == [
        str(size) for size in shape
      ], name
      storage_type = BF16 if storage == 'bfloat16' else FLOAT
      is_float = arrays.dtype(image, name) == np.float32
      expected = FLOAT if is_float else storage_type
      assert _select_lines(lines, 'type')[i] == [str(i), expected], name

  def test_ask_for_the_image_cores_and_a_workspace(self, program, tmp_path):
    # Given 3 cube and 9 vector cores, when tiled, then 5 blocks of 1 and 2
    # start at once, and the deadline reaches the kernel.
    image = _image(layout.Direction.BACKWARD, placement='before_down')
    lines = _run_program(program, image, tmp_path)
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
    assert _select_lines(lines, 'tiling') == [['0']]
    assert _select_lines(lines, 'blocks') == [
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
    lines = _run_program(program, image, tmp_path, cores)
    assert _select_lines(lines, 'tiling') == [['1']]

  def test_refuse_what_is_no_header(self, program, tmp_path):
    image = bytearray(_image(layout.Direction.FORWARD))
    image[0] ^= 1
    lines = _run_program(
      program, image, tmp_path, direction=layout.Direction.FORWARD
    )
    for query in ('shapes', 'types', 'tiling'):
      assert _select_lines(lines, query) == [['1']]


@pytest.fixture(scope='module')
def kernels(tmp_path_factory) -> pathlib.Path:
  binary = tmp_path_factory.mktemp('kernels') / 'kernel_test'
  twin_testing.compile_program(FOLDER / 'kernel_test.cc', binary)
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
  inputs = testing.inputs_of(direction, image.config, image.policy, exact=True)
  expected = runtime.launch(image, inputs)
  lines = _run_program(program, image, tmp_path)
  blocks, _, _, _, workspace, _, deadline = _select_lines(lines, 'blocks')[0]
  head = np.frombuffer(bytearray(image), np.uint8)
  tables = ffi.npu_tables(head, inputs['topk_ids'])
  operands = dict(image=bytes(head), tables=tables, state=ffi.npu_state(head))
  operands |= {
    n: inputs[n].tobytes() for n, *_ in _select_lines(lines, 'input')[3:]
  }
  results = {name: expected[name].tobytes() for name in _results(direction)}
  operands |= {name: bytes(len(result)) for name, result in results.items()}
  operands['workspace'] = b'\xff' * int(workspace)
  operands['tiling'] = np.uint64(deadline).tobytes()
  before, places = b'', {}
  for name, data in operands.items():
    places[name] = len(before)
    before += data + bytes(1024 - len(data) % 512)
  arguments = [str(word) for place in places.items() for word in place]
  ran = subprocess.run(
    [kernels, blocks, *arguments], input=before, capture_output=True, check=True
  )
  assert ran.stderr.decode() == ''
  left = {
    n: ran.stdout[offset:][: len(operands[n])] for n, offset in places.items()
  }
  assert ffi.npu_end(head, np.frombuffer(left['state'], np.uint8)) == ''
  assert not [name for name in results if left[name] != results[name]]
