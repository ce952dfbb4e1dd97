"""A dumped run against its model: the first module that parts is named."""

import json
import pathlib

import jax.numpy as jnp
import numpy as np
import pytest

from hpmoe.models import golden_testing as golden
from hpmoe.models.checkpoint import convert
from hpmoe.models.checkpoint import expert_layout
from hpmoe.models.checkpoint import hf_folder
from hpmoe.models.jax import decoder
from hpmoe.parity_tests.case import tensor_files
from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import main
from hpmoe.parity_tests.compare import run_diff
from hpmoe.parity_tests.compare import run_dump
from hpmoe.parity_tests.compare import run_report
from hpmoe.parity_tests.compare import run_testing
from hpmoe.parity_tests.compare.weights import weight_testing
from hpmoe.parity_tests.compare.weights import wrong_testing
from hpmoe.reference import numerics

FAMILIES = (
  *('qwen3_moe', 'qwen2_moe', 'deepseek_v3', 'qwen3_next', 'gemma4_text'),
)
LAYER = 'model.layers.1'


@pytest.fixture(scope='module')
def folders(tmp_path_factory) -> dict[str, pathlib.Path]:
  """Returns a folder of weights of each family."""
  top = tmp_path_factory.mktemp('models')
  return {n: weight_testing.write_folder(top / n, n) for n in FAMILIES}


def _compare(model: pathlib.Path, dump: str) -> run_diff.Result:
  return run_diff.compare(
    convert.read(model), hf_folder.open_files(model), run_dump.open_dump(dump)
  )


def _change_run(folders, tmp_path, change, family='qwen3_moe') -> str:
  """Writes the dump of a run whose tensors `change` alters."""
  weights = convert.read(folders[family])
  tensors = run_testing.compute_run(weights.config, weights.load())
  change(tensors)
  return run_testing.write_dump(tmp_path / 'dump', tensors)


@pytest.mark.parametrize(
  ('name', 'present', 'path', 'expected'),
  [
    ('gemma_plain', 'router.proj', 'moe.router', 'router.proj'),
    ('gemma_plain', 'experts', 'moe.experts', 'experts'),
    ('mixtral_plain', 'mlp.gate', 'block_sparse_moe.gate', 'mlp.gate'),
    ('hunyuan_plain', 'mlp.gate.wg', 'mlp.gate', 'mlp.gate.wg'),
    ('hy_plain', 'mlp.gate', 'mlp.gate', 'mlp.gate'),
    ('qwen3_plain', 'mlp.experts', 'mlp.gate', 'mlp.gate'),
  ],
)
def test_modules_have_the_names_of_the_run(name, present, path, expected):
  # Given a dump by transformers' names,
  family = golden.config(name).family
  layer = 'model.layers.1'
  tensor = run_dump.DumpTensor(tensor_files.ArrayTensor(np.zeros(1)))
  dump = run_dump.RunDump(
    '', {(f'{layer}.{present}', 'output.0'): tensor}, family
  )
  # when a module of ours is looked for, then it is there, or keeps its name.
  assert dump.find_path(f'{layer}.{path}') == f'{layer}.{expected}'


