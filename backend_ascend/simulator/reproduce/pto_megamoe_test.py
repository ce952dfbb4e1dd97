"""The megakernel's layer, knobs and judgement; the whole table is slow."""

import numpy as np
import pytest

from hpmoe.backend_ascend.compiler.orders import megamoe
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.simulator.machines import machine as machine_lib
from hpmoe.backend_ascend.simulator.reproduce import fit
from hpmoe.backend_ascend.simulator.reproduce import pto_megamoe
from hpmoe.backend_ascend.simulator.reproduce import score

Kind = layout.Kind
STAGE_MAJOR, EXPERT_MAJOR = pto_megamoe.STAGE_MAJOR, pto_megamoe.EXPERT_MAJOR


@pytest.fixture(scope='module')
def machine():
  return machine_lib.load(pto_megamoe.MACHINE)


@pytest.mark.parametrize('ep, tokens', [(8, 16), (16, 16), (8, 2048)])
def test_experts_are_dealt_in_turn(ep, tokens):
  # Given the generator's routing, then every expert has as many rows, tokens
  # are those that it makes, and those of lower halves come first.
  ids = pto_megamoe.topk_ids(ep, tokens)
  assert (np.bincount(ids.ravel()) == tokens * 8 // 16).all()
  round_robin = (np.arange(ep * tokens * 8) % (16 * ep)).reshape(ep, tokens, 8)
  for rank in range(ep):
    assert sorted(map(tuple, ids[rank])) == sorted(
      map(tuple, round_robin[rank])
    )
    late = ids[rank, :, 0] % 16 >= 8
    assert (np.diff(late.astype(int)) >= 0).all()


def test_knobs_are_those_of_the_shape():
  assert pto_megamoe.knobs(8, 16) == megamoe.Knobs(8, 3, 12)
  assert pto_megamoe.knobs(8, 2048) == megamoe.Knobs(16, 2, 13)
  assert pto_megamoe.knobs(16, 512) == megamoe.Knobs(16, 0, 11)


def test_all_cores_join_when_the_first_gemm_is_done(machine):
  # Given the knobs of EP8 at 128 tokens, when expert-major runs, then no AIC of
  # the first GEMM's group runs the second before its own first ends, and the
  # join is not before the authors' expert.
  simulation = pto_megamoe.run(machine, 8, 128, EXPERT_MAJOR)
  tasks = simulation.image.tables['tasks']
  down = tasks['kind'] == Kind.DOWN
  helpers = down & (tasks['core'] < 16)
  join = (tasks['expert'][helpers] % 16).min()
  assert join >= pto_megamoe.knobs(8, 128).join
  first = simulation.end[tasks['kind'] == Kind.GATE_UP].max()
  before = down & (tasks['expert'] % 16 == join - 1)
  assert first <= simulation.end[before].max() or join == 15


def test_a_segment_of_swiglu_waits_for_its_last_expert(machine):
  # Given stage-major with a SwiGLU task of each expert on each AIV, when it
  # runs, then SwiGLU begins when the first GEMM of the 13th expert has ended,
  # and the sums when all rows of all ranks are home.
  simulation = pto_megamoe.run(machine, 8, 128, STAGE_MAJOR)
  tasks = simulation.image.tables['tasks']

  def select(kind, experts=range(16)):
    local = np.isin(tasks['expert'] % 16, experts)
    return (tasks['kind'] == kind) & (tasks['rank'] == 0) & local

  segment = simulation.end[select(Kind.GATE_UP, [12])].max()
  assert simulation.start[select(Kind.SWIGLU)].min() >= segment
  sums = (tasks['kind'] == Kind.COMBINE) & (tasks['rank'] == 0)
  home = simulation.end[tasks['kind'] == Kind.RETURN].max()
  assert simulation.start[sums].min() >= home


def test_the_front_grows_by_what_it_moves(machine):
  # 1024 tokens of 7168 read in float16, and written in int8 for 8 slots.
  growth = pto_megamoe.compute_front(machine, 2048) - pto_megamoe.compute_front(
    machine, 1024
  )
  assert growth == pytest.approx(1024 * 7168 * (2 + 8) / machine['hbm'])
  assert pto_megamoe.compute_front(machine, 16) > machine['launch']


def test_stages_slow_each_other_on_the_machine_of_stages():
  # Given the share that puts home take, fitted to one stage, and links as
  # measured, when stage-major runs at EP16, then GMM2 is as long as in the
  # timeline, and dispatch and combine, which are held out, end within 5 %.
  machine = machine_lib.load('ascend_a3_pto_stages')
  simulation = pto_megamoe.run(machine, 16, 2048, STAGE_MAJOR)
  front = pto_megamoe.compute_front(machine, 2048)
  tasks = simulation.image.tables['tasks']

  def span(kind):
    own = (tasks['kind'] == kind) & (tasks['rank'] == 0)
    return np.array([simulation.start[own].min(), simulation.end[own].max()])

  assert 1e6 * np.diff(span(Kind.DOWN)) == pytest.approx(1515, rel=0.01)
  ends = [1e6 * (front + span(k)[1]) for k in (Kind.DISPATCH, Kind.RETURN)]
  assert ends == pytest.approx([1258, 3987], rel=0.05)
  # Nothing is left of it without the share.
  free = machine.with_figures(home_beside=0)
  simulation = pto_megamoe.run(free, 16, 2048, STAGE_MAJOR)
  assert 1e6 * np.diff(span(Kind.DOWN)) < 0.7 * 1515


def test_a_wrong_order_of_schedules_is_told():
  published = {
    pto_megamoe.name(ep, schedule, tokens): time
    for (ep, schedule), times in pto_megamoe.TABLE.items()
    for tokens, time in zip(pto_megamoe.TOKENS, times)
  }
  assert pto_megamoe.wrong_order(published) == ''
  slow = pto_megamoe.name(16, EXPERT_MAJOR, 512)
  assert pto_megamoe.wrong_order(published | {slow: 1340.0}) == 'EP16, M=512'
  # ... and so is none, where they are taken to be equal.
  assert pto_megamoe.wrong_order(
    published | {slow: published[pto_megamoe.name(16, STAGE_MAJOR, 512)]}
  )
  # 3 % apart or less: either may be faster.
  near = pto_megamoe.name(8, EXPERT_MAJOR, 64)
  assert pto_megamoe.wrong_order(published | {near: 700.0}) == ''


@pytest.mark.slow
def test_the_megakernel_is_no_better_known_than_by_its_fitted_rows():
  # Given the machine's file, when all 28 times are simulated, then the fitted
  # time of as many tokens is nearer to held-out rows, which are withdrawn; that
  # does not say which schedule is faster, and the simulator does.
  witness = pto_megamoe.WITNESS
  machines = witness.load()
  values = witness.simulate(machines, print)
  result = score.score(witness, values, machines)
  (time,) = (group for group in result.groups if group.name == 'time')
  assert not time.has_skill and time.mean_error < 0.07
  assert time.limit is None and 'nearest fitted row' in time.withdrawal
  assert [holds for _, holds, _ in result.claims] == [True]
  assert not result.trivial
  assert witness.simulate(machines, print) == values


@pytest.mark.slow
@pytest.mark.parametrize('start', [1.0, 0.8, 1.25])
def test_a_fit_gives_the_figures_of_the_file(machine, start):
  # Given figures up to a fifth off, when fitted to the seven times, then they
  # come out as the file has them: none is where the search happened to end.
  witness = pto_megamoe.WITNESS
  starts = {f.figure: start * machine[f.figure] for f in witness.fits}
  machines = {machine.name: machine.with_figures(**starts)}
  for (_, figure), value in fit.fit(witness, machines, print).items():
    assert value == pytest.approx(machine[figure], rel=0.01)
