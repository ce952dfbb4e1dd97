"""`hpmoe reproduce`: wrong requests, and a witness that is arithmetic."""

import dataclasses
import json

import pytest

from hpmoe.backend_ascend.simulator.machines import machine as machine_lib
from hpmoe.backend_ascend.simulator.reproduce import witness as witness_lib
from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import main


@pytest.fixture
def reproduce(monkeypatch):
  """Returns a function that reproduces a witness; it returns the exit code."""

  def run(witness, *flags):
    monkeypatch.setattr(witness_lib, 'get', lambda name: witness)
    return main.main(('reproduce', *flags))

  return run


def _read_refusal(capsys, *arguments) -> str:
  assert main.main(('reproduce', *arguments)) == cli.WRONG_REQUEST
  output = capsys.readouterr()
  assert output.err.count('\n') == 1
  assert not output.out
  return output.err


def _run(machines, tell):
  tell('run')
  machine = machines['ascend_a3']
  return {
    'sum': machine['cube_efficiency'],
    'launch': 2 * machine['launch'],
    'launches': 4 * machine['launch'],
  }


_WITNESS = witness_lib.Witness(
  name='arithmetic',
  about='a test',
  machines=('ascend_a3',),
  rows=(
    witness_lib.Row('sum', 0.9, '1', 'time', 'here', fitted=True),
    witness_lib.Row('launch', 20e-6, 's', 'time', 'here'),
    witness_lib.Row('launches', 40e-6, 's', 'time', 'here'),
  ),
  run=_run,
  roofline=lambda machines: {'launch': 3.0, 'launches': 3.0},
  goals=(witness_lib.Goal('time', 0.01),),
  fits=(witness_lib.Fit('ascend_a3', 'cube_efficiency', ('sum',)),),
  gaps=(witness_lib.Gap('the rest', 'it is a test'),),
)


def test_a_reproduction_as_text_data_and_plot(capsys, tmp_path, reproduce):
  # Given a witness of three rows, when it is reproduced after a fit, then the
  # table, the held-out error, the sensitivity of the one row that rests on a
  # guess, and the gap are told, and the fit has moved the other row.
  report, plot = tmp_path / 'out.json', tmp_path / 'out.png'
  arguments = ('arithmetic', '--fit', f'--json={report}', f'--png={plot}')
  assert reproduce(_WITNESS, *arguments) == cli.PARITY
  out = capsys.readouterr().out
  for text in ('held out', 'fitted', '2: -50', '2: +100', 'it is a test'):
    assert text in out
  content = json.loads(report.read_text())
  assert content['verdict'] == 'pass'
  assert content['rows'][0]['simulated'] == pytest.approx(0.9)
  assert content['rows'][1]['error'] == pytest.approx(0)
  assert content['fitted'][0]['value'] == pytest.approx(0.9)
  changes = [e['changes']['launch'] for e in content['sensitivity']]
  assert sorted(changes)[0] == pytest.approx(-0.5)
  assert sorted(changes)[-1] == pytest.approx(1)
  assert plot.read_bytes().startswith(b'\x89PNG')


@pytest.mark.parametrize(
  'quick, flags, is_shown',
  [
    (True, (), True),
    (True, ('--nosensitivity',), False),
    (False, (), False),
    (False, ('--sensitivity',), True),
  ],
)
def test_sensitivity_that_takes_minutes_is_for_those_who_ask(
  capsys, reproduce, quick, flags, is_shown
):
  reproduce(dataclasses.replace(_WITNESS, quick=quick), *flags)
  out = capsys.readouterr().out
  assert ('put_head' in out) == is_shown
  assert ('assumed figure decides: --sensitivity' in out) == (not is_shown)


def test_other_hypotheses_are_told(capsys, tmp_path, reproduce):
  # Given a witness with a variant, when hypotheses are asked for, then its
  # errors stand in text and report.
  variant = witness_lib.Variant('the same again', _WITNESS)
  witness = dataclasses.replace(_WITNESS, variants=(variant,))
  report = tmp_path / 'out.json'
  arguments = ('--hypotheses', '--nosensitivity', f'--json={report}')
  assert reproduce(witness, *arguments) == cli.PARITY
  assert 'the same again' in capsys.readouterr().out
  (hypothesis,) = json.loads(report.read_text())['hypotheses']
  assert hypothesis['fitted']['cube_efficiency'] == pytest.approx(0.9)
  assert hypothesis['held_out'][0]['mean_error'] == pytest.approx(0)


def test_a_machine_of_the_user_need_not_be_fitted(capsys, reproduce):
  # Given a machine whose figures were fitted to nothing, when a witness is to
  # run on it, then it does, with its figures.
  assert machine_lib.load('hopper').figures['cube_efficiency'].tag == 'assumed'
  arguments = ('--machine=hopper', '--nosensitivity')
  assert reproduce(_WITNESS, *arguments) == cli.NO_PARITY
  assert f'{machine_lib.load("hopper")["cube_efficiency"]:.4g}' in (
    capsys.readouterr().out
  )


