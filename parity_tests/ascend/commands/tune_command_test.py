"""`hpmoe tune`: a schedule file that the other commands take, or one line."""

import json

import pytest

from hpmoe.backend_ascend.compiler.orders import schedule_file
from hpmoe.backend_ascend.simulator.tune import levers
from hpmoe.backend_ascend.simulator.tune import space
from hpmoe.parity_tests.commands import main

SMALL = ['--preset=small', '--ranks=2', '--confirm=2', '--rounds=0']


@pytest.fixture(autouse=True)
def _narrow(monkeypatch):
  """The model takes a second for the whole grid, whatever the layer."""
  grid = {
    name: dict(list(options.items())[:2])
    for name, options in space.GRID.items()
  }
  monkeypatch.setattr(space, 'GRID', grid)


def test_writes_what_check_and_law_run(tmp_path, capsys):
  # Given a layer, when a schedule is searched for two routings, then the report
  # says what was found, and the file holds in all lanes and under the law.
  path, json_path = tmp_path / 'best.schedule', tmp_path / 'tune.json'
  arguments = f'--dtype=f32 --routing=balanced,skewed --out={path} '
  arguments += f'--json={json_path} --png={tmp_path / "search.png"}'
  code = main.main(['tune', *SMALL, *arguments.split()])
  output = capsys.readouterr().out
  assert code == 0
  assert 'published' in output and 'slower by' in output
  assert f'schedule: {path}' in output
  report = json.loads(json_path.read_text())
  assert report['cases'] == ['balanced', 'skewed']
  assert report['target'] == 'ascend'
  assert 'over the published point with levers, goal 1.15x' in output
  assert 'fitted shares at 1' in output
  for row in (*report['ablation'], *report['levers']):
    assert {'choice', 'mine', 'without', 'gain'} <= row.keys()
  for case in report['cases']:
    total = sum(report['levered']['simulated'][case].values())
    assert report['peak'][case]['seconds'] <= report['bound'][case]['seconds']
    for lever in report['levers']:
      assert lever['seconds'][case] > 0 < total
      hint = levers.LEVERS[lever['choice']].hint
      assert f'{lever["choice"]}: {hint}; ' in output
  best = report['best']['simulated']['balanced']
  assert sum(best.values()) <= sum(
    report['confirmed']['simulated']['balanced'].values()
  )
  assert schedule_file.load(path).predicted_s == best
  assert (tmp_path / 'search.png').read_bytes().startswith(b'\x89PNG')
  layer_flags = ['--preset=small', '--ranks=2', f'--schedule={path}']
  assert main.main(['compile', *layer_flags, '--target=ascend']) == 0
  # The routing of a check may need more room than that of the search.
  scaled = ['--preset=tiny', '--ranks=2', '--schedule_scaled', layer_flags[2]]
  assert main.main(['check', *scaled, '--routing=balanced']) == 0


@pytest.mark.parametrize(
  'base, target, aic, aiv',
  [
    ('ascend_a2', 'ascend', 20, (20, 40)),
    ('hopper', 'host', 24, (24, 48)),
  ],
)
def test_a_machine_file_has_target_and_cores_of_its_base(
  tmp_path, base, target, aic, aiv
):
  # Given a machine of the user's, based on one that ships, when a schedule is
  # searched, then its tiles are those of the base's target, a list scheduler
  # plans with that machine's own costs, and the base's cores work, two AIVs
  # beside each AIC; where it has no such units, those of an A3.
  machine_path, json_path = tmp_path / 'mine.toml', tmp_path / 'tune.json'
  machine_path.write_text(f'base = {base!r}')
  arguments = [
    f'--machine={machine_path}',
    f'--json={json_path}',
    '--confirm=1',
  ]
  assert main.main(['tune', *SMALL, *arguments]) == 0
  report = json.loads(json_path.read_text())
  assert (report['machine'], report['target']) == ('mine', target)
  options = report['best']['options']
  assert options['order']['machine'] == str(machine_path)
  assert options['num_aic'] == aic and options['num_aiv'] in aiv
  published = report['published']['options']
  assert published['num_aiv'] == aiv[0]
  assert published['order']['machine'] == str(machine_path)


@pytest.mark.slow
@pytest.mark.parametrize(
  'layer, request_text',
  [
    ('--preset=tiny --ranks=2', 'check --preset=tiny --dtype=f32 --ranks=2 '),
    (
      '--preset=ep16 --ranks=2 --tokens=256 --d_model=256 --d_ff=64',
      'check --preset=tiny --dtype=f32 --ranks=2 --routing=balanced '
      '--schedule_scaled',
    ),
  ],
)
def test_a_schedule_is_judged_by_one_request(
  layer, request_text, tmp_path, capsys
):
  # Given a layer, when its schedule is to be judged, then it is launched and
  # judged, scaled where the layer only compiles, by the printed request;
  # and the exit code is the judge's.
  path = tmp_path / 'best.schedule'
  options = f'--dtype=f32 --confirm=1 --rounds=0 --out={path} --check'
  assert main.main(['tune', *layer.split(), *options.split()]) == 0
  text = capsys.readouterr().out
  (line,) = [x for x in text.splitlines() if x.startswith('judge it: ')]
  assert 'PASS: ' in text
  start, _, request = line.partition('hpmoe ')
  assert request.startswith(request_text)
  assert request.endswith(f' --schedule={path}')
  assert main.main(request.split()) == 0


@pytest.mark.slow
def test_a_placement_by_other_batches_is_written_and_judged(tmp_path, capsys):
  # Given an uneven routing, when a schedule is searched, then where experts lie
  # by other batches is told, written, and in the request that judges both.
  path, places = tmp_path / 'best.schedule', tmp_path / 'places.json'
  options = f'--dtype=f32 --routing=zipf --out={path} --out_placement={places}'
  layer = ['--preset=tiny', '--ranks=2', '--confirm=1', '--rounds=0']
  assert main.main(['tune', *layer, *options.split()]) == 0
  text = capsys.readouterr().out
  assert 'placed by other batches' in text
  (line,) = [x for x in text.splitlines() if x.startswith('judge it: ')]
  assert f'--expert_placement={places}' in line
  request = line.partition('hpmoe ')[2].split()
  assert main.main([*request, '--lane=exact']) == 0


def test_a_routing_without_other_batches_has_no_placement(tmp_path, capsys):
  path = tmp_path / 'places.json'
  assert main.main(['tune', *SMALL, f'--out_placement={path}']) == 2
  error = capsys.readouterr().err
  assert 'out_placement: expected a routing with other batches' in error


def test_what_is_judged_is_written(capsys):
  assert main.main(['tune', *SMALL, '--check']) == 2
  assert 'check: expected --out with it' in capsys.readouterr().err


def test_a_space_without_a_point_is_told_in_one_line(capsys, monkeypatch):
  # Given tiles that no core of the target holds, then there is nothing to find.
  large = {'512x512': {'row_block': 512, 'col_block': 512}}
  monkeypatch.setitem(space.GRID, 'tile', large)
  code = main.main(['tune', *SMALL])
  error = capsys.readouterr().err.strip()
  assert code == 2
  assert error == (
    'hpmoe tune: space: expected a point that can be run, got no tile for one'
  )
