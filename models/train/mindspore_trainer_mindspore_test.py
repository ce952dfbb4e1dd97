"""Training in MindSpore: the same bits resumed or not, and JAX's arithmetic."""

import dataclasses
from unittest import mock

import jax
import jax.numpy as jnp
import mindspore as ms
import numpy as np
import pytest

from hpmoe.models import config as config_lib
from hpmoe.models import routed as routed_lib
from hpmoe.models.checkpoint import convert
from hpmoe.models.jax import decoder as jax_decoder
from hpmoe.models.mindspore import decoder as mindspore_decoder
from hpmoe.models.mindspore import device
from hpmoe.models.train import balance
from hpmoe.models.train import folder_testing
from hpmoe.models.train import jax_trainer
from hpmoe.models.train import mindspore_trainer
from hpmoe.models.train import run
from hpmoe.models.train import settings as settings_lib
from hpmoe.models.train import start as start_lib

_UNIT = 2.0**-24
_STEPS = 4


@pytest.fixture(scope='module', autouse=True)
def _quick():
  device.use('cpu', 'host')
  with mock.patch.object(run, '_HELD_OUT_BATCHES', 1):
    yield


@pytest.fixture(scope='module')
def settings(tmp_path_factory) -> settings_lib.Settings:
  return folder_testing.settings(
    tmp_path_factory.mktemp('config'),
    'host',
    framework='mindspore',
    freeze='embed',
  )


@pytest.fixture(scope='module')
def straight(settings, tmp_path_factory):
  """Returns the folder and the result of a run in one piece."""
  folder = tmp_path_factory.mktemp('straight')
  return folder, run.train(settings, folder, _STEPS, save_every=2)


class TestRun:
  @pytest.mark.slow
  def test_the_loss_falls_and_loads_count_every_choice(
    self, straight, settings
  ):
    _, result = straight
    config = config_lib.load(settings.model)
    choices = settings.batch * settings.length * config.num_experts_per_tok
    assert result.losses[0] == pytest.approx(np.log(258), abs=0.2)
    assert result.losses[-1] < result.losses[0] - 0.1
    assert (result.loads.sum(axis=-1) == choices).all()
    assert np.isfinite(result.held_out)

  @pytest.mark.slow
  def test_resumed_it_has_the_bits_of_one_piece(
    self, straight, settings, tmp_path
  ):
    folder, result = straight
    run.train(settings, tmp_path, 2, save_every=2)
    resumed = run.train(settings, tmp_path, _STEPS, save_every=2, resume=True)
    assert resumed.first == 2
    np.testing.assert_array_equal(resumed.losses, result.losses)
    assert folder_testing.state(tmp_path) == folder_testing.state(folder)

  def test_the_first_step_is_that_of_jax(self, straight, settings, tmp_path):
    # Given: the same weights and batch; their loss differs by rounding alone,
    # of some thousand additions in all.
    _, result = straight
    in_jax = dataclasses.replace(settings, framework='jax', moe='framework')
    of_jax = run.train(in_jax, tmp_path, 1)
    np.testing.assert_array_equal(result.loads[0], of_jax.loads[0])
    assert result.losses[0] == pytest.approx(of_jax.losses[0], rel=1000 * _UNIT)

  def test_all_parameters_move_but_those_that_are_frozen(
    self, straight, settings
  ):
    before = start_lib.from_settings(settings).first()
    after = convert.read(straight[0] / run.MODEL).load()
    unmoved = {n for n in before if np.array_equal(before[n], after[n])}
    assert unmoved == {'model.embed_tokens.weight'}

  def test_the_oracle_is_refused(self, settings, tmp_path):
    wrong = dataclasses.replace(settings, moe='oracle')
    with pytest.raises(ValueError, match="^moe: expected one of .* 'oracle'"):
      run.train(wrong, tmp_path, 1)


class TestOptimizer:
  @pytest.mark.parametrize('clip', [1e-3, 1e3])
  def test_is_that_of_optax(self, settings, clip, seed):
    # Given: a matrix and a vector, and gradients of four steps.
    settings = dataclasses.replace(settings, clip=clip)
    rng = np.random.default_rng(seed)
    draw = lambda: {
      name: rng.normal(size=shape).astype(np.float32)
      for name, shape in (('a', (5, 3)), ('b', (7,)))
    }
    params = draw()
    optimizer = jax_trainer.optimizer(settings)

    @jax.jit
    def stepped(grads, state, params):
      changes, state = optimizer.update(grads, state, params)
      return jax.tree.map(jnp.add, params, changes), state

    jax_params = {name: jnp.asarray(value) for name, value in params.items()}
    state = optimizer.init(jax_params)
    zeros = {name: np.zeros_like(value) for name, value in params.items()}
    moments = dict(count=np.int32(0), mu=zeros, nu=dict(zeros))
    for step in range(4):
      grads = draw()
      # When.
      jax_params, state = stepped(grads, state, jax_params)
      params, moments = mindspore_trainer.updated(
        settings,
        {name: ms.Tensor(value) for name, value in params.items()},
        {name: ms.Tensor(value) for name, value in grads.items()},
        moments,
      )
      # Then: a dozen roundings of a change, and one of the sum, each step.
      rate = mindspore_trainer.learning_rate(settings, step)
      for name, value in params.items():
        room = (step + 1) * _UNIT * (12 * 4 * rate + np.abs(value))
        assert (np.abs(value - np.asarray(jax_params[name])) <= room).all()


class TestBalance:
  @pytest.mark.parametrize('name', ['deepseek_tiny', 'qwen3_moe_tiny'])
  def test_is_that_of_jax(self, name, seed):
    config = config_lib.load(name)
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(1, 12, config.num_experts)).astype(np.float32)
    ids = rng.random(scores.shape).argsort(-1)[..., :2].astype(np.int32)
    rest = dict(x=None, topk_weights=None, loads=None, y=None)
    mindspore_loss, jax_loss = (
      balance.loss(
        lib.OPERATORS,
        config,
        routed_lib.Routed(scores=array(scores), topk_ids=array(ids), **rest),
        3,
      )
      for lib, array in (
        (mindspore_decoder, ms.Tensor),
        (jax_decoder, jnp.asarray),
      )
    )
    # Positive terms: as many roundings as there are additions, at most.
    roundings = 2 * (scores.size + config.num_experts)
    assert float(mindspore_loss) == pytest.approx(
      float(jax_loss), rel=roundings * _UNIT
    )
