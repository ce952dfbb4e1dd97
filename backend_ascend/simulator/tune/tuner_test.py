"""The space as data, the model against the simulator, and the search."""

import dataclasses

import numpy as np
import pytest

from hpmoe.backend_ascend.compiler.orders import model
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.simulator.machines import machine as machine_lib
from hpmoe.backend_ascend.simulator.tune import space
from hpmoe.backend_ascend.simulator.tune import tuner
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import precision

# Large enough that its GEMMs take most of the time, as the paper's do.
CONFIG = config_testing.make_config(r=2, t=2048, e=8, k=4, d=2048, f=1024)
# Mean error of UniEP's model against exhaustive search (arXiv 2604.19241).
PUBLISHED_MODEL_ERROR = 0.038
POLICY = precision.PrecisionPolicy(storage='bfloat16')
LEFT_OUT = ('put_rows', 'vector_rows', 'token_block', 'aiv', 'lead')
CHOICES = {n: words for n, words in space.GRID.items() if n not in LEFT_OUT} | {
  'tile': {w: space.GRID['tile'][w] for w in ('64x128', '128x128', '128x256')}
}


def routing(seed: int) -> np.ndarray:
  """Returns experts of all tokens; seed 0: each as often."""
  sizes = CONFIG.dims()
  shape = (sizes['R'], sizes['T'], sizes['K'])
  if seed == 0:
    token = np.arange(sizes['R'] * sizes['T'])[:, None]
    step = np.arange(sizes['K'])
    return ((token + step) % sizes['E']).reshape(shape).astype(np.int32)
  rng = np.random.default_rng(seed)
  scores = rng.random((*shape[:2], sizes['E'])) * np.arange(2, sizes['E'] + 2)
  return np.argsort(-scores, axis=-1)[..., : sizes['K']].astype(np.int32)


def build_tuner(
  *seeds: int, target: str = 'ascend', machine: str = 'ascend_a3'
) -> tuner.Tuner:
  return tuner.Tuner(
    tuner.Layer(
      CONFIG,
      POLICY,
      machine_lib.load(machine),
      {f'case {seed}': routing(seed) for seed in seeds},
      target,
    )
  )


@pytest.fixture(scope='module')
def search():
  return build_tuner(0)


def sample(grid: space.Grid, count: int) -> list[int]:
  rng = np.random.default_rng(5)
  return sorted(rng.choice(len(grid.table), count, replace=False).tolist())


class TestSpace:
  def test_its_table_is_what_each_point_says(self):
    # Given the whole grid, made choice by choice, for experts whose rows fill
    # no whole blocks, then the columns of points are those of their options.
    search = build_tuner(0, 3)
    assert search.layer.expert_rows % 64
    grid = space.grid(CONFIG, search.published, space.GRID, search.runs)
    assert len(grid.table) >= 200_000
    for point in sample(grid, 40):
      columns = model.columns(CONFIG, grid.options(point))
      assert columns == grid.table[point].tolist()

  def test_tiles_that_the_target_does_not_run_are_no_points(self):
    # Given tiles of as many sums as L0C holds, of one column of fractals more,
    # and as many with higher tiles of weights, then an NPU runs the first.
    tile = space.GRID['tile']
    tiles = {
      'all of L0C': tile['128x256'],
      'wider': {**tile['128x256'], 'col_block': 272},
      'weights too high': {**tile['128x256'], 'weight_rows': None},
    }
    for target, ran in (('host', list(tiles)), ('ascend', ['all of L0C'])):
      runs = build_tuner(0, target=target).runs
      assert list(space.drop_tiles({'tile': tiles}, runs)['tile']) == ran

  def test_what_the_target_does_not_run_is_not_timed(self, search):
    best = space.replace_fields(search.base, space.GRID['tile']['128x256'])
    higher = space.replace_fields(
      best, space.BESIDE['weight_rows']['col_block']
    )
    pareto = tuner.Pareto(search)
    more_cores = dataclasses.replace(best, num_aic=25)
    for options in (best, higher, more_cores):
      pareto.add(options)
    assert list(pareto.schedules) == [best]

  def test_without_a_point_it_is_refused(self, search):
    with pytest.raises(ValueError, match='space: expected a point'):
      space.grid(CONFIG, search.base, CHOICES, lambda fields: False)

  def test_the_published_system_is_a_point(self, search):
    assert model.columns(CONFIG, search.published)[0] == 0  # by expert
    assert search.published.order.comm_share == 0
    for name in space.GRID:
      words = set(space.GRID[name])
      if name not in ('put_rows', 'token_block'):  # of a whole row block
        assert space.label(search.published, name) in words
    labels = {name: space.label(search.published, name) for name in space.NAMES}
    for name in ('put_rows', 'vector_rows', 'token_block'):
      assert labels[name] == 'row_block'
    for name in ('lag', 'lead', 'chain_rows'):
      assert labels[name] == 'all'
    assert 'none' not in labels.values()
    assert len(tuner.SUBSPACE['lag']) == 2

  @pytest.mark.parametrize('name', space.NAMES)
  def test_options_of_a_choice_differ(self, name):
    options = [
      dict(fields)
      for choices in (space.GRID, space.BESIDE)
      for fields in choices.get(name, {}).values()
    ]
    assert len(options) > 1
    assert len({tuple(fields) for fields in options}) == 1