class TestRightRuns:
  @pytest.mark.parametrize('family', FAMILIES)
  @pytest.mark.few(1)
  @pytest.mark.slow
  def test_rounding_alone_parts_it(self, folders, tmp_path, family):
    model = folders[family]
    dump = run_testing.dump_folder(tmp_path / 'dump', model)
    result = _compare(model, dump)
    parting = [r for r in result.rows if r.verdict != run_diff.ROUNDING]
    assert not parting
    assert result.verdict == 'pass'
    assert result.weights is not None and result.weights.kind == 'same'
    # What rounding explains is that of results and of what they are of.
    logits = result.rows[-1]
    assert logits.name == 'lm_head'
    assert 1.3 * 2.0**-24 / 3**0.5 < logits.rounding < 2.0**-22

  @pytest.mark.slow
  @pytest.mark.parametrize('family', FAMILIES)
  def test_the_steps_are_the_decoder(self, folders, family):
    weights = convert.read(folders[family])
    params = weights.load()
    with numerics.use_x64():
      wide = {n: jnp.asarray(a, jnp.float64) for n, a in params.items()}
      tokens = jnp.asarray(run_testing.TOKENS, jnp.int32)
      logits, _ = decoder.forward(wide, weights.config, tokens, moe='framework')
    tensors = run_testing.compute_run(weights.config, params)
    actual = tensors['lm_head', 'output.0']
    assert np.abs(actual - logits).max() < 1e-5 * np.abs(logits).max()

  def test_a_near_tie_is_no_wrong_choice(self, folders, tmp_path):
    # Given experts with the same scores, of which the run has the other,
    def change(tensors):
      gate = tensors[f'{LAYER}.mlp.gate.weight']
      gate[5] = gate[2]

    model = weight_testing.write_changed(
      folders['qwen3_moe'], tmp_path / 'model', change
    )

    def swap(tensors):
      ids = tensors[f'{LAYER}.mlp.experts', 'input.1']
      places = np.arange(8)
      places[[2, 5]] = [5, 2]
      tensors[f'{LAYER}.mlp.experts', 'input.1'] = places[ids]

    dump = _change_run(dict(tied=model), tmp_path, swap, 'tied')
    # when it is compared,
    rows = {row.name: row for row in _compare(model, dump).rows}
    # then no choice is wrong, though many tokens have another expert.
    row = rows[f'{LAYER}.mlp: choice of experts']
    assert row.alone > 0
    assert row.verdict == run_diff.ROUNDING


def _scale_norm(tensors):
  tensors[f'{LAYER}.input_layernorm', 'output.0'] *= np.float32(1.0001)


def _rotate_otherwise(tensors):
  # As if positions began at 1: no projection parts, attention does.
  tensors[f'{LAYER}.self_attn', 'output.0'][:, 1:] = tensors[
    f'{LAYER}.self_attn', 'output.0'
  ][:, :-1]


def _choose_otherwise(tensors):
  ids = tensors[f'{LAYER}.mlp.experts', 'input.1']
  ids[3] = (ids[3] + 1) % 8


def _weigh_twice(tensors):
  tensors[f'{LAYER}.mlp.experts', 'input.2'] **= 2


def _lose_expert(tensors):
  y = tensors[f'{LAYER}.mlp.experts', 'output.0']
  y[0, 5] = 0


def _lose_residual(tensors):
  tensors[f'{LAYER}.post_attention_layernorm', 'input.0'] = tensors[
    f'{LAYER}.self_attn', 'output.0'
  ]


def _scale_logits(tensors):
  tensors['lm_head', 'output.0'][..., 7] += np.float32(0.01)


WRONG = {
  'norm': (_scale_norm, f'{LAYER}.input_layernorm', ''),
  'rope': (_rotate_otherwise, f'{LAYER}.self_attn', ''),
  'choice': (_choose_otherwise, f'{LAYER}.mlp: choice of experts', 'token 3'),
  'weights': (
    _weigh_twice,
    f'{LAYER}.mlp: choice of experts, their weights',
    'their mean is',
  ),
  'experts': (_lose_expert, f'{LAYER}.mlp.experts', 'token 5 (of 24)'),
  'residual': (_lose_residual, f'{LAYER}: residual after attention', ''),
  'logits': (_scale_logits, 'lm_head', 'feature 7 (of 48)'),
}


