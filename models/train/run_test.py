"""Runs on disk: the same bits resumed or not, and wrong requests refused."""

import dataclasses
import sys

import numpy as np
import pytest

from hpmoe.backend_ascend import frontends
from hpmoe.models import config as config_lib
from hpmoe.models import mindspore as mindspore_models
from hpmoe.models.checkpoint import convert
from hpmoe.models.checkpoint import tokenizer
from hpmoe.models.train import folder_testing
from hpmoe.models.train import plots
from hpmoe.models.train import run
from hpmoe.models.train import settings as settings_lib

_STEPS = 6


@pytest.fixture(scope='module')
def settings(tmp_path_factory) -> settings_lib.Settings:
  return folder_testing.settings(tmp_path_factory.mktemp('config'), 'framework')


@pytest.fixture(scope='module')
def straight(settings, tmp_path_factory):
  """Returns the folder and the result of a run in one piece."""
  folder = tmp_path_factory.mktemp('straight')
  return folder, run.train(settings, folder, _STEPS, save_every=3)


class TestTrain:
  @pytest.mark.slow
  def test_the_loss_falls_from_that_of_even_guesses(self, straight):
    _, result = straight
    assert len(result.losses) == _STEPS
    assert result.losses[0] == pytest.approx(np.log(258), abs=0.2)
    assert result.losses[-1] < result.losses[0] - 0.3
    assert np.isfinite(result.held_out)

  @pytest.mark.slow
  def test_loads_count_every_choice(self, straight, settings):
    _, result = straight
    config = config_lib.load(settings.model)
    choices = settings.batch * settings.length * config.num_experts_per_tok
    assert result.loads.shape == (_STEPS, 1, config.num_experts)
    assert (result.loads.sum(axis=-1) == choices).all()

  def test_writes_a_model_that_is_read_again(self, straight):
    folder, _ = straight
    weights = convert.read(folder / run.MODEL)
    assert weights.config.num_hidden_layers == 1
    assert set(weights.load()) == set(weights.specs)
    assert tokenizer.load(folder / run.MODEL).encode('a').ids == [97]

  def test_without_mindspore_the_extra_is_named(
    self, settings, tmp_path, monkeypatch
  ):
    # Modules that were imported with MindSpore would answer without it.
    for package, name in (
      (frontends, 'mindspore_layer'),
      (mindspore_models, 'device'),
    ):
      module = f'{package.__name__}.{name}'
      monkeypatch.delitem(sys.modules, module, raising=False)
      monkeypatch.delattr(package, name, raising=False)
    monkeypatch.setitem(sys.modules, 'mindspore', None)
    other = dataclasses.replace(settings, framework='mindspore')
    with pytest.raises(ImportError, match=r"pip install 'hyperparallel-moe\[m"):
      run.train(other, tmp_path / 'run', 1)
    assert not (tmp_path / 'run').exists()

  def test_the_bias_moves_by_its_rate_alone(self, straight, settings):
    folder, _ = straight
    name = 'model.layers.0.mlp.gate.e_score_correction_bias'
    bias = convert.read(folder / run.MODEL).read(name)
    assert np.any(bias != 0)
    np.testing.assert_allclose(
      bias / settings.bias_rate, np.round(bias / settings.bias_rate), atol=1e-3
    )
    assert np.abs(bias).max() <= _STEPS * settings.bias_rate * (1 + 1e-6)


class TestResume:
  def test_gives_the_bits_of_a_run_in_one_piece(
    self, straight, settings, tmp_path
  ):
    # given a run that stopped, after it had noted one step too many
    run.train(settings, tmp_path, 3, save_every=3)
    with open(tmp_path / 'metrics.jsonl', 'a') as file:
      file.write('{"step": 3, "lo')
    # when
    resumed = run.train(settings, tmp_path, _STEPS, save_every=3, resume=True)
    # then
    folder, result = straight
    assert resumed.first == 3
    assert folder_testing.state(tmp_path) == folder_testing.state(folder)
    for name in ('metrics.jsonl', 'model/model.safetensors'):
      assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()
    np.testing.assert_array_equal(resumed.losses, result.losses)
    assert resumed.held_out == result.held_out

  @pytest.mark.parametrize(
    'changes, text',
    [
      (dict(seed=1), 'seed: expected 0, as the run has it, got 1'),
      (dict(moe='oracle'), "moe: expected 'framework', as the run has it"),
      (dict(batch=4), 'batch: expected 2, as the run has it, got 4'),
    ],
  )
  def test_another_run_is_refused(self, straight, settings, changes, text):
    other = dataclasses.replace(settings, **changes)
    with pytest.raises(ValueError, match=text):
      run.train(other, straight[0], _STEPS + 1, resume=True)

  def test_a_run_that_is_done_has_its_model_written_again(
    self, straight, settings
  ):
    folder, result = straight
    model = folder / 'model/model.safetensors'
    before = model.read_bytes()
    model.unlink()
    repeat = run.train(settings, folder, _STEPS, resume=True)
    assert repeat.first == _STEPS
    assert model.read_bytes() == before
    np.testing.assert_array_equal(repeat.losses, result.losses)

  def test_fewer_steps_than_are_done(self, straight, settings):
    with pytest.raises(ValueError, match='steps: expected at least the 6'):
      run.train(settings, straight[0], _STEPS - 1, resume=True)

  def test_nothing_to_resume(self, settings, tmp_path):
    with pytest.raises(ValueError, match='resume: expected a state in'):
      run.train(settings, tmp_path, 3, resume=True)

  def test_a_folder_with_a_run(self, straight, settings):
    with pytest.raises(ValueError, match='out: expected --resume or a folder'):
      run.train(settings, straight[0], _STEPS)


class TestRefuses:
  @pytest.mark.parametrize('size', [0, 16, 100])
  def test_a_text_shorter_than_a_sequence(self, settings, tmp_path, size):
    # of 100 bytes the part that is held out is too short
    (tmp_path / 'text').write_bytes(b'a' * size)
    short = dataclasses.replace(settings, text=str(tmp_path / 'text'))
    with pytest.raises(ValueError, match='text: expected at least 17 tokens'):
      run.train(short, tmp_path / 'out', 3)
    assert not (tmp_path / 'out').exists()

  def test_a_model_without_room_for_bytes(self, settings, tmp_path):
    model = folder_testing.config(tmp_path, 'deepseek_tiny', vocab_size=256)
    small = dataclasses.replace(settings, model=model)
    with pytest.raises(ValueError, match='vocab_size: expected at least 258'):
      run.train(small, tmp_path / 'out', 3)

  @pytest.mark.parametrize(
    'changes, text',
    [
      (dict(batch=0), 'batch: expected a positive integer, got 0'),
      (dict(learning_rate=-1.0), 'learning_rate: expected at least 0'),
      (dict(clip=float('nan')), 'clip: expected at least 0, got nan'),
      (dict(framework='torch'), "framework: expected one of .* got 'torch'"),
    ],
  )
  def test_settings(self, settings, changes, text):
    with pytest.raises(ValueError, match=text):
      dataclasses.replace(settings, **changes)


class TestPlots:
  def test_are_pictures(self, straight, tmp_path):
    _, result = straight
    plots.write(
      tmp_path,
      result.losses,
      result.loads,
      result.moe_layers,
      result.bigram,
      result.held_out,
    )
    for name in (plots.LOSS, plots.LOAD):
      data = (tmp_path / name).read_bytes()
      assert data.startswith(b'\x89PNG') and len(data) > 5000
