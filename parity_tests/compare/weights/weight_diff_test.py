"""Wrong conversions, each named in a line; right ones are called that."""

import functools
import itertools
import json
import re

import ml_dtypes
import numpy as np
import pytest

from hpmoe.models.checkpoint import model_testing
from hpmoe.models.checkpoint import packed_codes_testing
from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import main
from hpmoe.parity_tests.compare.weights import weight_diff
from hpmoe.parity_tests.compare.weights import weight_report
from hpmoe.parity_tests.compare.weights import weight_sides
from hpmoe.parity_tests.compare.weights import weight_testing

BFLOAT16 = ml_dtypes.bfloat16
LAYER = 'model.layers.1.'
EXPERTS = f'{LAYER}mlp.experts.'
MATRICES = ('gate_proj', 'up_proj', 'down_proj')


def _compare(left, right) -> weight_diff.Result:
  sides = (weight_sides.open_side('model', str(path)) for path in (left, right))
  return weight_diff.compare(*sides)


@pytest.fixture
def find_lines(tmp_path):
  """Returns a function of a change: the lines that name it, and the result."""

  def run(change, family='qwen3_moe', fields=(), **changes):
    left = weight_testing.write_folder(tmp_path / 'left', family, **changes)
    right = weight_testing.write_changed(
      left, tmp_path / 'right', change, **dict(fields)
    )
    result = _compare(left, right)
    return weight_report.list_lines(result), result

  return run


def _move_experts(tensors, order, router=False):
  before = dict(tensors)
  for place, source in enumerate(order):
    for name in MATRICES:
      key = f'{EXPERTS}{place}.{name}.weight'
      tensors[key] = before[f'{EXPERTS}{source}.{name}.weight']
  if router:
    gate = f'{LAYER}mlp.gate.weight'
    tensors[gate] = before[gate][list(order)]


def _permute_experts(tensors):
  _move_experts(tensors, [0, 1, 2, 4, 3, 5, 6, 7])


def _reverse_experts(tensors):
  _move_experts(tensors, range(7, -1, -1))


def _repeat_expert(tensors):
  _move_experts(tensors, [0, 1, 2, 3, 4, 4, 6, 7])


def _permute_router(tensors):
  name = f'{LAYER}mlp.gate.weight'
  tensors[name] = tensors[name][[1, 0, 2, 3, 4, 5, 6, 7]]


def _swap_halves(tensors):
  for e in range(8):
    gate, up = (f'{EXPERTS}{e}.{name}.weight' for name in MATRICES[:2])
    tensors[gate], tensors[up] = tensors[up], tensors[gate]


def _interleave(tensors):
  stacked = weight_testing.stack_experts(tensors, 1)
  gate_up = stacked[f'{EXPERTS}gate_up_proj']
  gate, up = np.split(gate_up, 2, axis=1)
  turns = np.stack([gate, up], axis=2).reshape(gate_up.shape)
  return stacked | {f'{EXPERTS}gate_up_proj': turns}


def _transpose_stacked(tensors):
  stacked = weight_testing.stack_experts(tensors, 1)
  down = f'{EXPERTS}down_proj'
  return stacked | {down: stacked[down].swapaxes(1, 2)}


def _transpose_square(tensors):
  # [32, 32], whose shape does not show it.
  name = f'{LAYER}self_attn.q_proj.weight'
  tensors[name] = tensors[name].T


def _lose_bias(tensors):
  for part in 'qkv':
    del tensors[f'{LAYER}self_attn.{part}_proj.bias']


def _zero_bias(tensors):
  tensors[f'{LAYER}self_attn.q_proj.bias'][:] = 0


def _add_one(tensors):
  tensors[f'{LAYER}input_layernorm.weight'] += 1


def _pair_rope_rows(tensors):
  for part in 'qk':
    name = f'{LAYER}self_attn.{part}_proj.weight'
    heads = tensors[name].reshape(-1, 2, 4, 32)
    tensors[name] = heads.swapaxes(1, 2).reshape(-1, 32)


