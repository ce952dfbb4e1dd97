"""The checking modes of a check: what runs, what stands in, what is refused."""

import json

import numpy as np
import pytest

from hpmoe.backend_ascend.compiler import compiler
from hpmoe.backend_ascend.compiler.taskflow import happens_before
from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.host.checks import faults
from hpmoe.backend_ascend.host.checks import modes
from hpmoe.backend_ascend.host.launch import runtime
from hpmoe.parity_tests.ascend import checking_modes
from hpmoe.parity_tests.ascend import host
from hpmoe.parity_tests.candidates import checking
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import main
from hpmoe.parity_tests.judge import check
from hpmoe.parity_tests.judge import judgement
from hpmoe.parity_tests.judge import oracle as oracle_lib
from hpmoe.parity_tests.report import report_text
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import halved_testing
from hpmoe.reference.contract import precision

CONFIG = config_testing.make_config(r=2, t=9, e=4, k=2, d=16, f=8)
OPTIONS = granularity.Options(row_block=8, col_block=8, num_aic=2, num_aiv=2)
TINY = ('--preset=tiny', '--ranks=2', '--tokens=13', '--row_block=8')


def _image(activation: str = 'swiglu') -> image_lib.Image:
  policy = precision.PrecisionPolicy(activation=activation)
  return compiler.compile_forward(CONFIG, policy, OPTIONS).image


@pytest.mark.parametrize(
  'races, on_real, on_exact',
  [(None, True, False), (True, True, True), (False, False, False)],
)
def test_races_are_searched_by_default_and_beyond_tiles_on_real_data(
  races, on_real, on_exact
):
  request = checking.Checking(races=races)
  for activation, guarded in (('swiglu', on_real), ('absolute', on_exact)):
    launch_modes = checking_modes.build_modes(request, _image(activation))
    assert launch_modes.guards == guarded and launch_modes.races == (
      races is not False
    )


class TestFindTask:
  def test_a_task_is_named_by_number_or_by_place(self):
    image = _image()
    for index in range(len(image.tables['tasks'])):
      task = checking_modes.find_task(image, 'start_at', str(index))
      assert task == index
    text = 'gate_up rank=1 expert=3, row_block=1 col_block=0'
    index = checking_modes.find_task(image, 'start_at', text)
    task = image.tables['tasks'][index]
    assert [int(task[n]) for n in checking_modes._FIELDS] == [1, 3, 1, 0]

  @pytest.mark.parametrize(
    'text, message',
    [
      ('100000', 'expected one task of'),
      ('gate_up rank=1', "got 12 for 'gate_up rank=1': gate_up task"),
      ('gate_up rank=9', "got 0 for 'gate_up rank=9'"),
      ('gateup rank=1', 'kinds are dispatch, gate_up'),
      ('gate_up rang=1', "got 'rang=1'"),
      ('gate_up rank=one', "got 'rank=one'"),
      ('', 'expected a task, its number'),
    ],
  )
  def test_what_names_no_task_or_many_is_refused(self, text, message):
    with pytest.raises(ValueError, match='^stop_after: ') as error:
      checking_modes.find_task(_image(), 'stop_after', text)
    assert message in str(error.value)


def _modes(image, **fields):
  oracle_tensors = dict.fromkeys(runtime.list_written_tensors(image))
  return checking_modes.build_modes(
    checking.Checking(**fields), image, oracle_tensors
  )


