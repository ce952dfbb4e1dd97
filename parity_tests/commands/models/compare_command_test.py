"""`hpmoe compare`: a fault in one layer of a model, found by one command."""

import csv
import json
import shlex

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hpmoe.backend_ascend.host.checks import faults
from hpmoe.models import config as config_lib
from hpmoe.models import golden_testing as golden
from hpmoe.models import init
from hpmoe.models.checkpoint import convert
from hpmoe.models.checkpoint import weights as weights_lib
from hpmoe.models.jax import moe
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.commands import main
from hpmoe.parity_tests.compare import metrics
from hpmoe.parity_tests.examples import fused_moe_grad

_SIZES = '--batch=1 --sequence=16'


@pytest.fixture
def model(tmp_path) -> str:
  """Returns the path of the config of a model of four layers, one dense."""
  small = dict(
    hidden_size=32,
    intermediate_size=32,
    moe_intermediate_size=16,
    n_routed_experts=8,
    num_experts_per_tok=2,
    initializer_range=0.1,
  )
  path = tmp_path / 'config.json'
  path.write_text(json.dumps(config_lib.load('deepseek_tiny').to_hf() | small))
  return str(path)


@pytest.fixture
def compare(tmp_path, model):
  """Returns a function of options, and of a model: exit code and report."""

  def run(options: str, model: str = model) -> tuple[int, dict]:
    out = tmp_path / 'out.json'
    files = f'--json={out} --out={tmp_path}/out'
    arguments = f'--model={model} {files} {_SIZES} {options}'
    code = main.main(['compare', *shlex.split(arguments)])
    return code, json.loads(out.read_text()) if out.exists() else {}

  return run


def _row(report: dict, name: str) -> dict:
  return next(row for row in report['rows'] if row['NPU Name'] == name)


class TestFaults:
  @pytest.mark.slow
  @pytest.mark.parametrize(
    'name',
    [
      'weight_grad_twice',  # both passes
      'dropped_tile',  # leaves NaN, which the next launch would refuse
      'swapped_experts',
      'lost_k_slot',
      'stale_row',
    ],
  )
  @pytest.mark.verdict_alone
  @pytest.mark.few(1)
  def test_layer_stage_and_tile_are_named(
    self, tmp_path, compare, name, capsys
  ):
    # given
    spec = next(s for s in faults.TABLE if s.name == name)
    backward = spec.direction == faults.Direction.BACKWARD
    direction = 'both' if backward else 'forward'
    # when
    code, report = compare(
      f'--fault={name} --fault_layer=2 --direction={direction}'
    )
    # then
    assert code == 1
    assert report['wrong_layer'] == 2
    first = report['check']['first_failure']
    assert first['stage'] == spec.stage
    assert isinstance(first['row_block'], int)
    assert isinstance(first['col_block'], int)
    assert report['first_difference'].startswith(
      'Module.model.layers.2.mlp.experts.0.'
    )
    output = capsys.readouterr().out
    assert f'>  {report["first_difference"]}' in output
    assert 'layer 1, its experts alone: within the rounding bound' in output
    assert f'first failure: {spec.stage} (' in output
    assert 'hpmoe check --input=' in output
    # and what it replays is the same
    replayed = tmp_path / 'again.json'
    replay = first['replay'].split()[1:]
    assert main.main([*replay, f'--json={replayed}']) == 1
    failure = json.loads(replayed.read_text())['first_failure']
    for name in ('stage', 'rank', 'expert', 'row_block', 'col_block', 'got'):
      assert failure[name] == first[name]

  @pytest.mark.slow
  def test_a_deadlock_names_its_layer(self, compare, capsys):
    options = '--fault=missing_signal --fault_layer=2 --direction=forward'
    assert compare(options)[0] == 3
    assert 'hpmoe compare: layer 2: deadlock: ' in capsys.readouterr().err