class TestModel:
  @pytest.mark.slow
  def test_is_near_the_simulator_and_ranks_as_it_does(self, search):
    # Given points all over a subspace, when both time them, then the model is
    # near, and orders them alike.
    grid = space.grid(CONFIG, search.base, CHOICES, search.runs)
    schedules = [search.time(grid.options(p)) for p in sample(grid, 24)]
    predicted = np.array([s.predicted['case 0'] for s in schedules])
    real = np.array([s.total('case 0') for s in schedules])
    assert np.abs(predicted / real - 1).mean() <= PUBLISHED_MODEL_ERROR
    # No order of 10,000 drawn at random agrees as well.
    rng = np.random.default_rng(7)
    correlations = [
      tuner._spearman(rng.permutation(predicted), real) for _ in range(10_000)
    ]
    assert tuner._spearman(predicted, real) > max(correlations)

  def test_times_rise_with_the_rows_of_the_busiest_rank(self):
    search = build_tuner(0, 3)
    table = model.table(CONFIG, [search.published])
    even, skewed = search.predict(table)[:, 0]
    busiest = search.traffic['case 3'].rows.sum()
    assert busiest > search.traffic['case 0'].rows.sum()
    assert skewed > even


FLOOR_CHOICES = CHOICES | {
  'vector_rows': space.GRID['vector_rows'],
  'chain_rows': {'512': {'chain_rows': 512}, 'all': {'chain_rows': None}},
}


class TestFloor:
  @pytest.mark.parametrize('seed', [0, 3])
  @pytest.mark.parametrize(
    'machine', ['ascend_a3', 'ascend_a2', 'ascend_a3_pto_stages', 'host']
  )
  def test_no_simulated_pass_ends_before_it(self, machine, seed):
    # Given points all over the space, with vector tiles and chains that the
    # search tries beside it, when they are simulated for experts with equal and
    # with odd numbers of rows, then each takes as long as its floor or longer.
    search = build_tuner(seed, machine=machine, target='host')
    grid = space.grid(CONFIG, search.base, FLOOR_CHOICES, search.runs)
    points = sample(grid, 8)
    floors = search.bound_below(grid.table[points])[0]
    real = [search.time(grid.options(p)).total(f'case {seed}') for p in points]
    assert (floors <= np.array(real) * (1 + 1e-12)).all()

  def test_is_the_time_of_cubes_that_never_wait(self, search):
    # Given the best tiles, then the floor says most of the simulated time.
    best = space.replace_fields(search.base, space.GRID['tile']['128x256'])
    floor = search.bound_below(model.table(CONFIG, [best]))[0, 0]
    assert 0.7 < floor / search.time(best).total('case 0') < 1

  @pytest.mark.parametrize(
    'slow',
    [
      dict(cube_bf16=1.0),
      dict(aic_write=1.0),
      dict(aiv_read=1.0),
      dict(vector=1.0),
      dict(aic_task=1e-3),
      dict(product=1e-3),
      dict(put_head=1e-3),
    ],
    ids=lambda slow: next(iter(slow)),
  )
  def test_is_reached_where_only_one_figure_takes_time(self, slow):
    # Given a machine on which all but one figure of a core costs next to
    # nothing, when one core of each unit runs a rank, then it is busy with that
    # figure to the end: the floor is the simulated time.
    machine = machine_lib.load('ascend_a3')
    values = {}
    for name in machine.figures:
      scale = {'s': 1e-9, 'B/s': 1e9, 'flop/s': 1e9, 'op/s': 1e9}
      values[name] = machine[name] * scale.get(machine.figures[name].unit, 1)
    machine = machine.with_figures(**(values | slow))
    layer = dataclasses.replace(build_tuner(0).layer, machine=machine)
    search = tuner.Tuner(layer)
    order = dataclasses.replace(search.base.order, comm_share=0.0)
    best = dataclasses.replace(search.base, num_aic=1, num_aiv=1, order=order)
    floor = search.bound_below(model.table(CONFIG, [best]))[0, 0]
    ratio = floor / search.time(best).total('case 0')
    assert 1 - 1e-6 < ratio <= 1 + 1e-12

  def test_rows_of_codes_have_none(self):
    search = build_tuner(0)
    weights, rows = layout.QUANTISED[1]
    coded = dataclasses.replace(POLICY, quantised=weights, rows=rows)
    table = model.table(CONFIG, [search.base])
    layer = dataclasses.replace(search.layer, forward=coded)
    backward = tuner.Tuner(layer).bound_below(table)
    assert 0 < backward < search.bound_below(table)

  def test_relayed_rows_are_not_excluded(self, search):
    pareto = tuner.Pareto(search)
    pareto.add(space.replace_fields(search.base, space.GRID['tile']['128x256']))
    small = space.replace_fields(search.base, space.GRID['tile']['64x64'])
    assert tuner._is_excluded(pareto, small)
    relayed = dataclasses.replace(small, relay=True)
    assert not tuner._is_excluded(pareto, relayed)

  def test_a_case_whose_fastest_may_change_is_not_excluded(self):
    # Given two routings and a point that is never simulated, then it is left
    # out only if its floor is above the fastest of both.
    search = build_tuner(0, 3)
    pareto = tuner.Pareto(search)
    pareto.add(space.replace_fields(search.base, space.GRID['tile']['128x256']))
    grid = space.grid(CONFIG, search.base, CHOICES, search.runs)
    floors = search.bound_below(grid.table)
    fastest = np.array(
      [
        [s.total('case 0'), s.total('case 3')]
        for s in pareto.schedules.values()
      ]
    ).min(0)
    excluded = pareto.excludes(grid.table)
    assert 0 < excluded.sum() < len(excluded)
    assert (excluded == (floors >= fastest[:, None]).all(0)).all()


