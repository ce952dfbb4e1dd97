"""The framework on a witness that is arithmetic: what it must find is known."""

import dataclasses

import numpy as np
import pytest

from hpmoe.backend_ascend.simulator.machines import machine as machine_lib
from hpmoe.backend_ascend.simulator.reproduce import compiled_layers
from hpmoe.backend_ascend.simulator.reproduce import fit
from hpmoe.backend_ascend.simulator.reproduce import null
from hpmoe.backend_ascend.simulator.reproduce import score
from hpmoe.backend_ascend.simulator.reproduce import sensitivity
from hpmoe.backend_ascend.simulator.reproduce import witness as witness_lib
from hpmoe.reference.contract import config_testing

_MACHINE = 'ascend_a3'
_WORK = 1e14


def _row(name, published, fitted=False, group='time', **fields):
  return witness_lib.Row(
    name, published, 's', group, 'this test', fitted, **fields
  )


_FIRST_ROW = _row('one', 1.0, True)


def _fit(figure, *rows, machine=_MACHINE, **fields):
  return witness_lib.Fit(machine, figure, rows or ('one',), **fields)


def _roofline(machines):
  """Returns the roofline of a machine that takes 1 s for any work of a core."""
  del machines
  return {'one': 1.0, 'two': 3.0, 'late': 1.2}


def _run(machines, tell):
  """Returns times of one core: products of figures, and one with a latency."""
  tell('run')
  machine = machines[_MACHINE]
  seconds = _WORK / (machine['cube_efficiency'] * machine['cube_bf16'])
  return {
    'one': seconds,
    'two': 2 * seconds,
    'late': seconds + machine['put_head'],
  }


def _witness(first=20.0, second=40.0, late=20.0, limit=0.05, **changes):
  rows = (
    _row('one', first, fitted=True),
    _row('two', second, nearest='one'),
    _row('late', late, nearest='one'),
  )
  fields = dict(
    name='arithmetic',
    about='a test',
    machines=(_MACHINE,),
    rows=rows,
    run=_run,
    roofline=_roofline,
    goals=(witness_lib.Goal('time', limit),),
    fits=(_fit('cube_efficiency'),),
  )
  return witness_lib.Witness(**fields | changes)


def _silent(text):
  del text


@pytest.mark.parametrize(
  'changes, message',
  [
    (dict(rows=(_row('one', 1.0), _row('one', 2.0))), 'one of each name'),
    (dict(rows=(_row('one', 0.0),)), 'not 0: one'),
    (
      dict(rows=(_FIRST_ROW, _row('two', 2.0, nearest='on'))),
      "got 'on' for 'two'",
    ),
    (
      dict(
        rows=(_FIRST_ROW, _row('two', 2.0), _row('late', 2.0, nearest='two'))
      ),
      "fitted if it is the nearest, got 'two' for 'late'",
    ),
    (
      dict(rows=(_FIRST_ROW, _row('two', 2.0, summands=('half',)))),
      "got 'half' for 'two'",
    ),
    (dict(fits=(_fit('hbm', 'two'),)), "marked as fitted, got 'two'"),
    (dict(fits=(_fit('hbm', machine='ascend_a4'),)), "got 'ascend_a4'"),
    (
      dict(withdrawals=(witness_lib.Withdrawal('time', 'why'),)),
      "without a goal, got 'time' in arithmetic",
    ),
    (
      dict(withdrawals=(witness_lib.Withdrawal('tame', 'why'),)),
      "got 'tame' in arithmetic",
    ),
    (
      dict(fits=(_fit('cube_efficiency'), _fit('collective'))),
      'at most 1 figures, as many as rows',
    ),
  ],
)
def test_a_witness_that_contradicts_itself_is_refused(changes, message):
  with pytest.raises(ValueError, match=message):
    _witness(**changes)


