"""Kernels that get and return scales as CUTLASS, FlashInfer and DeepGEMM do."""

import dataclasses
import sys

import numpy as np
import pytest
import safetensors.numpy

import hpmoe
from hpmoe.parity_tests.candidates import external_program
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.case import folder
from hpmoe.parity_tests.case import folder_writer
from hpmoe.parity_tests.case import input_files
from hpmoe.parity_tests.case import quantised_inputs
from hpmoe.parity_tests.case import read_case
from hpmoe.parity_tests.case.layouts import project_layouts
from hpmoe.parity_tests.case.layouts import swizzles_test
from hpmoe.parity_tests.judge import row_codes_testing as testing
from hpmoe.reference.contract import quantised
from hpmoe.reference.contract import tensors

f32 = np.float32
E2M1 = f32([0, 0.5, 1, 1.5, 2, 3, 4, 6])
E2M1 = np.concatenate([E2M1, -E2M1])


def unswizzle(scales, rows, columns):
  """The axes that swizzle_128x4 moves, back; without padding."""
  high, wide = scales.shape
  parts = scales.reshape(high // 128, wide // 4, 32, 4, 4)
  matrix = parts.transpose(0, 3, 2, 1, 4).reshape(high, wide)
  return matrix[:rows, :columns]


@dataclasses.dataclass(frozen=True)
class Kernel:
  """A kernel of one rank in a project's layout.

  Attributes:
    word: of the layout.
    wrong: the tensor whose scales it reads by rows where they are in tiles, or
      as `[T, groups]` where they are transposed; '': it is right.
    rows: what it makes of its rows; '': nothing.
  """

  word: str
  wrong: str = ''
  rows: str = ''

  def __call__(self, inputs, config, policy):
    width, depth = config.d_model, config.d_ff
    x = inputs.get('x')
    if x is None:
      x = self._read(policy.x_form, 'x', inputs, (config.num_tokens, width))
    gate_up = self._read(
      policy.quantised, 'w_gate_up', inputs, (2 * depth, width)
    )
    if self.word.startswith('flashinfer'):
      gate_up = np.roll(gate_up, depth, 1)
    down = self._read(policy.quantised, 'w_down', inputs, (width, depth))
    own = dict(
      x=x[None],
      topk_ids=inputs['topk_ids'][None],
      topk_weights=inputs['topk_weights'][None],
      w_gate_up=gate_up.swapaxes(1, 2)[None],
      w_down=down.swapaxes(1, 2)[None],
    )
    names = ('expert_in', 'activation') if self.rows else ()
    layer = testing.Layer(dict.fromkeys(names, testing.Quantiser(self.rows)))
    outputs = layer(own, config, policy)
    return {n: self._lay_out(n, a) for n, a in outputs.items()}

  def _read(self, form, name, inputs, shape):
    row, scales = quantised.FORMS[form], inputs[f'{name}_scales']
    scales = scales if name[0] == 'w' else scales[None]
    counts = [
      -(-size // unit) for size, unit in zip(shape, row.group, strict=True)
    ]
    scales = np.stack([self._find_scales(name, s, counts) for s in scales])
    if scales.dtype == np.uint8:
      scales = np.ldexp(f32(1), scales.astype(np.int32) - 127)
    scales = scales.astype(f32)
    if row.rule == 'two_level':
      scales = scales * inputs[f'{name}_tensor_scales']
    for axis, unit in zip((1, 2), row.group):
      scales = np.repeat(scales, unit, axis)
    codes = inputs[f'{name}_codes']
    if row.is_packed:
      codes = E2M1[np.stack([codes & 15, codes >> 4], -1)]
    codes = codes.reshape(len(scales), *shape).astype(f32)
    values = codes * scales[:, : shape[0], : shape[1]]
    return values if name[0] == 'w' else values[0]

  def _find_scales(self, name, scales, counts):
    """Returns the scales of one matrix `[rows, groups]`."""
    rows, columns = counts
    if self.word in ('flashinfer_fp8', 'deepgemm') and name == 'x':
      if self.wrong == 'x':
        return scales.reshape(-1)[: rows * columns].reshape(rows, columns)
      return scales[:columns, :rows].T
    if self.word == 'deepgemm_ue8m0' and name == 'x' and self.wrong != name:
      words = np.ascontiguousarray(scales).reshape(-1).view(np.int32)
      words = words.reshape(-1, scales.shape[1])[:, :rows]
      parts = [words >> 8 * place & 255 for place in range(4)]
      exponents = np.stack(parts, 1).reshape(-1, rows).T
      return exponents[:, :columns].astype(np.uint8)
    if self.word == 'deepgemm_ue8m0' and name == 'x':
      return scales[:columns, :rows].T
    if not self.word.endswith('cutlass') or self.wrong == name:
      return scales[:rows, :columns]
    return unswizzle(scales, rows, columns)

  def _lay_out(self, name, array):
    if name.endswith('_scales') and self.word.endswith('cutlass'):
      swizzled = swizzles_test.swizzle_128x4(array[0])
      is_padding = swizzles_test.swizzle_128x4(np.ones_like(array[0])) == 0
      if self.wrong == name:
        swizzled = swizzles_test.pad(array[0], 128, 4)
      return np.where(is_padding, 99, swizzled).astype(array.dtype)[None]
    if name.endswith('_scales') and self.word == 'deepgemm':
      rows = swizzles_test.pad(array[0].T, 1, 4)
      return rows[None]
    if name == 'gate_up' and self.word.startswith('flashinfer'):
      return np.roll(array, array.shape[-1] // 2, -1)
    return array[0] if name == 'y' else array


CASE = case_lib.Case(
  'forward',
  preset='tiny:d_model=144:d_ff=160',
  ranks=1,
  tokens=13,
  routing='zipf',
)
# The word, what is quantised, and the tensor whose scales lie elsewhere.
KERNELS = [
  ('cutlass', dict(quantised='mxfp8', x_form='mxfp8', rows='mxfp8'), 'w_down'),
  ('cutlass', dict(quantised='nvfp4'), 'w_gate_up'),
  ('flashinfer_cutlass', dict(quantised='mxfp4', x_form='mxfp8'), 'x'),
  ('flashinfer_cutlass', dict(quantised='nvfp4', x_form='mxfp8'), 'w_gate_up'),
  ('flashinfer_fp8', dict(quantised='mxfp8', x_form='e4m3_1x128'), 'x'),
  (
    'deepgemm',
    dict(quantised='mxfp8', x_form='e4m3_1x128', rows='e4m3_1x128'),
    'x',
  ),
  (
    'deepgemm_ue8m0',
    dict(quantised='mxfp8', x_form='mxfp8'),
    'x',
  ),
]
IDS = [f'{word}-{"-".join(forms)}' for word, forms, _ in KERNELS]


def _check(kernel, forms, **options):
  case = dataclasses.replace(CASE, **forms)
  return hpmoe.check(
    kernel, case, lanes=['bounded'], repeat=1, layout=kernel.word, **options
  )


@pytest.mark.parametrize(('word', 'forms', 'name'), KERNELS, ids=IDS)
@pytest.mark.few(2)
def test_a_right_kernel_passes_and_one_that_reads_by_rows_fails(
  word, forms, name
):
  kernel = Kernel(word, rows=forms.get('rows', ''))
  assert _check(kernel, forms).is_pass

  report = _check(dataclasses.replace(kernel, wrong=name), forms)

  failure = report.first_failure
  if name == 'x' and 'rows' in forms:  # rows are quantised again
    assert failure.stage == 'expert_in_scales'
    return
  assert failure.stage == 'expert_out' if name == 'w_down' else 'gate_up'
  if word == 'deepgemm_ue8m0':
    return
  words = 'swizzled_128x4' if word.endswith('cutlass') else 'transposed'
  assert f'as if {name} had its scales' in failure.pattern
  assert words in failure.pattern


@pytest.mark.parametrize('name', ['expert_in', 'activation'])
def test_scales_that_are_returned_by_rows_fail_where_tiles_are_declared(name):
  word, forms, _ = KERNELS[0]
  wrong = f'{name}_scales'
  report = _check(Kernel(word, wrong, rows=forms['rows']), forms)
  assert report.first_failure.stage == wrong


@pytest.mark.parametrize(('word', 'forms', 'name'), KERNELS[:4], ids=IDS[:4])
def test_an_exported_case_has_the_layout_and_is_read_back(
  tmp_path, word, forms, name
):
  inputs = dataclasses.replace(CASE, **forms).make()
  exported = folder_writer.write(
    tmp_path / 'case',
    'forward',
    {'real': inputs},
    layouts=project_layouts.read_layouts(word),
  )
  case = read_case.load(exported.path)
  user_tensors = read_case.inputs(case, 'real')
  scales = user_tensors[f'{name}_scales']
  assert scales.shape[-2] % 128 == 0
  expected = project_layouts.lay_out(
    word, inputs.arrays, inputs.config, inputs.policy
  )
  for key, array in user_tensors.items():
    assert array.tobytes() == expected[key].tobytes(), key
  assert 'swizzled_128x4' in vars(case.layouts)[f'{name}_scales']
  back = folder.read(exported.path).inputs()
  for key in user_tensors:
    assert back.arrays[key].tobytes() == inputs.arrays[key].tobytes(), key


@pytest.mark.parametrize('wrong', ['', 'w_down'])
def test_a_program_gets_and_returns_tiles(tmp_path, wrong):
  word, forms, _ = KERNELS[0]
  path = tmp_path / 'kernel.py'
  path.write_text(
    f'import sys\nsys.path[:0] = {sys.path!r}\n'
    'from hpmoe.parity_tests.judge import coded_layouts_test as tested\n'
    'def run(inputs, layer, policy):\n'
    f'  kernel = tested.Kernel({word!r}, {wrong!r}, {forms["rows"]!r})\n'
    '  return kernel(inputs, layer, tested.make_policy())\n'
  )
  candidate = external_program.Interpreter(
    python=sys.executable, name=f'{path}:run', layout=word
  )
  case = dataclasses.replace(CASE, **forms)
  report = hpmoe.check(candidate, case, lanes=['bounded'], repeat=1)
  assert report.is_pass == (not wrong), report.first_failure


def make_policy():
  return dataclasses.replace(CASE, **KERNELS[0][1]).make().policy


@pytest.mark.parametrize(
  ('word', 'forms'), [row[:2] for row in KERNELS], ids=IDS
)
def test_a_file_of_inputs_says_how_its_scales_lie(tmp_path, word, forms):
  case = dataclasses.replace(CASE, **forms)
  inputs = dataclasses.replace(case, rows='').make()
  names = quantised_inputs.replace_names(inputs.policy.coded, tensors.INPUTS)
  arrays = {name: inputs.arrays[name] for name in names}
  laid_out = project_layouts.lay_out(word, arrays, inputs.config, inputs.policy)
  layouts = project_layouts.read_layouts(word)
  metadata = {n: str(layout) for n, layout in layouts.items()}
  path = tmp_path / 'layer.safetensors'
  safetensors.numpy.save_file(laid_out, path, metadata)
  read = input_files.load_safetensors(
    path, quantised=forms['quantised'], x_form=forms.get('x_form', '')
  )
  for key, array in arrays.items():
    assert read.arrays[key].tobytes() == array.tobytes(), key