class TestSearch:
  def test_finds_what_is_faster_than_the_published_point(self):
    # Given the best points of the model, when they are simulated, then one is
    # faster than the published system, and no slower than any that was tried.
    search = build_tuner(0, target='host')
    grid = space.grid(CONFIG, search.base, CHOICES, search.runs)
    pareto = tuner.Pareto(search)
    for point in tuner.candidates(search, grid, 4):
      pareto.add(grid.options(point))
    confirmed = pareto.best()
    tuner.refine(pareto, [CHOICES], 1)
    best = pareto.best()
    published = search.time(search.published)
    assert best.total('case 0') < published.total('case 0')
    assert best.total('case 0') <= confirmed.total('case 0')
    assert best.total('case 0') == min(
      schedule.total('case 0') for schedule in pareto.schedules.values()
    )
    assert search.bound(best.options)['case 0'].seconds < best.total('case 0')
    for row in tuner.ablate(search, best):
      seconds = row.seconds.get('case 0')
      if seconds is not None:
        assert row.gain == pytest.approx(seconds / best.total('case 0') - 1)

  def test_neighbours_that_a_floor_excludes_are_not_simulated(self, search):
    # Given a best point, when a far smaller tile and a choice that the model
    # does not know are its neighbours, then only the latter is simulated.
    pareto = tuner.Pareto(search)
    tile = space.GRID['tile']
    best = space.replace_fields(search.base, tile['128x128'])
    small = space.replace_fields(best, tile['64x64'])
    other_start = space.replace_fields(best, {'order.rotate': False})
    pareto.add(best)
    assert tuner._is_excluded(pareto, small)
    assert search.time(small).slower(pareto.best()) > 0
    rotate = {'false': {'order.rotate': False}}
    choices = {'tile': {'64x64': tile['64x64']}, 'rotate': rotate}
    tuner.refine(pareto, [choices], 1)
    assert set(pareto.schedules) == {best, other_start}

  def test_under_uncertainty_the_mean_regret_is_least(self):
    search = build_tuner(0, 3)
    pareto = tuner.Pareto(search)
    for fields in CHOICES['put_aiv'].values():
      for grain in CHOICES['event_grain'].values():
        pareto.add(space.replace_fields(search.base, {**fields, **grain}))
    regret = {
      options: np.mean(list(pareto.regret(schedule).values()))
      for options, schedule in pareto.schedules.items()
    }
    best = pareto.best()
    assert regret[best.options] == min(regret.values())
    assert all(value >= 0 for value in pareto.regret(best).values())

  def test_relay_is_left_out_where_the_target_does_not_run_it(
    self, search, monkeypatch
  ):
    relayed = dataclasses.replace(search.base, relay=True)
    monkeypatch.setattr(search, 'runs', lambda fields: not fields['relay'])
    with pytest.raises(ValueError, match='ascend runs, got .* relay True'):
      search.time(relayed)
    host = build_tuner(0, target='host')
    assert host.time(relayed).total('case 0') > 0

  def test_time_of_a_schedule_is_that_of_its_compiled_image(self, search):
    from hpmoe.backend_ascend.compiler import compiler
    from hpmoe.backend_ascend.simulator import simulate

    options = dataclasses.replace(
      search.base, order=granularity.Order(comm_share=0.5)
    )
    passes = search.time(options).simulated_seconds['case 0']
    image = compiler.compile_forward(CONFIG, POLICY, options).image
    ran = simulate.simulate(image, search.layer.machine, routing(0))
    assert passes['forward'] == ran.total


def test_ranks_that_agree_correlate():
  assert tuner._spearman(
    np.array([1.0, 2, 2, 9]), np.array([0.0, 1, 1, 5])
  ) == pytest.approx(1)
  assert tuner._spearman(
    np.array([1.0, 2, 3]), np.array([3.0, 2, 1])
  ) == pytest.approx(-1)