def _swap_rope_halves(tensors):
  name = f'{LAYER}self_attn.q_proj.weight'
  heads = tensors[name].reshape(-1, 2, 4, 32)
  tensors[name] = heads[:, ::-1].reshape(-1, 32)


def _misread_scales(tensors):
  # As if the scales of blocks of 128 x 128 had been left out.
  for e in range(8):
    tensors[f'{EXPERTS}{e}.up_proj.weight'] *= np.float32(37.5)


def _exchange_layers(tensors):
  for name in [n for n in tensors if n.startswith(LAYER)]:
    other = name.replace('.1.', '.0.', 1)
    tensors[name], tensors[other] = tensors[other], tensors[name]


WRONG = {
  'experts_permuted': (
    _permute_experts,
    'model.layers.1.mlp.experts: experts 3 and 4 are exchanged, but the '
    'router is not',
  ),
  'experts_reversed': (_reverse_experts, 'experts are in reverse order'),
  'expert_twice': (
    _repeat_expert,
    'expert 4 of left more than once, expert 5 nowhere',
  ),
  'router_permuted': (
    _permute_router,
    "mlp.gate.weight: router's rows are exchanged|rows 0 and 1 are exchanged",
  ),
  'halves_swapped': (_swap_halves, 'experts: gate and up are exchanged$'),
  'interleaved': (_interleave, 'experts: gate and up by turns in right'),
  'transposed': (_transpose_stacked, 'experts: down: transposed'),
  'transposed_square': (_transpose_square, 'q_proj.weight: transposed'),
  'norm_plus_one': (
    _add_one,
    "input_layernorm.weight: right is left's plus one",
  ),
  'rope_halves': (
    _pair_rope_rows,
    'q_proj.weight: rope: rows of a pair are half a head apart in left, '
    'neighbours in right',
  ),
  'rope_exchanged': (
    _swap_rope_halves,
    'q_proj.weight: rope: the halves of each head are exchanged',
  ),
  'scales_misread': (
    _misread_scales,
    'experts: up: right is 37.5 times left: a scale misread',
  ),
}


