"""DeepGEMM's layers: sizes, what a GPU moves, and times without a fit."""

import numpy as np
import pytest

from hpmoe.backend_ascend.simulator.machines import machine as machine_lib
from hpmoe.backend_ascend.simulator.reproduce import deepgemm
from hpmoe.backend_ascend.simulator.reproduce import score


def test_nothing_is_fitted_and_each_row_has_a_roofline():
  witness = deepgemm.WITNESS
  assert not witness.fits
  assert {fig.tag for fig in witness.load()['h200'].figures.values()} == {
    'published',
    'assumed',
  }
  assert len(witness.rows) == 22
  machines = witness.load()
  assert set(witness.roofline(machines)) == {row.name for row in witness.rows}


def test_a_machine_is_an_h100_with_other_memory():
  h200, h100 = machine_lib.load('h200'), machine_lib.load('hopper_dgx')
  assert {n for n in h200.figures if h200[n] != h100[n]} == {'hbm', 'memory'}


def test_links_carry_fp8_there_and_bfloat16_back():
  # Given a layer, when it runs, then each row that leaves its rank crosses two
  # links there with a byte an element, and two back with two; with 8 bytes of
  # weight and origin.
  machine = machine_lib.load('h200')
  simulation = deepgemm.run(machine, 'Flash', 64)
  ids = deepgemm.topk_ids(deepgemm.config('Flash', 64))
  owner = ids // (256 // deepgemm.RANKS)
  remote = (owner != np.arange(deepgemm.RANKS)[:, None, None]).sum()
  total_bytes = sum(r.bytes for r in simulation.resources if 'gress' in r.name)
  assert total_bytes == pytest.approx(2 * remote * (4096 * (1 + 2) + 8))


@pytest.mark.parametrize('model', deepgemm.MODELS)
def test_a_published_time_is_met(model):
  # Of 1024 tokens: a tenth off at most, by the figures of data sheets alone.
  machine = machine_lib.load('h200')
  published = deepgemm.TIMES[model][deepgemm.TOKENS.index(1024)]
  seconds = deepgemm.run(machine, model, 1024).total
  assert 1e6 * seconds == pytest.approx(published, rel=0.12)


def test_the_goal_is_of_large_layers_alone():
  witness = deepgemm.WITNESS
  values = {
    row.name: row.published * (1.07 if row.group == 'large' else 2)
    for row in witness.rows
  }
  result = score.score(witness, values, witness.load())
  assert result.holds
  values = {name: 1.02 * value for name, value in values.items()}
  assert not score.score(witness, values, witness.load()).holds