class TestSides:
  @pytest.mark.slow
  def test_host_is_within_its_bound_forward_and_backward(
    self, tmp_path, compare, capsys
  ):
    cases, table, png = (tmp_path / n for n in ('cases', 'csv', 'png'))
    code, report = compare(f'--csv={table} --cases={cases} --png={png}')
    assert code == 0
    assert [(o['layer'], o['wrong']) for o in report['layers']] == [
      (1, False),
      (2, False),
      (3, False),
    ]
    # What the first layer with experts reads has the same bits on both sides.
    read = 'Module.model.layers.1.mlp.experts.0.forward.input.0'
    assert _row(report, read)['same_bits']
    grad = 'Module.model.layers.1.mlp.experts.0.parameters_grad.w_down'
    assert float(_row(report, grad)['NPU l2norm']) > 0
    with open(table, newline='') as file:
      rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == metrics.COLUMNS
    assert len(rows) == len(report['rows'])
    assert png.read_bytes().startswith(b'\x89PNG')
    # Each layer is a case that a check takes.
    names = sorted(path.name for path in cases.iterdir())
    assert names == ['layer_1', 'layer_2', 'layer_3']
    capsys.readouterr()
    command = ('check', f'--case={cases}/layer_2', '--fault=swapped_experts')
    assert main.main([*command, '--direction=both']) == 1
    assert 'gate_up' in capsys.readouterr().out


framework = jax.jit(moe.framework, static_argnums=5)


def narrow_weights(x, topk_ids, topk_weights, *rest):
  """A user's layer that rounds the routing weights."""
  narrow = topk_weights.astype(jnp.bfloat16).astype(topk_weights.dtype)
  return framework(x, topk_ids, narrow, *rest)


def wrong(x, topk_ids, topk_weights, w_gate_up, w_down, policy):
  """A user's layer that is wrong by 0.1 % in three rows."""
  y = framework(x, topk_ids, topk_weights, w_gate_up, w_down, policy)
  return y.at[0, 5:8, 16:32].multiply(1.001)


def not_a_number(x, *rest):
  """A user's layer with a NaN in one token."""
  return framework(x, *rest).at[0, 3, 1].set(jnp.nan)


@jax.custom_jvp
def _half_its_gradient(x):
  return x


@_half_its_gradient.defjvp
def _half(primals, tangents):
  return primals[0], tangents[0] / 2


def wrong_gradient(x, *rest):
  """A user's layer that is right, but for the gradient of what it reads."""
  return framework(_half_its_gradient(x), *rest)


def raises(*arguments):
  del arguments
  raise RuntimeError('no device')


def of_numpy(x, *rest):
  return np.asarray(x)


def too_long(x, *rest):
  return jnp.concatenate([x, framework(x, *rest)])