def test_a_fitted_figure_has_its_tag_or_a_value_of_the_witness():
  # Given a witness that calls a published figure fitted, when its machines are
  # loaded, then it is named; with a value of the witness it has that, with tag
  # and rows, and the file's figure stays.
  with pytest.raises(ValueError, match='l2_bytes: expected the tag fitted'):
    _witness(fits=(_fit('l2_bytes'),)).load()
  witness = _witness(fits=(_fit('l2_bytes', value=2e6),))
  figure = witness.load()[_MACHINE].figures['l2_bytes']
  assert (figure.value, figure.tag, figure.source) == (2e6, 'fitted', 'one')
  assert machine_lib.load(_MACHINE)['l2_bytes'] != 2e6


@pytest.mark.parametrize('figure', ['cube_efficiency', 'collective'])
def test_a_fit_outside_physics_is_refused(figure):
  # Given a witness whose GEMMs would need more than their peak, when it is
  # loaded, fitted, or fitted under a hypothesis, then that is refused; a rate
  # may be any.
  message = f'{figure}: expected at most 1 in {_MACHINE}.*, got 4.59'
  with pytest.raises(ValueError, match=message):
    _witness(fits=(_fit(figure, value=4.594),)).load()
  _witness(fits=(_fit(figure, value=1.0),)).load()
  _witness(fits=(_fit('hbm', value=1e30),)).load()


def test_a_fit_that_ends_outside_physics_is_refused():
  machine = machine_lib.load(_MACHINE)
  published = _WORK / (1.25 * machine['cube_bf16'])
  witness = _witness(first=published, second=1.0, late=1.0)
  with pytest.raises(ValueError, match='cube_efficiency: .*, got 1.25$'):
    fit.fit(witness, witness.load(), _silent)
  variant = witness_lib.Variant('faster', witness)
  (refitted,) = fit.variants(_witness(variants=(variant,)), _silent)
  assert (refitted.score, refitted.figures) == (None, {})
  assert refitted.refusal.endswith('got 1.25')


@pytest.mark.parametrize('name', witness_lib.MODULES)
def test_no_published_system_is_fitted_outside_physics(name):
  machines = witness_lib.get(name).load()
  for fitted in witness_lib.get(name).fits:
    value = machines[fitted.machine][fitted.figure]
    assert fitted.figure not in machine_lib.SHARES or value <= 1
    published = machine_lib.load(fitted.machine).figures[fitted.figure]
    assert (
      published.tag != 'published'
      or fitted.figure in machine_lib.SHARES
      or value <= published.value
    )


def test_each_row_has_a_value():
  witness = _witness(run=lambda machines, tell: {'one': 1.0})
  with pytest.raises(ValueError, match=r"got none for \['two', 'late'\]"):
    witness.simulate(witness.load(), _silent)


_FAR = {'one': 1.0, 'two': 9.0, 'late': 9.0}


def _score(witness, values):
  # Without the nearest row, which is right here where all rows are alike.
  rows = tuple(dataclasses.replace(r, nearest='') for r in witness.rows)
  witness = dataclasses.replace(witness, rows=rows)
  return score.score(witness, values, witness.load())


def test_only_held_out_rows_are_evidence():
  # Given a fitted row that is half of the published one and held-out rows that
  # are 10 and 30 % off, when scored, then the mean error is 20 %.
  witness = _witness(first=1.0, second=1.0, late=2.0, limit=0.21)
  values = {'one': 0.5, 'two': 1.1, 'late': 1.4}
  witness = dataclasses.replace(witness, roofline=lambda machines: _FAR)
  result = _score(witness, values)
  (group,) = result.groups
  assert group.mean_error == pytest.approx(0.2)
  assert (group.rows, group.worst, group.holds) == (2, 'late', True)
  assert result.holds
  tight = dataclasses.replace(witness, goals=(witness_lib.Goal('time', 0.19),))
  assert not _score(tight, values).holds


def test_a_claim_that_fails_has_no_part_in_the_goals():
  # ... and says why, where it does.
  claim = witness_lib.Claim(
    'two is longer', lambda v: '' if v['two'] > v['one'] else f'{v["one"]} s'
  )
  witness = _witness(claims=(claim,), limit=9.0, roofline=lambda m: _FAR)
  near = {'one': 20.0, 'two': 40.0, 'late': 20.0}
  result = _score(witness, near)
  assert result.holds
  assert result.failing_claims == ()
  result = _score(witness, near | {'one': 40.0})
  assert result.holds
  assert result.failing_claims == (('two is longer', '40.0 s'),)


