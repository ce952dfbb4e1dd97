"""`hpmoe timeline`: its outputs, and wrong requests."""

import json
import sys

import pytest

from hpmoe.backend_ascend.compiler.orders import schedule_file
from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import main
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import presets

TINY = ('--preset=tiny', '--ranks=2', '--row_block=16', '--launches=2')


@pytest.mark.parametrize('direction', ['forward', 'backward'])
def test_a_measured_launch(direction, tmp_path, capsys):
  files = {n: tmp_path / f'{n}.out' for n in ('trace', 'png', 'json')}
  paths = [f'--{name}={path}' for name, path in files.items()]
  code = main.main(['timeline', *TINY, f'--direction={direction}', *paths])
  assert code == cli.PARITY
  out = capsys.readouterr().out
  assert out.startswith(f'{direction}, measured here, ')
  report = json.loads(files['json'].read_text())
  trace = json.loads(files['trace'].read_text())
  assert report['tasks'] == trace['otherData']['tasks']
  assert report['arrows']['shown'] == trace['otherData']['arrows'] > 0
  assert files['png'].read_bytes().startswith(b'\x89PNG')
  for stage in report['stages']:
    assert stage['name'] in out


@pytest.mark.parametrize('direction', ['forward', 'backward'])
@pytest.mark.few(1)
def test_a_modelled_launch_names_its_bound(direction, tmp_path, capsys):
  files = {n: tmp_path / f'{n}.out' for n in ('trace', 'png', 'json')}
  paths = [f'--{name}={path}' for name, path in files.items()]
  # A shape that is only compiled: its routing is all that is made.
  layer = '--preset=ep16 --ranks=2 --tokens=256 --d_model=256 --d_ff=64'
  arguments = (
    f'timeline --machine=ascend_a3 {layer} --direction={direction}'.split()
  )
  assert main.main([*arguments, *paths]) == cli.PARITY
  out = capsys.readouterr().out
  assert out.startswith(f'{direction}, modelled, ascend_a3: ')
  report = json.loads(files['json'].read_text())
  roofline = report['roofline']
  needs = {part['name']: part['needs'] for part in roofline['parts']}
  assert roofline['seconds'] == max(needs.values()) == needs[roofline['name']]
  share = roofline['seconds'] / report['total']
  assert roofline['share'] == pytest.approx(share)
  assert 0 < roofline['share'] <= 1
  assert f'bound: {roofline["name"]}' in out
  for unit in report['units']:
    (part,) = (
      p for p in roofline['parts'] if p['name'] == unit['name'].lower()
    )
    assert part['busy'] == pytest.approx(unit['utilisation'])
  second_trace = tmp_path / 'again.out'
  main.main([*arguments, f'--trace={second_trace}'])
  assert second_trace.read_bytes() == files['trace'].read_bytes()


@pytest.mark.parametrize(
  'flags, message',
  [
    ((), "aic: expected at most 2 AIC on two, got 24, the tiny preset's: pass"),
    (('--aic=3',), 'aic: expected at most 2 AIC on two, got 3: pass --aic=2'),
    (('--aic=2', '--aiv=5'), 'aiv: expected at most 4 AIV on two, got 5: pass'),
  ],
)
def test_more_cores_than_a_machine_has_are_refused_by_their_option(
  flags, message, tmp_path, capsys
):
  machine = tmp_path / 'two.toml'
  machine.write_text(
    "base = 'ascend_a3'\n[figures]\n"
    + ''.join(
      f"{name} = {{ value = {cores}, unit = 'cores', tag = 'assumed', "
      "source = 'a test' }\n"
      for name, cores in dict(aic=2, aiv=4).items()
    )
  )
  arguments = ('timeline', '--preset=tiny', '--ranks=2', f'--machine={machine}')
  assert main.main([*arguments, *flags]) == cli.WRONG_REQUEST
  assert message in capsys.readouterr().err
  assert main.main([*arguments, '--aic=2', '--aiv=4']) == cli.PARITY


@pytest.mark.slow
def test_tune_and_timeline_take_the_same_routing(tmp_path):
  # Given one layer and schedule, when tune predicts its time and timeline
  # models it, no routing named, then both say the same.
  path, report = tmp_path / 'small.schedule', tmp_path / 'report.json'
  layer = ('--preset=small', '--ranks=2', '--dtype=bf16')
  options = ('--confirm=1', '--rounds=0', f'--out={path}')
  assert main.main(['tune', *layer, *options]) == cli.PARITY
  modelled = (f'--schedule={path}', '--machine=ascend_a3', f'--json={report}')
  assert main.main(['timeline', *layer, *modelled]) == cli.PARITY
  predicted = schedule_file.load(path).predicted_s['forward']
  total = json.loads(report.read_text())['total']
  assert total == pytest.approx(predicted, rel=1e-9)


def test_a_picture_without_its_extra_says_what_to_install(monkeypatch, capsys):
  monkeypatch.setitem(sys.modules, 'matplotlib', None)
  arguments = (
    'timeline',
    '--machine=ascend_a3',
    '--preset=tiny',
    '--png=t.png',
  )
  assert main.main(arguments) == cli.WRONG_REQUEST
  (line,) = capsys.readouterr().err.splitlines()
  assert 'matplotlib: expected the extra `models`, got none; ' in line
  assert '-m pip install' in line


def test_a_schedule_says_which_cores(tmp_path):
  path, report = tmp_path / 'tiny.schedule', tmp_path / 'report.json'
  options = granularity.Options(row_block=4, col_block=16, num_aic=3, num_aiv=5)
  layer = presets.config(presets.get('tiny'), 2)
  schedule_file.save(
    path, schedule_file.Schedule(layer, 'float32', 'combine', options)
  )
  request = ('timeline', '--preset=tiny', '--machine=ascend_a3', '--ranks=2')
  schedule = (f'--schedule={path}', f'--json={report}')
  assert main.main([*request, *schedule]) == cli.PARITY
  units = json.loads(report.read_text())['units']
  cores = {unit['name']: unit['cores'] for unit in units}
  assert cores == dict(AIC=2 * 3, AIV=2 * 5)