class TestLayersOfUsers:
  RIGHT = f'--right=jax:{__name__}:'

  @pytest.mark.slow
  def test_a_fault_below_msprobes_limits_is_found(self, compare):
    code, report = compare(f'{self.RIGHT}wrong --direction=forward')
    assert code == 1
    name = 'Module.model.layers.1.mlp.experts.0.forward.output.0'
    assert report['first_difference'] == name
    assert _row(report, name)['Result'] == metrics.PASS
    assert report['wrong_layer'] == 1
    first = report['check']['first_failure']
    assert (first['stage'], first['token'] in (5, 6, 7)) == ('y', True)

  @pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
  @pytest.mark.slow
  def test_a_cast_of_routing_weights_is_named(self, compare, capsys, dtype):
    options = f'--dtype={dtype} --direction=forward'
    code, report = compare(f'{self.RIGHT}narrow_weights {options}')
    assert code == 1
    assert report['wrong_layer'] == 1 and not report['rounding_alone']
    output = capsys.readouterr().out
    assert 'as if routing_weight was rounded to bfloat16' in output
    # Its contract has no place for what lies between.
    assert 'to locate it more closely' not in output

  def test_nan_is_an_error_where_it_begins(self, compare, capsys):
    code, report = compare(f'{self.RIGHT}not_a_number --direction=forward')
    assert code == 1
    name = 'Module.model.layers.1.mlp.experts.0.forward.output.0'
    assert report['first_difference'] == name
    assert 'NPU has NaN' in _row(report, name)['Err_message']
    assert report['wrong_layer'] == 1
    assert 'y[0, 3, 1], token 3 of rank 0' in capsys.readouterr().out

  @pytest.mark.slow
  def test_a_gradient_is_followed_from_layer_to_layer(self, compare, capsys):
    code, report = compare(f'--left=jax:framework {self.RIGHT}wrong_gradient')
    assert code == 1
    name = 'Module.model.layers.3.mlp.experts.0.backward.output.0'
    assert report['first_difference'] == name
    flows = [f'layers.{n}.0.backward.input.0' for n in (3, 2, 1, 0)]
    flows = [_row(report, f'Module.model.{n}') for n in flows]
    far = [row['EucDist'] / row['Bench l2norm'] for row in flows]
    assert far[0] < 1e-5
    assert min(far[1:]) > 0.01, far
    ratios = ', '.join(f'layers.{n} {d:.2g}' for n, d in zip((3, 2, 1, 0), far))
    assert ratios in ' '.join(capsys.readouterr().out.split())

  @pytest.mark.parametrize(
    ('name', 'direction', 'code', 'text'),
    [
      ('raises', 'forward', 3, 'raises: RuntimeError: no device; given x [R, '),
      ('too_long', 'forward', 2, 'expected y float32 [1, 16, 32] of x [R, T, '),
      ('of_numpy', 'both', 3, '`hpmoe compare --direction=forward` needs no'),
    ],
  )
  @pytest.mark.few(1)
  def test_one_that_gives_no_answer_is_one_line(
    self, compare, capsys, name, direction, code, text
  ):
    options = f'{self.RIGHT}{name} --direction={direction}'
    assert compare(options)[0] == code
    # Of a busy machine, progress is told before it.
    assert text in capsys.readouterr().err.splitlines()[-1]


class TestNearTies:
  @pytest.mark.slow
  def test_another_choice_is_named_and_no_kernel_blamed(
    self, tmp_path, compare, capsys
  ):
    # given: of layer 1, experts in pairs whose scores are a rounding apart
    fields = config_lib.load('mixtral_tiny').to_hf() | dict(
      hidden_size=32,
      intermediate_size=16,
      num_hidden_layers=2,
      num_local_experts=8,
      num_experts_per_tok=3,
      head_dim=8,
      initializer_range=0.1,
    )
    config = config_lib.from_hf(fields)
    params = init.init(config)
    gate = params['model.layers.1.block_sparse_moe.gate.weight']
    gate[1::2] = np.nextafter(gate[::2], np.float32(np.inf))
    folder = tmp_path / 'model'
    convert.write(folder, weights_lib.of_parameters(config, params))
    # when
    code, report = compare('--direction=forward --sequence=128', str(folder))
    # then
    assert code == 1
    assert report['wrong_layer'] is None
    name = 'Module.model.layers.1.block_sparse_moe.experts.0.forward.input.1'
    assert report['first_difference'] == name
    assert 'near tie' in _row(report, name)['Err_message']
    output = capsys.readouterr().out
    assert 'near tie: scores agree within rounding' in output
    assert 'rounding explains every difference' in output
    assert report['rounding_alone']


_EXAMPLES = 'hpmoe.parity_tests.examples'


def y_alone(inputs, config, policy):
  """A user's function of `hpmoe check`: of its forward pass, y alone."""
  return dict(y=fused_moe_grad.moe(inputs, config, policy)['y'])


y_alone.backward = fused_moe_grad.moe.backward