class TestActions:
  def test_what_is_done_before_is_healed_and_the_rest_runs(self):
    image = _image()
    last = len(image.tables['tasks']) - 1
    for mode, run in (
      (dict(start_at='0'), [*range(last + 1)]),
      (dict(stop_after='0'), [0]),
      (dict(start_at=str(last), stop_after=str(last)), [last]),
    ):
      actions = _modes(image, **mode).actions
      assert (actions == modes.Action.RUN).nonzero()[0].tolist() == run
    assert (_modes(image, isolate=True).actions == modes.ISOLATED).all()

  def test_what_nothing_orders_before_the_start_runs(self):
    image = _image()
    text = 'combine rank=1 row_block=0'
    start = checking_modes.find_task(image, 'start_at', text)
    actions = _modes(image, start_at=text).actions
    before = happens_before.compute_clocks(image).before(
      np.arange(len(actions)), start
    )
    # Puts that it waits for stand in; a sum of rank 0 has a smaller number and
    # no part in it.
    other = checking_modes.find_task(
      image, 'other', 'combine rank=0 row_block=0'
    )
    assert other < start and actions[other] == modes.Action.RUN
    assert ((actions == modes.Action.HEAL) == before).all() and before.any()

  def test_each_mode_is_that_of_the_launch(self):
    # Two values of each: neither is always there.
    for fields in (
      dict(poison=False, permute=3, late_puts=True, races=True),
      dict(poison=True, permute=None, late_puts=False, races=False),
    ):
      launch_modes = _modes(_image(), **fields)
      assert {name: getattr(launch_modes, name) for name in fields} == fields

  def test_a_part_that_cannot_be_is_refused(self):
    with pytest.raises(ValueError, match='^isolate: expected no start_at'):
      checking.Checking(isolate=True, start_at='3')
    with pytest.raises(ValueError, match='^stop_after: expected a task that'):
      _modes(_image(), start_at='91', stop_after='0')


def _judge(candidate, *lanes, direction='forward') -> check.Report:
  case = case_lib.Case(direction, 'tiny', ranks=2, tokens=13)
  return check.run(
    check.Request(case, candidate, judgement.Judgement(lanes=lanes))
  )


_CHAINED = granularity.Options(row_block=8, chain_rows=8)
_ISOLATED = checking.Checking(isolate=True)


def _report(tmp_path, *arguments) -> tuple[int, dict]:
  path = tmp_path / 'report.json'
  code = main.main(['check', *TINY, *arguments, f'--json={path}'])
  return code, json.loads(path.read_text())


# Each once; `make sweep` runs the other pairs.
@pytest.mark.parametrize(
  'direction, placement',
  halved_testing.halved(['forward', 'backward'], precision.LAUNCHED_PLACEMENTS),
)
@pytest.mark.few(1)
def test_every_mode_finds_nothing_in_what_is_right(direction, placement):
  # Given a right backend, when each mode asks its question,
  request = check.Request(
    case_lib.Case(
      preset='tiny',
      ranks=2,
      tokens=13,
      direction=direction,
      placement=placement,
    ),
    host.Megakernel(options=OPTIONS),
    judgement.Judgement(lanes=('exact', 'bitwise')),
  )
  for mode in (
    dict(poison=False),
    dict(permute=3),
    dict(permute=4, late_puts=True),
    dict(races=True),
    dict(isolate=True),
    dict(start_at='20'),
    dict(stop_after='20'),
    dict(start_at='20', stop_after='20'),
  ):
    mode_request = request.but(checking=checking.Checking(**mode))
    report = check.run(mode_request)

    # then nothing is wrong.
    assert report.verdict == 'pass', mode
    assert not report.wrong and not report.num_races


@pytest.mark.slow
def test_a_fault_does_not_spread_and_its_task_is_named(tmp_path, capsys):
  # Given a backend with one wrong tile,
  fault = ('--fault=swapped_experts', '--direction=forward')
  _, spread = _report(tmp_path, *fault)
  capsys.readouterr()

  # when each task runs on the oracle's tensors,
  code, report = _report(tmp_path, *fault, '--isolate')

  # then that task alone is wrong,
  (wrong,) = report['wrong_tasks']
  assert code == cli.NO_PARITY and wrong['task']['kind'] == 'gate_up'
  assert wrong['lanes'] == ['exact', 'bitwise', 'bounded']
  failing_stages = {
    s['stage'] for s in report['stages'] if s['verdict'] == 'fail'
  }
  assert failing_stages == {'gate_up'}
  exact = {
    s['stage']
    for s in spread['stages']
    if s['lane'] == 'exact' and s['verdict'] == 'fail'
  }
  assert {'gate_up', 'activation', 'expert_out', 'y'} <= exact

  # and the command that the report gives runs that task alone, wrong.
  out = capsys.readouterr().out
  index = wrong['task']['index']
  assert f'--start_at={index} --stop_after={index}' in out
  code, alone = _report(
    tmp_path, *fault, f'--start_at={index}', f'--stop_after={index}'
  )
  assert code == cli.NO_PARITY
  assert alone['first_failure']['stage'] == 'gate_up'
  assert 'ran 1 of' in capsys.readouterr().out


