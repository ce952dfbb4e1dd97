"""`--schedule`: check, compile and determinism run a schedule file."""

import dataclasses
import json

import pytest

from hpmoe.backend_ascend.compiler.orders import schedule_file
from hpmoe.parity_tests.commands import main
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import presets

TINY = presets.config(presets.get('tiny'), 2)
OPTIONS = granularity.Options(
  row_block=4,
  col_block=16,
  num_aic=3,
  num_aiv=4,
  order=granularity.Order(lag=0.5, comm_share=0.5, expert_order='rotated'),
)


@pytest.fixture
def path(tmp_path):
  path = tmp_path / 'tiny.schedule'
  schedule_file.save(
    path, schedule_file.Schedule(TINY, 'float32', 'combine', OPTIONS)
  )
  return str(path)


def run(capsys, line):
  """Returns the exit code and the text on standard error."""
  command, _, rest = line.partition(' ')
  code = main.main([command, '--preset=tiny', '--ranks=2', *rest.split()])
  return code, capsys.readouterr().err.strip()


def test_check_runs_the_schedule(path, tmp_path, capsys):
  # Given a schedule of the layer, when it is checked in every lane, then parity
  # holds and the report says what ran.
  report = tmp_path / 'check.json'
  code, _ = run(capsys, f'check --schedule={path} --json={report}')
  assert code == 0
  options = json.loads(report.read_text())['config']['options']
  assert (options['row_block'], options['num_aiv']) == (4, 4)
  assert options['order']['lag'] == 0.5


def test_compile_runs_the_schedule_on_cores_that_were_given(
  path, tmp_path, capsys
):
  report = tmp_path / 'compile.json'
  for cores, queues in (('', 14), ('--aic=1 --aiv=2', 6)):
    request = f'compile --schedule={path} --json={report} {cores}'
    code, _ = run(capsys, request)
    assert code == 0
    assert json.loads(report.read_text())['queues'] == queues


def test_law_holds_under_the_schedule(path, capsys):
  request = f'determinism --interleavings=2 --dtype=f32 --schedule={path}'
  code, _ = run(capsys, request)
  assert code == 0


def test_a_break_of_the_law_is_replayed_with_the_schedule(
  path, capsys, tmp_path
):
  report = tmp_path / 'determinism.json'
  request = 'determinism --interleavings=4 --dtype=f32 --direction=forward '
  request += f'--fault=missing_signal --schedule={path} --json={report}'
  code, error = run(capsys, request)
  assert code == 3
  assert json.loads(report.read_text())['error'] in error
  assert 'deadlock: ' in error and 'replay: hpmoe check --preset=tiny' in error
  assert f'--schedule={path}' in error
  assert '--aic=1' in error and 'row_block' not in error.partition('replay')[2]


def test_another_layer_is_run_where_it_is_scaled(path, capsys):
  request = f'compile --ranks=4 --schedule={path} --schedule_scaled'
  code, _ = run(capsys, request)
  assert code == 0


@pytest.mark.parametrize('command', ['check', 'determinism'])
def test_a_schedule_without_room_for_the_routing_is_to_blame(
  command, tmp_path, capsys
):
  # Given a schedule whose experts hold balanced rows only, when text routes,
  # then the schedule is named, not the ids that nobody typed.
  full = dataclasses.replace(OPTIONS, expert_capacity=12)
  path = tmp_path / 'full.schedule'
  schedule_file.save(
    path, schedule_file.Schedule(TINY, 'float32', 'combine', full)
  )
  code, error = run(capsys, f'{command} --dtype=f32 --schedule={path}')
  assert code == 2
  assert (
    f'schedule: expected one with room for the routing, got {path}' in error
  )
  assert 'expert_capacity=12' in error and '\n' not in error