class TestWrongConversions:
  @pytest.mark.parametrize('name', WRONG)
  def test_each_is_named_in_a_line(self, find_lines, name):
    change, text = WRONG[name]
    lines, result = find_lines(change)
    assert result.verdict == 'fail'
    assert re.search(text, lines[0]), lines
    # And nothing else is.
    assert len(lines) == 1 + (name == 'rope_halves'), lines

  @pytest.mark.parametrize('name', WRONG)
  def test_each_is_named_after_a_rounding(self, find_lines, name):
    change, text = WRONG[name]

    def round_too(tensors):
      tensors = change(tensors) or tensors
      return {n: a.astype(BFLOAT16) for n, a in tensors.items()}

    lines, result = find_lines(round_too)
    assert result.verdict == 'fail'
    assert any(re.search(text.rstrip('$'), line) for line in lines), lines

  @pytest.mark.parametrize('fields', [{}, dict(attention_bias=False)])
  def test_a_bias_that_is_lost(self, find_lines, fields):
    lines, result = find_lines(_lose_bias, attention_bias=True, fields=fields)
    assert result.verdict == 'fail'
    assert any('q_proj.bias: bias lost: absent in right' in n for n in lines)

  def test_a_bias_of_zeros(self, find_lines):
    (line,), _ = find_lines(_zero_bias, attention_bias=True)
    assert line == 'model.layers.1.self_attn.q_proj.bias: zeros in right'

  @pytest.mark.parametrize(
    ('name', 'text'),
    [('down_proj', 'down'), ('gate_proj up_proj', 'gate and up')],
  )
  def test_square_experts_transposed(self, find_lines, name, text):
    # Shapes do not show it.
    def change(tensors):
      for e, last in itertools.product(range(8), name.split()):
        key = f'{EXPERTS}{e}.{last}.weight'
        tensors[key] = tensors[key].T

    (line,), _ = find_lines(change, moe_intermediate_size=32)
    assert line == f'model.layers.1.mlp.experts: {text}: transposed'

  def test_layers_exchanged(self, find_lines):
    lines, _ = find_lines(_exchange_layers)
    name = 'model.layers.0.self_attn.q_proj.weight'
    assert f'{name}: right holds that of layer 1 of left' in lines

  def test_rope_rows_of_compressed_keys(self, find_lines):
    def change(tensors):
      name = f'{LAYER}self_attn.kv_a_proj_with_mqa.weight'
      tensors[name][16:] = tensors[name][[16, 18, 17, 19]]

    (line,), _ = find_lines(change, 'deepseek_v3', rope_interleave=True)
    assert 'rope: rows of a pair are neighbours in left, half' in line

  def test_scales_of_blocks(self, find_lines):
    rng = np.random.default_rng(0)

    def change(tensors):
      name = f'{LAYER}self_attn.o_proj.weight'
      factors = rng.uniform(0.5, 4, size=(2, 4)).astype(np.float32)
      tensors[name] *= np.kron(factors, np.ones((16, 8), np.float32))

    quantised = dict(quant_method='fp8', weight_block_size=[16, 8])
    fields = dict(quantization_config=quantised)
    (line,), _ = find_lines(change, fields=fields)
    assert 'each block of 16 x 8 of right is left times a factor' in line

  def test_scales_of_a_float8_folder_left_out(self, tmp_path):
    left = weight_testing.write_folder(tmp_path / 'left')
    quantised = weight_testing.write_quantised(left, tmp_path / 'float8')
    right = weight_testing.write_changed(
      quantised, tmp_path / 'right', weight_testing.drop_scales
    )
    result = _compare(left, quantised)
    assert (result.kind, result.verdict) == ('rounded', 'pass')
    assert 'rounded to float8 by blocks' in weight_report.conclude(result)
    for reference in (left, quantised):
      result = _compare(reference, right)
      assert result.verdict == 'fail'
      lines = weight_report.list_lines(result)
      assert any(
        'layers.0-1.mlp.experts: down: each block of 8 x 8' in line
        for line in lines
      ), lines

  def test_gate_and_up_of_a_shared_expert(self, find_lines):
    def change(tensors):
      prefix = f'{LAYER}mlp.shared_expert.'
      gate, up = (f'{prefix}{name}.weight' for name in MATRICES[:2])
      tensors[gate], tensors[up] = tensors[up], tensors[gate]

    lines, _ = find_lines(change, 'qwen2_moe')
    assert len(lines) == 2
    assert 'right holds mlp.shared_expert.up_proj.weight of left' in lines[0]

  def test_what_is_not_known_is_measured(self, find_lines):
    def change(tensors):
      tensors[f'{EXPERTS}2.up_proj.weight'][3, 5] += 1

    (line,), _ = find_lines(change)
    assert 'expert 2: up: 1 of 512 elements differ' in line

  def test_a_bfloat16_that_was_cut(self, find_lines):
    def change(tensors):
      for name, array in tensors.items():
        bits = array.view(np.uint32) & np.uint32(0xFFFF0000)
        tensors[name] = bits.view(np.float32)

    lines, result = find_lines(change)
    assert result.verdict == 'fail'
    assert all(line.endswith('cut to bfloat16') for line in lines), lines

  def test_a_number_of_the_config(self, find_lines):
    lines, _ = find_lines(lambda tensors: None, fields=dict(rope_theta=5e5))
    assert lines == ['config: rope_theta: 10000.0 in left, 500000.0 in right']


