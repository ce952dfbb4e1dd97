"""Perplexity, top-1 agreement and KL of two sides on a text."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hpmoe.models.checkpoint import convert
from hpmoe.models.jax import decoder
from hpmoe.models.train import text as text_lib
from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import main
from hpmoe.parity_tests.compare import scores
from hpmoe.parity_tests.compare.weights import weight_testing

VOCABULARY = 11
WINDOWS = np.random.default_rng(0).integers(0, VOCABULARY, (5, 7))[::-1]


def _make_side(seed: int, factor: float = 1.0) -> scores.Logits:
  """Returns logits that depend on the token before."""
  table = np.random.default_rng(seed).normal(size=(VOCABULARY, VOCABULARY))
  return lambda tokens: factor * table[tokens]


class TestMeasure:
  def test_the_numbers_are_those_of_their_formulas(self):
    sides = _make_side(1), _make_side(2)
    measured = scores.measure(WINDOWS, 2, *sides)
    # Each token after the first, by itself.
    logs = [
      np.log(np.exp(side(WINDOWS)) / np.exp(side(WINDOWS)).sum(-1)[..., None])
      for side in sides
    ]
    nats, best, apart = [[], []], [], {}
    for window, place in np.ndindex(5, 6):
      left, right = (side[window, place] for side in logs)
      for number, side in enumerate((left, right)):
        nats[number].append(-side[WINDOWS[window, place + 1]])
      best.append(left.argmax() == right.argmax())
      terms = [math.exp(a) * (a - b) for a, b in zip(left, right)]
      apart[window, place + 1] = sum(terms)
    assert measured.tokens == 30
    assert measured.left_nats == pytest.approx(np.mean(nats[0]), rel=1e-12)
    assert measured.right_nats == pytest.approx(np.mean(nats[1]), rel=1e-12)
    assert measured.agreement == pytest.approx(np.mean(best))
    mean = np.mean(list(apart.values()))
    assert measured.divergence == pytest.approx(mean, rel=1e-12)
    assert measured.place == max(apart, key=apart.__getitem__)
    assert measured.place[0] >= 2  # after the first batch
    assert measured.largest == pytest.approx(max(apart.values()))

  def test_a_side_is_nothing_from_itself(self):
    side = _make_side(1, 30.0)
    measured = scores.measure(WINDOWS, 3, side, side)
    assert (measured.agreement, measured.divergence) == (1.0, 0.0)

  def test_windows_do_not_overlap(self):
    windows = scores.cut_windows(np.arange(23), 5, 3)
    assert windows.tolist() == np.arange(15).reshape(3, 5).tolist()
    with pytest.raises(ValueError, match='score_windows: expected a text of'):
      scores.cut_windows(np.arange(4), 5, 3)


class TestFolders:
  def test_nats_are_the_loss_of_the_decoder(self, tmp_path):
    model = weight_testing.write_folder(tmp_path / 'model')
    weights = convert.read(model)
    params = weights.load()
    side = scores.compute_logits(weights.config, params)
    tokens = np.arange(24, dtype=np.int32).reshape(2, 12) * 7 % 48
    measured = scores.measure(tokens, 1, side, side)
    arrays = jax.tree.map(jnp.asarray, params)
    logits, _ = decoder.forward(arrays, weights.config, jnp.asarray(tokens))
    loss = float(decoder.next_token_loss(logits, jnp.asarray(tokens)))
    assert measured.left_nats == pytest.approx(loss, rel=1e-5)

  @pytest.mark.slow
  def test_the_command_runs_both_folders(self, tmp_path, capsys):
    left = weight_testing.write_folder(tmp_path / 'left', vocab_size=256)

    def change(tensors):
      tensors['model.layers.1.mlp.gate.weight'] *= -1

    right = weight_testing.write_changed(left, tmp_path / 'right', change)
    path = tmp_path / 'out.json'
    words = [f'--left_model={left}', f'--right_model={right}']
    words += ['--score_windows=3', '--sequence=16', f'--json={path}']
    assert main.main(['compare', *words]) == cli.NO_PARITY
    text = capsys.readouterr().out
    assert 'perplexity' in text and 'of 45 tokens' in text
    report = json.loads(path.read_text())
    assert report['scores']['tokens'] == 45
    assert report['scores']['divergence'] > 0
    apart = {m['module']: m['distance'] for m in report['modules']}
    assert apart['model.layers.0'] == 0
    assert apart['model.norm'] > 1e-3

  def test_a_folder_that_cannot_run_is_a_line(self, tmp_path, capsys):
    left = weight_testing.write_folder(tmp_path / 'left', vocab_size=256)

    def change(tensors):
      del tensors['model.norm.weight']

    right = weight_testing.write_changed(left, tmp_path / 'right', change)
    words = [f'--left_model={left}', f'--right_model={right}']
    assert main.main(['compare', *words, '--score_windows=3']) == cli.NO_PARITY
    assert 'not run: ' in capsys.readouterr().out

  @pytest.mark.slow
  def test_the_command_scores_two_layers_of_a_model(self, tmp_path, capsys):
    model = weight_testing.write_folder(tmp_path / 'model', vocab_size=256)
    path = tmp_path / 'out.json'
    words = [f'--model={model}', '--score_windows=2', '--sequence=16']
    words += ['--direction=forward', '--right=jax:framework', f'--json={path}']
    assert main.main(['compare', *words, f'--out={tmp_path}/out']) == cli.PARITY
    assert 'top-1 agreement: 100.00 % of 30 tokens' in capsys.readouterr().out
    report = json.loads(path.read_text())['scores']
    assert report['divergence'] < 1e-9
    # And it is of the text's first windows.
    weights = convert.read(model)
    side = scores.compute_logits(weights.config, weights.load())
    tokens = np.frombuffer(text_lib.SHIPPED.read_bytes()[:32], np.uint8)
    windows = tokens.astype(np.int32).reshape(2, 16)
    expected = scores.measure(windows, 2, side, side).left_nats
    assert report['left_nats'] == pytest.approx(expected, rel=1e-5)