def test_a_group_of_rows_can_be_withdrawn():
  # Given rows that are far off and no evidence, when scored, then no goal
  # fails, and the reason stands beside their error.
  withdrawal = witness_lib.Withdrawal('time', 'not published')
  witness = _witness(goals=(), withdrawals=(withdrawal,))
  result = _score(witness, {'one': 20.0, 'two': 4.0, 'late': 2.0})
  (group,) = result.groups
  assert result.holds
  assert group.mean_error == pytest.approx(0.9)
  assert group.withdrawal == 'not published'


def _published(witness):
  return {row.name: row.published for row in witness.rows}


def test_null_predictors_repeat_a_row_and_scale_it():
  # Given a fitted row of 20 s whose roofline is 1 s, when others have 3 s and
  # 1.2 s, then one predictor says 20 s of both and the other 60 s and 24 s.
  witness = _witness(second=40.0, late=25.0)
  predictions = null.predictions(witness, witness.load())
  assert predictions == {
    null.NEAREST: {'two': 20.0, 'late': 20.0},
    null.ROOFLINE: {'one': 1.0, 'two': 60.0, 'late': pytest.approx(24.0)},
    null.CONSTANT: {'two': 25.0, 'late': 25.0},
    # 3 and 1.2 s by 25 / 1.2: of 40 / 3 and that the better.
    null.SCALED: {'two': pytest.approx(40.0), 'late': pytest.approx(16.0)},
  }
  (group,) = score.score(witness, _published(witness), witness.load()).groups
  assert group.nulls == {
    null.NEAREST: pytest.approx((0.5 + 0.2) / 2),
    null.ROOFLINE: pytest.approx((0.5 + 0.04) / 2),
    null.CONSTANT: pytest.approx((0.375 + 0) / 2),
    null.SCALED: pytest.approx((0 + 0.36) / 2),
  }


def test_the_best_constant_is_that_with_the_least_mean_error():
  # Given values, when every constant of a fine grid is tried, then none errs
  # less than the best one; rows of one value, or a single row, leave no skill.
  values = [1.06, 1.36, 1.15, 1.68, 1.24, 1.73]

  def error(constant):
    return np.mean([abs(constant / value - 1) for value in values])

  best = null.best_constant(values)
  assert best in values
  assert error(best) <= min(map(error, np.linspace(0.5, 2.5, 2001)))
  witness = _witness(second=20.0, late=20.0, roofline=lambda machines: {})
  (group,) = _score(witness, _published(witness)).groups
  assert (group.mean_error, group.nulls[null.CONSTANT]) == (0, 0)
  assert not group.holds


@pytest.mark.parametrize('predictor', null.NAMES)
@pytest.mark.parametrize('name', ['arithmetic', *witness_lib.MODULES])
@pytest.mark.few(4)
def test_a_null_predictor_in_place_of_the_simulator_does_not_pass(
  name, predictor
):
  # Given a witness without goals that could fail, whose run is a null
  # predictor, when scored, then it does not pass; and what is published does.
  witness = _witness() if name == 'arithmetic' else witness_lib.get(name)
  goals = tuple(dataclasses.replace(g, limit=9.0) for g in witness.goals)
  witness = dataclasses.replace(witness, goals=goals, claims=())
  machines, published = witness.load(), _published(witness)
  assert witness.name == name
  assert score.score(witness, published, machines).holds
  if not goals:  # each group says why
    assert witness.withdrawals
    return
  predictions = null.predictions(witness, machines)[predictor]
  if not predictions:  # no fitted row is like another
    assert predictor == null.NEAREST
    assert not any(row.nearest for row in witness.rows)
    return
  result = score.score(witness, published | predictions, machines)
  assert not result.holds
  assert not any(g.has_skill for g in result.groups if g.limit is not None)