class TestRightConversions:
  def test_the_same_values(self, find_lines):
    lines, result = find_lines(lambda tensors: None)
    assert (lines, result.kind, result.verdict) == ([], 'same', 'pass')
    assert weight_report.conclude(result).endswith(
      'pass: a right conversion: the same values'
    )

  def test_stacked_experts(self, find_lines):
    lines, result = find_lines(
      functools.partial(weight_testing.stack_experts, layer=1)
    )
    assert (lines, result.kind) == ([], 'same')

  def test_rounded_to_bfloat16(self, find_lines):
    _, result = find_lines(
      lambda tensors: {n: a.astype(BFLOAT16) for n, a in tensors.items()}
    )
    assert (result.kind, result.verdict) == ('rounded', 'pass')
    assert weight_report.conclude(result).endswith(
      'pass: a right conversion, rounded to bfloat16'
    )

  def test_experts_and_router_moved_alike(self, find_lines):
    order = [1, 2, 3, 4, 5, 6, 7, 0]
    lines, result = find_lines(
      lambda tensors: _move_experts(tensors, order, router=True)
    )
    assert (result.kind, result.verdict) == ('same function', 'pass')
    assert 'experts are shifted' in ' '.join(lines)

  def test_hidden_units_moved_alike(self, find_lines):
    def change(tensors):
      order = np.random.default_rng(0).permutation(16)
      for name in MATRICES:
        key = f'{EXPERTS}2.{name}.weight'
        rows = name != 'down_proj'
        tensors[key] = tensors[key][order] if rows else tensors[key][:, order]

    (line,), result = find_lines(change)
    assert result.kind == 'same function'
    assert 'expert 2: hidden units in another order' in line

  def test_rope_rows_as_the_configs_say(self, find_lines):
    def change(tensors):
      for layer in range(2):
        prefix = f'model.layers.{layer}.self_attn.'
        name = f'{prefix}kv_a_proj_with_mqa.weight'
        tensors[name][16:] = tensors[name][[16, 18, 17, 19]]
        heads = tensors[f'{prefix}q_b_proj.weight'].reshape(4, 12, 16)
        heads[:, 8:] = heads[:, [8, 10, 9, 11]]

    _, result = find_lines(
      change,
      'deepseek_v3',
      rope_interleave=True,
      fields=dict(rope_interleave=False),
    )
    assert (result.kind, result.verdict) == ('same function', 'pass')


class TestCommand:
  def test_a_table_and_its_rows(self, tmp_path, capsys):
    left = weight_testing.write_folder(tmp_path / 'left')
    right = weight_testing.write_changed(
      left, tmp_path / 'right', _permute_experts
    )
    options = [f'--left_model={left}', f'--right_model={right}']
    path = tmp_path / 'out.json'
    code = main.main(['compare', *options, f'--json={path}'])
    assert code == cli.NO_PARITY
    text = capsys.readouterr().out
    assert 'experts 3 and 4 are exchanged, but the router is not' in text
    assert text.endswith('fail: a wrong conversion\n')
    report = json.loads(path.read_text())
    wrong = [r['name'] for r in report['tensors'] if r['kind'] == 'wrong']
    assert wrong == ['model.layers.1.mlp.experts']
    assert main.main(['compare', options[0], f'--right_model={left}']) == 0

  @pytest.mark.parametrize(
    ('words', 'text'),
    [
      (['--left_model={}'], 'right_model: expected a folder with'),
      (
        ['--left_model={}/no', '--right_model={}'],
        'left_model: expected a Hugging Face folder',
      ),
      (['--left_model={}', '--right_model={}', '--seed=3'], 'seed: expected'),
    ],
  )
  def test_a_wrong_request_is_a_line(self, tmp_path, capsys, words, text):
    left = weight_testing.write_folder(tmp_path / 'left')
    words = [word.format(left) for word in words]
    assert main.main(['compare', *words]) == cli.WRONG_REQUEST
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert text in line and len(line) < 400


@pytest.mark.parametrize('name', ['modelopt', 'int4'])
def test_a_folder_in_codes_is_compared_with_one_in_float(tmp_path, seed, name):
  # given: a folder, and its weights as codes and scales
  draw = packed_codes_testing.DRAWS[name]
  folder, files, plain = packed_codes_testing.write_folders(
    tmp_path, seed, draw
  )
  # then: they are the same
  assert _compare(plain, folder).kind in ('same', 'rounded')
  # when: one scale doubles
  scale = 'model.layers.0.self_attn.q_proj.weight_scale'
  files[scale] = files[scale].copy()
  files[scale][0] = files[scale][0].astype(np.float32) * 2
  model_testing.save(folder / 'model.safetensors', files)
  # then
  wrong = [r.name for r in _compare(plain, folder).rows if r.kind == 'wrong']
  assert wrong == ['model.layers.0.self_attn.q_proj.weight']