def test_a_machine_of_another_fabric_has_not_what_was_fitted(
  capsys, reproduce, tmp_path
):
  # Given a figure of a link that was fitted, and a machine without that link,
  # when a witness is to run on it, then it does, and reports no such fit.
  fitted = witness_lib.Fit('ascend_a3', 'bus_link', ('sum',), 8e10)
  witness = dataclasses.replace(_WITNESS, fits=(fitted,))
  assert 'bus_link' not in machine_lib.load('host').figures
  path = tmp_path / 'out.json'
  arguments = ('--machine=host', '--nosensitivity', f'--json={path}')
  assert reproduce(witness, *arguments) == cli.NO_PARITY
  assert 'No figure was fitted.' in capsys.readouterr().out
  assert json.loads(path.read_text())['fitted'] == []
  message = _read_refusal(capsys, '--machine=host', '--fit')
  assert "fit: expected a figure 'bus_link' in host, got none" in message


def test_no_skill_is_exit_1_and_told(reproduce, capsys, tmp_path):
  # Given a witness whose roofline is as near, when it is reproduced, then the
  # goal is met and it does not pass; text and report say why, and what was
  # chosen by how many rows.
  claim = witness_lib.Claim('it is long', lambda v: '!'[v['else'] > 1 :])
  witness = dataclasses.replace(
    _WITNESS,
    claims=(claim,),
    informed=('its form',),
    run=lambda machines, tell: _run(machines, tell) | {'else': 2.0},
    roofline=lambda machines: {'launch': 20e-6, 'launches': 40e-6},
  )
  path = tmp_path / 'out.json'
  code = reproduce(witness, '--nosensitivity', f'--json={path}')
  assert code == cli.NO_PARITY
  out = capsys.readouterr().out
  assert 'NO SKILL in time' in out and 'Beyond it: it is long.' in out
  assert 'audit: 1 figures chosen by 1 rows, 2 by those of others' in out
  assert '2 held-out rows count' in out and 'rows known: its form' in out
  content = json.loads(path.read_text())
  (group,) = content['held_out']
  assert group['mean_error'] <= group['limit']
  assert (group['has_skill'], group['holds']) == (False, False)
  assert group['nulls'] == {
    'roofline': pytest.approx(0),
    'best constant': pytest.approx(0.25),
    'best-scaled roofline': pytest.approx(0),
  }
  assert content['verdict'] == 'fail'
  assert content['audit']['fitted_rows'] == 1
  assert content['audit']['evidence'] == 2


def test_a_predictor_of_some_rows_is_compared_on_those(reproduce, capsys):
  # Given a row that we meet, which has a nearest one, and one 100 % off, which
  # has none, when told, then our error on the first stands beside.
  near = dataclasses.replace(_WITNESS.rows[1], nearest='sum')
  far = dataclasses.replace(near, name='else', published=1.0, nearest='')
  witness = dataclasses.replace(
    _WITNESS,
    rows=(_WITNESS.rows[0], near, far),
    goals=(),
    run=lambda machines, tell: _run(machines, tell) | {'else': 2.0},
  )
  reproduce(witness, '--nosensitivity')
  line = 'time: no nearest fitted row for else; on the others ours is 0.00%'
  assert line in capsys.readouterr().out


def test_exit_code_1_means_that_a_goal_fails_and_nothing_else(
  reproduce, capsys, tmp_path
):
  # Given a claim that fails beside a goal that holds, when reproduced, then the
  # exit code is 0 and the claim is printed; of rows that are withdrawn in place
  # of a goal likewise, however far off; and 1 of a goal that fails.
  claim = witness_lib.Claim('it is short', lambda values: 'it is not')
  witness = dataclasses.replace(_WITNESS, claims=(claim,))
  path = tmp_path / 'out.json'
  flags = ('--nosensitivity', f'--json={path}')
  assert reproduce(witness, *flags) == cli.PARITY
  out = capsys.readouterr().out
  assert 'CLAIM FAILS: it is short: it is not' in out
  assert 'PASS: 1 of 1 goals hold, failing claims: 1, ' in out
  assert json.loads(path.read_text())['claims'][0]['holds'] is False

  far = lambda machines, tell: dict(sum=0.9, launch=1.0, launches=1.0)
  assert reproduce(dataclasses.replace(witness, run=far)) == cli.NO_PARITY
  assert 'FAIL: 0 of 1 goals hold, not time, failing' in capsys.readouterr().out

  withdrawal = witness_lib.Withdrawal('time', 'not testable: by nobody')
  withdrawn = dataclasses.replace(
    witness, run=far, goals=(), withdrawals=(withdrawal,)
  )
  assert reproduce(withdrawn, *flags) == cli.PARITY
  out = capsys.readouterr().out
  assert 'WITHDRAWN time: not testable: by nobody' in out
  assert 'NO GOAL, withdrawn: 1, failing claims: 1, ' in out
  content = json.loads(path.read_text())
  assert content['verdict'] == 'no goal'
  assert content['held_out'][0]['withdrawal'] == 'not testable: by nobody'


def test_a_hypothesis_outside_physics_is_refused_beside_the_others(
  reproduce, capsys, tmp_path
):
  faster = dataclasses.replace(
    _WITNESS,
    run=lambda machines, tell: {
      name: value / 2 for name, value in _run(machines, tell).items()
    },
  )
  witness = dataclasses.replace(
    _WITNESS, variants=(witness_lib.Variant('twice as fast', faster),)
  )
  path = tmp_path / 'out.json'
  flags = ('--hypotheses', '--nosensitivity', f'--json={path}')
  assert reproduce(witness, *flags) == cli.PARITY
  assert 'cube_efficiency: expected at most 1' in capsys.readouterr().out
  (content,) = json.loads(path.read_text())['hypotheses']
  assert 'got 1.8' in content['refused']
