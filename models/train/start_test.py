"""Runs that go on from a folder of weights, with its tokenizer."""

import dataclasses
import json

import numpy as np
import pytest

from hpmoe.models.checkpoint import convert
from hpmoe.models.train import folder_testing
from hpmoe.models.train import frozen
from hpmoe.models.train import run
from hpmoe.models.train import settings as settings_lib
from hpmoe.models.train import start as start_lib

_STEPS = 20


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  return folder_testing.write(tmp_path_factory.mktemp('from') / 'model')


@pytest.fixture(scope='module')
def settings(folder) -> settings_lib.Settings:
  return settings_lib.Settings(
    source=str(folder),
    freeze='embed, *.kv_b_proj.*',
    moe='framework',
    batch=2,
    length=16,
    warmup=3,
  )


@pytest.fixture(scope='module')
def straight(settings, tmp_path_factory):
  out = tmp_path_factory.mktemp('straight')
  return out, run.train(settings, out, _STEPS, save_every=10)


class TestFrom:
  @pytest.mark.slow
  def test_the_loss_falls_and_is_of_tokens(self, straight):
    _, result = straight
    assert result.unit == 'token'
    assert result.losses[0] == pytest.approx(np.log(256), abs=0.2)
    assert result.losses[-3:].mean() < result.losses[0] - 0.5

  @pytest.mark.slow
  def test_resumed_it_has_the_bits_of_one_piece(
    self, straight, settings, tmp_path
  ):
    run.train(settings, tmp_path, 10, save_every=10)
    run.train(settings, tmp_path, _STEPS, save_every=10, resume=True)
    resumed_state, straight_state = map(
      folder_testing.state, (tmp_path, straight[0])
    )
    assert resumed_state == straight_state

  def test_frozen_parameters_keep_their_bits_and_others_move(
    self, straight, folder
  ):
    before = convert.read(folder, 'float32').load()
    after = convert.read(straight[0] / run.MODEL).load()
    unmoved = {n for n in before if before[n].tobytes() == after[n].tobytes()}
    assert unmoved == {
      'model.embed_tokens.weight',
      'model.layers.0.self_attn.kv_b_proj.weight',
    }

  def test_the_model_has_the_tokenizer_and_converts_back(
    self, straight, folder, tmp_path
  ):
    folder_written = straight[0] / run.MODEL
    name = 'tokenizer.json'
    assert (folder_written / name).read_bytes() == (folder / name).read_bytes()
    convert.write(tmp_path / 'back', convert.read(folder_written, 'bfloat16'))
    fields = [
      json.loads((f / 'config.json').read_text())
      for f in (folder, tmp_path / 'back')
    ]
    assert fields[0] == fields[1]

  def test_another_folder_is_another_run(self, straight, settings):
    other = dataclasses.replace(settings, source=None)
    with pytest.raises(ValueError, match='^from: expected .*, got None'):
      run.train(other, straight[0], _STEPS, resume=True)

  def test_without_a_tokenizer_it_needs_room_for_bytes(self, folder, tmp_path):
    weights = convert.read(folder)
    convert.write(tmp_path / 'bare', dataclasses.replace(weights, extras={}))
    bare = settings_lib.Settings(source=str(tmp_path / 'bare'))
    with pytest.raises(ValueError, match='vocab_size: expected at least 258'):
      start_lib.from_settings(bare)

  def test_a_config_has_the_tokenizer_beside_it(self, folder):
    beside = settings_lib.Settings(model=str(folder / 'config.json'))
    assert start_lib.from_settings(beside).encoding.unit == 'token'


class TestFrozen:
  NAMES = ('model.embed_tokens.weight', 'a.mlp.gate.weight', 'a.norm.weight')

  @pytest.mark.parametrize(
    'patterns_text, want',
    [
      ('', set()),
      ('embed', {NAMES[0]}),
      ('router, a.norm.*', {*NAMES[1:]}),
      ('norms', {NAMES[2]}),
    ],
  )
  def test_names(self, patterns_text, want):
    assert frozen.names(self.NAMES, patterns_text) == want

  @pytest.mark.parametrize(
    'patterns_text, message',
    [
      ('embd', "freeze: expected one of .*, got 'embd'"),
      ('embed,head', "got 'head'"),
      ('*', 'freeze: expected a parameter left, got'),
    ],
  )
  def test_refuses(self, patterns_text, message):
    with pytest.raises(ValueError, match=message):
      frozen.names(self.NAMES, patterns_text)