@pytest.mark.slow
def test_what_stands_in_is_not_judged_on_what_ran():
  # Given a right backend, when some tasks in the middle of a pass run, then
  # what the oracle gave for those after them is held to no bound of theirs.
  for first, last in ((74, 77), (185, 188), (222, 225)):
    part = checking.Checking(start_at=str(first), stop_after=str(last))
    candidate = host.Megakernel(_CHAINED, checking=part)
    report = _judge(candidate, 'bitwise', 'bounded', direction='backward')
    assert report.verdict == 'pass'
    (launch,) = report.launches
    assert 0 < launch.tasks_run < launch.num_tasks


@pytest.mark.parametrize(
  'fault, direction',
  [
    ('skipped_wait', 'forward'),
    ('missing_wait', 'forward'),
    ('early_signal', 'backward'),
  ],
)
def test_a_plain_check_fails_by_a_race(fault, direction):
  # Given a task out of order, whether or not its values show it, when nobody
  # asks for races, then the check fails by them and blames that task.
  candidate = host.Megakernel(fault=fault, options=OPTIONS)
  report = _judge(candidate, 'exact', direction=direction)
  assert report.verdict == 'fail' and report.num_races
  (blamed,) = {race.blame.kind for race in report.races}
  (spec,) = (
    s
    for s in faults.TABLE
    if s.name == fault and s.direction.name.lower() == direction
  )
  assert blamed == spec.kind.name.lower()


def test_a_race_that_a_chain_sums_is_that_of_its_writer():
  # Given a task that says too early that it is done, to the middle of a chain,
  candidate = host.Megakernel(
    _CHAINED, fault='early_signal', checking=_ISOLATED
  )
  report = _judge(candidate, 'exact', 'bitwise', direction='backward')

  # then the last link, which shows it, is not guilty, and both are named.
  (wrong,) = report.wrong
  assert wrong.task.kind == 'swiglu_grad' and wrong.lanes == ('races',)
  (race, *_) = report.races
  assert str(race.first) in race.missing and str(race.second) in race.missing
  modes_text = report_text.format_modes(report)
  assert '--start_at' not in modes_text and '--races' in modes_text
  lines = modes_text.splitlines()
  assert len(set(lines)) == len(lines)


def test_a_chain_is_named_at_its_last_link_and_says_so():
  fault = 'weight_grad_twice'
  candidate = host.Megakernel(_CHAINED, fault=fault, checking=_ISOLATED)

  (wrong,) = _judge(candidate, 'exact', direction='backward').wrong
  assert wrong.remark.startswith('the last of 4 links')


def test_a_lane_that_names_no_task_says_so():
  candidate = host.Megakernel(fault='zero_output', checking=_ISOLATED)
  report = _judge(candidate, 'standard')

  assert report.verdict == 'fail' and not report.wrong
  assert 'lane standard judges tensors' in report_text.format_modes(report)


def test_a_kernel_that_moves_wrongly_is_named_in_lane_bitwise(monkeypatch):
  # Given an oracle that differs from both our launches in one moved element,
  right = oracle_lib._run

  def run(name, *arguments, **sources):
    out = right(name, *arguments, **sources)
    if name == 'expert_in':
      out = np.array(out)
      out[1, 0, 3] += np.float32(1)
    return out

  monkeypatch.setattr(oracle_lib, '_run', run)

  # when lane bitwise judges, then the task that moved it is named.
  candidate = host.Megakernel(checking=_ISOLATED)
  (wrong,) = _judge(candidate, 'bitwise').wrong
  assert wrong.task.kind == 'dispatch' and wrong.tensor == 'expert_in'