class TestWrongRuns:
  @pytest.mark.parametrize('name', WRONG)
  @pytest.mark.few(3)
  def test_the_first_module_is_named(self, folders, tmp_path, name):
    change, module, note = WRONG[name]
    result = _compare(
      folders['qwen3_moe'], _change_run(folders, tmp_path, change)
    )
    assert result.verdict == 'fail'
    assert result.first is not None
    assert result.first.name == module
    assert note in result.first.note
    assert module in run_report.conclude(result).splitlines()[0]

  @pytest.mark.parametrize('name', wrong_testing.WRONG)
  @pytest.mark.few(2)
  def test_wrong_conversions_are_named_from_a_dump(
    self, folders, tmp_path, name
  ):
    # The run is of a wrong conversion of the folder.
    change, text = wrong_testing.WRONG[name]
    model = folders['qwen3_moe']
    if name == 'transposed':
      # Where F is not D, such a model cannot run.
      model = weight_testing.write_folder(
        tmp_path / 'model', 'qwen3_moe', moe_intermediate_size=32
      )
    wrong = weight_testing.write_changed(model, tmp_path / 'wrong', change)
    dump = run_testing.dump_folder(tmp_path / 'dump', wrong)
    result = _compare(model, dump)
    assert result.first is not None
    assert result.first.name.startswith(LAYER)
    report = run_report.conclude(result)
    assert text.split('|')[-1].rstrip('$') in report

  @pytest.mark.parametrize(
    ('module', 'rest', 'name'),
    [
      ('moe.routed_norm', 'output.0', 'post_feedforward_layernorm_2'),
      ('moe.router', 'input.0', 'router.proj: its norm'),
      ('self_attn.v_norm', 'output.0', 'self_attn.v_norm'),
    ],
  )
  @pytest.mark.few(1)
  def test_norms_of_gemma_are_modules(
    self, folders, tmp_path, module, rest, name
  ):
    # Given a run of Gemma-4 by transformers' names, of which one is wrong,
    model = folders['gemma4_text']
    weights = convert.read(model)
    tensors = run_testing.compute_run(weights.config, weights.load())
    tensors[f'{LAYER}.{module}', rest] *= np.float32(1.0001)
    family = weights.config.family
    renamed = {
      (expert_layout.rename(family, f'{path}.weight')[:-7], last): array
      for (path, last), array in tensors.items()
    }
    dump = run_testing.write_dump(tmp_path / 'dump', renamed)
    # when it is compared, then that one is named as the run names it.
    result = _compare(model, dump)
    assert result.first is not None
    assert result.first.name == f'{LAYER}.{name}'
    assert not [r for r in result.rows if r.verdict == run_diff.ABSENT]

  def test_a_bias_that_the_run_lacks(self, tmp_path):
    model = weight_testing.write_folder(
      tmp_path / 'model', 'qwen3_moe', attention_bias=True
    )
    weights = convert.read(model)
    params = weights.load()
    name = f'{LAYER}.self_attn.q_proj.bias'
    tensors = run_testing.list_weights(params)
    del tensors[f'{LAYER}.self_attn.q_proj', 'parameters.bias']
    params[name] = np.zeros_like(params[name])
    tensors |= run_testing.compute_run(weights.config, params)
    dump = run_testing.write_dump(tmp_path / 'dump', tensors)
    result = _compare(model, dump)
    assert result.first is not None
    assert result.first.name == f'{LAYER}.self_attn.q_proj'
    assert f'{name}: bias lost: absent in right' in run_report.conclude(result)


class TestCommand:
  def test_a_table_and_its_rows(self, folders, tmp_path, capsys):
    dump = _change_run(folders, tmp_path, _scale_norm)
    path = tmp_path / 'out.json'
    model = folders['qwen3_moe']
    words = [f'--right=dump:{dump}', f'--model={model}', f'--json={path}']
    assert main.main(['compare', *words]) == cli.NO_PARITY
    text = capsys.readouterr().out
    assert f'>  {LAYER}.input_layernorm' in text
    assert 'fail: the run is not of this model' in text
    report = json.loads(path.read_text())
    assert report['first'] == f'{LAYER}.input_layernorm'

  @pytest.mark.parametrize(
    ('words', 'text'),
    [
      (['--right=dump:{}'], 'model: expected a folder of Hugging Face'),
      (
        ['--right=dump:{}', '--model={}'],
        'right: expected a folder with a dump.json',
      ),
      (['--right=dump:{}', '--model={}', '--steps=3'], 'steps: expected none'),
    ],
  )
  def test_a_wrong_request_is_a_line(self, folders, capsys, words, text):
    words = [word.format(folders['qwen3_moe']) for word in words]
    assert main.main(['compare', *words]) == cli.WRONG_REQUEST
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert text in line
