"""Two layers in one model that is trained, by `hpmoe compare --steps`."""

import json

import jax
import jax.numpy as jnp
import pytest

from hpmoe.models.jax import moe
from hpmoe.models.train import folder_testing
from hpmoe.parity_tests.commands import main


@pytest.fixture
def model(tmp_path) -> str:
  """Returns the path of the config of a model of two layers with experts."""
  fields = dict(num_hidden_layers=2, initializer_range=0.1)
  return folder_testing.config(tmp_path, 'mixtral_tiny', **fields)


def _compare(folder, model: str, *options: str) -> tuple[int, dict]:
  out = folder / 'out.json'
  sizes = ('--batch=1', '--sequence=16')
  paths = (f'--json={out}', f'--out={folder}/out')
  command = ['compare', f'--model={model}', *sizes, *paths, *options]
  return main.main(command), json.loads(out.read_text())


# What a user's layer has of each layer's `w_down`, by place in the model.
_FIRST_WEIGHTS: list[jax.Array] = []


def stale_weights(x, topk_ids, topk_weights, w_gate_up, w_down, policy):
  """A user's layer that keeps the weights of the first call of a layer."""
  for first in _FIRST_WEIGHTS:
    if jnp.array_equal(first, w_down):
      break
    # Weights move little in a step, and layers are far apart.
    if jnp.max(jnp.abs(first - w_down)) < 0.01:
      w_down = first
      break
  else:
    _FIRST_WEIGHTS.append(jax.lax.stop_gradient(w_down))
  return moe.framework(x, topk_ids, topk_weights, w_gate_up, w_down, policy)


def wrong_gradient(x, *rest):
  """A user's layer whose gradient of x is 1 % too large."""
  return moe.framework(_grows(x), *rest)


@jax.custom_jvp
def _grows(x):
  return x


@_grows.defjvp
def _jvp(primals, tangents):
  return primals[0], tangents[0] * 1.01


class TestTraining:
  @pytest.mark.slow
  @pytest.mark.parametrize(
    'dtype', [pytest.param('float32', marks=pytest.mark.slow), 'bfloat16']
  )
  def test_a_right_layer_parts_by_rounding_alone(
    self, tmp_path, model, capsys, dtype
  ):
    png = tmp_path / 'apart.png'
    options = ('--steps=2', f'--dtype={dtype}', f'--png={png}')
    code, report = _compare(tmp_path, model, *options)
    assert code == 0
    assert report['wrong_layer'] is None and report['later_layer'] is None
    assert [step['number'] for step in report['steps']] == [0, 1]
    # Rounding is predicted to part them, and did.
    norms = [
      [s[k]['modules']['model.norm'] for s in report['steps']]
      for k in ('measured', 'predicted')
    ]
    text = capsys.readouterr().out
    if dtype == 'float32':  # bfloat16 hides it in so small a model
      assert all(norms[0]) and all(norms[1])
      assert (
        report['rounding_alone']
        and 'rounding explains every difference' in text
      )
    assert 'step 1: all experts are correct on their inputs' in text
    assert png.read_bytes().startswith(b'\x89PNG')

  @pytest.mark.slow
  def test_what_is_wrong_from_a_step_on_is_named(self, tmp_path, model, capsys):
    _FIRST_WEIGHTS.clear()
    right = f'--right=jax:{__name__}:stale_weights'
    code, report = _compare(
      tmp_path, model, '--steps=3', '--left=jax:framework', right
    )
    assert code == 1
    assert report['wrong_layer'] is None and report['later_layer'] == 0
    assert [step['number'] for step in report['steps']] == [0, 1]
    assert report['later_check']['first_failure']['stage'] == 'y'
    text = capsys.readouterr().out
    assert 'step 1: layer 0 is wrong' in text
    assert 'fail: layer 0 is wrong in step 1' in text
    assert 'rounding alone' not in text

  @pytest.mark.slow
  def test_a_wrong_gradient_in_one_layer_is_named(self, tmp_path, model):
    fault = ('--fault=weight_grad_twice', '--fault_layer=0')
    code, report = _compare(tmp_path, model, '--steps=3', *fault)
    assert code == 1
    assert report['wrong_layer'] == 0 and not report['steps']
    stage = report['check']['first_failure']['stage']
    assert stage in ('d_w_down', 'd_w_gate_up')

  @pytest.mark.slow
  def test_small_errors_of_gradients_are_not_called_rounding(
    self, tmp_path, model, capsys
  ):
    right = f'--right=jax:{__name__}:wrong_gradient'
    _, report = _compare(
      tmp_path, model, '--steps=1', '--left=jax:framework', right
    )
    assert not report['rounding_alone']
    assert 'rounding alone' not in capsys.readouterr().out

  @pytest.mark.slow
  def test_the_same_side_stays_the_same(self, tmp_path, model, capsys):
    sides = ('--left=jax:host', '--right=jax:host')
    code, report = _compare(tmp_path, model, '--steps=2', *sides)
    assert code == 0
    for step in report['steps']:
      assert not step['measured']['loss'] and not step['predicted']['loss']
    assert 'the same bits: nothing is predicted' in capsys.readouterr().out
