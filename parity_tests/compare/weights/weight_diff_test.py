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
from hpmoe.parity_tests.compare.weights import wrong_testing

BFLOAT16 = ml_dtypes.bfloat16


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


class TestWrongConversions:
  @pytest.mark.parametrize('name', wrong_testing.WRONG)
  def test_each_is_named_in_a_line(self, find_lines, name):
    change, text = wrong_testing.WRONG[name]
    lines, result = find_lines(change)
    assert result.verdict == 'fail'
    assert re.search(text, lines[0]), lines
    # And nothing else is.
    assert len(lines) == 1 + (name == 'rope_halves'), lines

  @pytest.mark.parametrize('name', wrong_testing.WRONG)
  def test_each_is_named_after_a_rounding(self, find_lines, name):
    change, text = wrong_testing.WRONG[name]

    def round_too(tensors):
      tensors = change(tensors) or tensors
      return {n: a.astype(BFLOAT16) for n, a in tensors.items()}

    lines, result = find_lines(round_too)
    assert result.verdict == 'fail'
    assert any(re.search(text.rstrip('$'), line) for line in lines), lines

  @pytest.mark.parametrize('fields', [{}, dict(attention_bias=False)])
  def test_a_bias_that_is_lost(self, find_lines, fields):
    lines, result = find_lines(
      wrong_testing.lose_bias, attention_bias=True, fields=fields
    )
    assert result.verdict == 'fail'
    assert any('q_proj.bias: bias lost: absent in right' in n for n in lines)

  def test_a_bias_of_zeros(self, find_lines):
    (line,), _ = find_lines(wrong_testing.zero_bias, attention_bias=True)
    assert line == 'model.layers.1.self_attn.q_proj.bias: zeros in right'

  @pytest.mark.parametrize(
    ('name', 'text'),
    [('down_proj', 'down'), ('gate_proj up_proj', 'gate and up')],
  )
  def test_square_experts_transposed(self, find_lines, name, text):
    # Shapes do not show it.
    def change(tensors):
      for e, last in itertools.product(range(8), name.split()):
        key = f'{wrong_testing.EXPERTS}{e}.{last}.weight'
        tensors[key] = tensors[key].T

    (line,), _ = find_lines(change, moe_intermediate_size=32)
    assert line == f'model.layers.1.mlp.experts: {text}: transposed'

  def test_layers_exchanged(self, find_lines):
    lines, _ = find_lines(wrong_testing.exchange_layers)
    name = 'model.layers.0.self_attn.q_proj.weight'
    assert f'{name}: right holds that of layer 1 of left' in lines

  def test_rope_rows_of_compressed_keys(self, find_lines):
    def change(tensors):
      name = f'{wrong_testing.LAYER}self_attn.kv_a_proj_with_mqa.weight'
      tensors[name][16:] = tensors[name][[16, 18, 17, 19]]

    (line,), _ = find_lines(change, 'deepseek_v3', rope_interleave=True)
    assert 'rope: rows of a pair are neighbours in left, half' in line

  def test_scales_of_blocks(self, find_lines):
    rng = np.random.default_rng(0)

    def change(tensors):
      name = f'{wrong_testing.LAYER}self_attn.o_proj.weight'
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
      prefix = f'{wrong_testing.LAYER}mlp.shared_expert.'
      gate, up = (
        f'{prefix}{name}.weight' for name in wrong_testing.MATRICES[:2]
      )
      tensors[gate], tensors[up] = tensors[up], tensors[gate]

    lines, _ = find_lines(change, 'qwen2_moe')
    assert len(lines) == 2
    assert 'right holds mlp.shared_expert.up_proj.weight of left' in lines[0]

  def test_what_is_not_known_is_measured(self, find_lines):
    def change(tensors):
      tensors[f'{wrong_testing.EXPERTS}2.up_proj.weight'][3, 5] += 1

    (line,), _ = find_lines(change)
    assert 'expert 2: up: 1 of 512 elements differ' in line

  def test_bits_that_left_lacks(self, tmp_path):
    # Given a norm of ones, and a noise on it that bfloat16 loses,
    name = 'model.layers.1.self_attn.q_norm.weight'
    noise = 2.0**-10 * np.random.default_rng(0).uniform(-1, 1, 8)

    def write(side, values):
      return weight_testing.write_changed(
        weight_testing.write_folder(tmp_path / f'base_{side}'),
        tmp_path / side,
        lambda tensors: tensors.update({name: values.astype(np.float32)}),
      )

    left, right = write('left', np.ones(8)), write('right', 1 + noise)
    # then no conversion of left makes it, and one of right makes left.
    result = _compare(left, right)
    assert (result.verdict, weight_report.list_lines(result)) == (
      'fail',
      [f'{name}: right has bits that left lacks: left rounded to bfloat16'],
    )
    assert _compare(right, left).verdict == 'pass'

  def test_bits_that_one_expert_of_left_lacks(self, tmp_path):
    # Given values of bfloat16 in float32, but in expert 3 of right,
    right = weight_testing.write_folder(tmp_path / 'right')
    rounded = weight_testing.write_changed(
      right,
      tmp_path / 'left',
      lambda tensors: {
        n: a.astype(BFLOAT16).astype(np.float32) for n, a in tensors.items()
      },
    )
    names = f'{wrong_testing.EXPERTS}3.'
    source = weight_testing.read_tensors(right / weight_testing.FILE)
    candidate = weight_testing.write_changed(
      rounded,
      tmp_path / 'candidate',
      lambda tensors: tensors.update(
        {n: a for n, a in source.items() if n.startswith(names)}
      ),
    )
    # then it is no conversion of left.
    result = _compare(rounded, candidate)
    (line,) = weight_report.list_lines(result)
    assert result.verdict == 'fail' and 'bits that left lacks: expert 3' in line

  def test_a_folder_that_is_narrower_than_its_source(self, tmp_path):
    right = weight_testing.write_folder(tmp_path / 'right')
    left = weight_testing.write_changed(
      right,
      tmp_path / 'left',
      lambda tensors: {n: a.astype(BFLOAT16) for n, a in tensors.items()},
    )
    assert _compare(left, right).verdict == 'pass'

  def test_one_row_with_a_factor(self, find_lines):
    name = f'{wrong_testing.LAYER}mlp.gate.weight'

    def change(tensors):
      tensors[name][3] *= 1.5

    (line,), _ = find_lines(change)
    assert line == (
      f"{name}: row 3 of right is 1.5 times left's, the others are equal"
    )

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
      lambda tensors: wrong_testing.move_experts(tensors, order, router=True)
    )
    assert (result.kind, result.verdict) == ('same function', 'pass')
    assert 'experts are shifted' in ' '.join(lines)

  def test_hidden_units_moved_alike(self, find_lines):
    def change(tensors):
      order = np.random.default_rng(0).permutation(16)
      for name in wrong_testing.MATRICES:
        key = f'{wrong_testing.EXPERTS}2.{name}.weight'
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
      left, tmp_path / 'right', wrong_testing.permute_experts
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
        'left_model: expected a folder of Hugging Face',
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