def test_a_row_without_a_nearest_one_does_not_silence_the_predictor():
  # Given a row without a nearest one that the simulator meets, and one where it
  # errs more than the nearest row does, when scored, then it has no skill.
  rows = (
    _row('one', 20.0, True),
    _row('two', 21.0, nearest='one'),
    _row('late', 20.0),
  )
  witness = _witness(rows=rows, limit=9.0, roofline=lambda m: _FAR)
  values = {'one': 20.0, 'two': 19.0, 'late': 20.0}
  (group,) = score.score(witness, values, witness.load()).groups
  assert group.unknown == {null.NEAREST: ('late',)}
  assert group.nulls[null.NEAREST] == pytest.approx(1 / 21)
  assert group.beside[null.NEAREST] == pytest.approx(2 / 21)
  assert not group.holds


def test_a_roofline_without_its_nearest_row_is_a_gap():
  witness = _witness(roofline=lambda machines: {'two': 3.0})
  predictions = null.predictions(witness, witness.load())
  assert predictions[null.ROOFLINE] == {}
  (group,) = score.score(witness, _published(witness), witness.load()).groups
  assert group.unknown == {
    null.ROOFLINE: ('two', 'late'),
    null.SCALED: ('late',),
  }
  # Rows that no predictor knows are no pass, even if they are met.
  witness = _witness(roofline=lambda machines: {})
  assert not _score(witness, _published(witness)).holds


def test_a_roofline_has_the_total_of_the_busiest_link():
  # Given two ranks that send 4 rows to the other's first and second expert,
  # when bounded, then each link has 4 rows there and 4 back, not 8 and 8.
  config = config_testing.make_config(r=2, t=4, e=4, k=1, d=16, f=16)
  machine = machine_lib.load(_MACHINE)
  ids = np.array([[[2]] * 4, [[1]] * 4])
  links = machine.fabric.links(2)
  busy_seconds = np.zeros(len(links))
  for ends in ((0, 1), (1, 0)):
    for link in machine.fabric.route(*ends, 2).links:
      busy_seconds[link] += (4 + 4) * links[link].factor / links[link].capacity
  bound = null.roofline(config, machine, ids)
  assert bound.exchange == pytest.approx(16 * 2 * busy_seconds.max())


def test_a_sum_of_others_is_no_evidence():
  # Given a held-out sum that is far off, when scored, then it does not count.
  rows = (
    _row('one', 20.0, True),
    _row('two', 40.0, nearest='one'),
    _row('late', 60.0, nearest='one', summands=('one', 'two')),
  )
  values = {'one': 20.0, 'two': 40.0, 'late': 1.0}
  witness = _witness(rows=rows)
  (group,) = score.score(witness, values, witness.load()).groups
  assert (group.rows, group.mean_error) == (1, 0)


def test_a_claim_that_a_null_predictor_meets_is_told():
  claims = tuple(
    witness_lib.Claim(text, lambda v, holds=holds: '' if holds(v) else 'no')
    for text, holds in {
      'two is longer': lambda v: v['two'] > v['one'],
      'two is twice as long': lambda v: v['two'] == 2 * v['late'],
      'none knows': lambda v: v['else'] > 0,
    }.items()
  )
  witness = _witness(claims=claims)
  values = _published(witness) | {'else': 1.0}
  result = score.score(witness, values, witness.load())
  assert result.holds
  assert result.trivial == ('two is longer',)


def test_a_fit_finds_what_the_rows_say():
  # Given a fitted row at an efficiency of 0.77, when fitted, then that is what
  # comes out, and the held-out rows have no part in it.
  machine = machine_lib.load(_MACHINE)
  published = _WORK / (0.77 * machine['cube_bf16'])
  witness = _witness(first=published, second=1e9, late=1e9)
  (value,) = fit.fit(witness, witness.load(), _silent).values()
  assert value == pytest.approx(0.77, rel=1e-6)


@pytest.mark.parametrize('start', [0.76, 0.769, 0.78, 0.9])
def test_a_fit_does_not_fall_off_a_step(start):
  # Given a row that is met at an efficiency of 0.77 and one that is 10 % longer
  # above 0.7695, as where another task comes first, when fitted from either
  # side, then the value is from below the step and no worse than the start's.
  machine = machine_lib.load(_MACHINE).with_figures(cube_efficiency=start)
  published = _WORK / (0.77 * machine['cube_bf16'])

  def stepped(machines, tell):
    above = machines[_MACHINE]['cube_efficiency'] > 0.7695
    return _run(machines, tell) | {'two': published * (1.1 if above else 1)}

  witness = _witness(
    rows=(_row('one', published, True), _row('two', published, True)),
    fits=(_fit('cube_efficiency', 'one', 'two'),),
    run=stepped,
  )
  (value,) = fit.fit(witness, {_MACHINE: machine}, _silent).values()
  assert min(start, 0.765) <= value <= 0.7695