class TestCandidates:
  """Whatever `hpmoe check` takes is a side."""

  def test_our_launch_cut_otherwise_both_ways(self, compare, capsys):
    # given: any cut gives the same bits
    side = "'--right=jax:--row_block=16 --col_block=32 --threads=1'"
    code, report = compare(f'--left=jax:host {side}')
    assert code == 0
    assert all(row['same_bits'] for row in report['rows'])
    assert not report['layers']
    assert 'pass: every tensor has the same bits' in capsys.readouterr().out

  @pytest.mark.slow
  def test_a_bug_of_a_function_is_located(self, tmp_path, compare, capsys):
    function = f'{_EXAMPLES}.fused_moe:fused_moe_with_a_bug'
    right = f'--right=jax:--candidate={function}'
    code, report = compare(f'{right} --direction=forward')
    assert code == 1 and report['wrong_layer'] == 1
    first = report['check']['first_failure']
    assert first['stage'] == 'gate_up'
    assert isinstance(first['row_block'], int)
    output = capsys.readouterr().out
    assert f'hpmoe check of --candidate={function} on what the layer' in output
    assert f'--input={tmp_path}/out/layer_1.safetensors' in output

  @pytest.mark.slow
  def test_backward_reads_what_forward_did_not_return(self, compare):
    code, report = compare(f'--right=jax:--candidate={__name__}:y_alone')
    assert code == 0
    assert [layer['wrong'] for layer in report['layers']] == [False] * 3
    assert _row(report, 'Module.model.layers.3.0.backward.input.0')


def without_a_bias(*arguments):
  """A user's layer that forgets one bias of one expert."""
  *rest, b_down = arguments
  return framework(*rest, b_down.at[0, 2].set(0))


class TestBiases:
  """GPT-OSS: biases, a clamped activation, experts that a file interleaves."""

  @pytest.fixture
  def biased(self, tmp_path) -> str:
    folder = tmp_path / 'gpt'
    changes = dict(vocab_size=256, swiglu_limit=1.0)
    config = config_lib.from_hf(golden.CONFIGS['gpt_clamped'] | changes)
    random = np.random.default_rng(0)
    params = {
      name: random.normal(0, 0.25, value.shape).astype(np.float32)
      for name, value in init.init(config).items()
    }
    convert.write(folder, weights_lib.of_parameters(config, params), 'hf')
    return str(folder)

  @pytest.mark.slow
  def test_a_folder_is_judged_both_ways(self, tmp_path, compare, biased):
    cases = tmp_path / 'cases'
    options = f'--left=jax:oracle --right=jax:framework --cases={cases}'
    code, report = compare(options, biased)
    assert code == 0, report['first_difference']
    assert [layer['wrong'] for layer in report['layers']] == [False] * 2
    for name in ('b_gate_up', 'b_down', 'w_down'):
      name = f'Module.model.layers.1.mlp.experts.0.parameters_grad.{name}'
      assert float(_row(report, name)['NPU l2norm']) > 0
    case = case_lib.Case.from_folder(f'{cases}/layer_1')
    assert (case.bias, case.activation) == (True, 'swiglu:limit=1:offset=1')

  @pytest.mark.slow
  def test_a_missing_bias_is_located(self, compare, biased):
    sides = f'--left=jax:framework --right=jax:{__name__}:without_a_bias'
    code, report = compare(f'{sides} --direction=forward', biased)
    assert code == 1 and report['wrong_layer'] == 0
    first = report['check']['first_failure']
    assert (first['stage'], first['lane']) == ('y', 'bounded')

  @pytest.mark.slow
  def test_the_default_is_a_layer_that_has_biases(self, compare, biased):
    code, report = compare('--direction=forward', biased)
    assert code == 0 and report['right'] == 'jax:framework'

  def test_the_megakernel_is_refused_in_one_line(self, compare, biased, capsys):
    assert compare('--right=jax:host', biased)[0] == 2
    message = capsys.readouterr().err
    assert message.count('\n') == 2  # it reads bytes, too
    assert "moe: expected 'framework' for experts with biases" in message