def test_a_variant_is_fitted_anew_and_scored():
  # Given a variant in which all takes twice as long, when variants are asked
  # for, then the figure is twice what the row says, and the row is met.
  machine = machine_lib.load(_MACHINE)
  published = _WORK / (0.4 * machine['cube_bf16'])

  def twice(machines, tell):
    return {n: 2 * value for n, value in _run(machines, tell).items()}

  changes = dict(
    first=published,
    second=2 * published,
    late=published,
    rows=(
      _row('one', published, fitted=True),
      _row('two', 2 * published, nearest='one'),
      _row('late', published),
    ),
  )
  other = witness_lib.Variant('twice', _witness(run=twice, **changes))
  witness = _witness(variants=(other,), **changes)
  (refitted,) = fit.variants(witness, _silent)
  assert refitted.text == 'twice'
  assert refitted.figures['cube_efficiency'] == pytest.approx(0.8, rel=1e-6)
  assert refitted.score.worst_fitted == pytest.approx(0, abs=1e-6)
  assert refitted.score.holds


def test_sensitivity_changes_each_assumed_figure_and_no_other():
  # Given a machine with assumed figures, when halved and doubled, then each
  # has two effects, and only rows that use a figure move; what only claims ask
  # for is not run, and no claim is judged.
  def refuse(*args):
    raise AssertionError(args)

  claim = witness_lib.Claim('it is', refuse)
  witness = _witness(run=refuse, run_rows=_run, claims=(claim,))
  machines = witness.load()
  values = _run(machines, _silent)
  messages = []
  effects = sensitivity.effects(witness, machines, values, messages.append)
  figures = machines[_MACHINE].figures
  assumed = [n for n, figure in figures.items() if figure.tag == 'assumed']
  assert assumed
  assert [(e.figure, e.factor) for e in effects] == [
    (name, factor) for name in assumed for factor in (0.5, 2.0)
  ]
  assert len(messages) == 1 + len(effects)
  for effect in effects:
    if effect.refusal:
      assert effect.changes is None
      continue
    assert effect.changes['one'] == effect.changes['two'] == 0
    late = values['late'] - values['one']
    change = (effect.factor - 1) * late / values['late']
    if effect.figure != 'put_head':
      change = 0
    assert effect.changes['late'] == pytest.approx(change)


@pytest.mark.parametrize('remembered', [False, True])
def test_sensitivity_runs_what_a_row_may_read(remembered):
  # Given rows that read one assumed figure, of a machine that they changed,
  # when each is changed, then only that and those that the fabric names are
  # run; and all, of rows that a memo knows by all figures.
  runs = []

  def late(machine):
    runs.append(machine.changed_figures)
    return machine.with_figures(hbm=1e12)['signal']

  def run(machines, tell):
    machine = machines[_MACHINE]
    if remembered:
      seconds = compiled_layers.cache_result(
        'late', machine, lambda: late(machine)
      )
    else:
      seconds = late(machine)
    return _run(machines, tell) | {'late': seconds}

  witness = _witness(run=run)
  machines = witness.load()
  values = witness.simulate(machines, _silent)
  effects = sensitivity.effects(witness, machines, values, _silent)
  ran = {name for figures in runs for name in figures}
  read = {'put_head', 'signal'} | machines[_MACHINE].fabric.list_figures()
  assumed = {effect.figure for effect in effects if not effect.refusal}
  assert ran == (assumed if remembered else assumed & read)
  assert ran > {'put_head', 'signal'}
  # What a memo knows is not run again.
  assert runs.count(()) == (1 if remembered else 2)


def test_an_unknown_witness_is_named():
  with pytest.raises(ValueError, match="witness: expected one of .* 'uniap'"):
    witness_lib.get('uniap')
