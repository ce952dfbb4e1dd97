"""A failing case is made smaller, and fails as before."""

import dataclasses
import inspect
import shutil
import subprocess
import sys

import numpy as np
import pytest

from hpmoe.parity_tests.ascend import host
from hpmoe.parity_tests.candidates import checking
from hpmoe.parity_tests.candidates import in_process
from hpmoe.parity_tests.candidates import numpy_kernel_testing
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.case import folder as folder_lib
from hpmoe.parity_tests.case import input_files
from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import main
from hpmoe.parity_tests.explain import bugs_testing
from hpmoe.parity_tests.explain import shrink
from hpmoe.parity_tests.judge import check
from hpmoe.parity_tests.judge import request as request_lib
from hpmoe.parity_tests.judge import trial_testing as trial

CASE = case_lib.Case(preset='tiny', ranks=2)
LITTLE = case_lib.Case(
  preset='tiny:experts=4:d_model=8:d_ff=4', ranks=2, tokens=4
)
SMALL = case_lib.Case(preset='small', ranks=4)
# What a bug needs: more than one expert, or rows, or ranks.
NEEDS = dict(expert_after=dict(E=2), expert_before=dict(E=2), a_row=dict(R=2))


def request(kernel, case=CASE):
  function = bugs_testing.function(kernel)
  return request_lib.Request(case, in_process.Function(function))


def test_ranks_and_width_of_shared_experts_are_cut():
  # Given a layer of four ranks, each with a copy of six shared features,
  made = dataclasses.replace(CASE, ranks=4, d_shared=6).make()
  layer = shrink.Layer.from_inputs(made)
  assert layer.sizes['S'] == 6
  # when two of them and one rank are left,
  layer = dataclasses.replace(layer.cut('S', slice(2, 4)), ranks=1)
  # then so they are in a case.
  config = input_files.from_arrays(layer.arrays()).config
  assert (config.num_ranks, config.d_shared) == (1, 2)
  np.testing.assert_array_equal(
    layer.arrays()['w_shared_down'][0], made.arrays['w_shared_down'][0, 2:4]
  )


@pytest.mark.slow
@pytest.mark.parametrize('bug', bugs_testing.TWENTY)
def test_cases_of_some_ranks_are_made_small(bug):
  # given
  _, stage, said = bugs_testing.TWENTY[bug]
  function, direction = bugs_testing.planted(bug)
  case = dataclasses.replace(SMALL, direction=direction)

  # when
  [found] = shrink.shrink(
    request_lib.Request(case, in_process.Function(function))
  )

  # then
  sizes, needs = found.layer.sizes, NEEDS.get(bug, {})
  assert found.failure.stage == stage
  assert said.split('; ')[0] in found.failure.pattern
  assert sizes['R'] <= max(2, needs.get('R', 1))
  assert max(sizes['T'], sizes['E']) <= 4
  assert max(sizes['D'], sizes['F']) <= 16


def two(pair, case):
  function, direction, bugs = bugs_testing.PAIRS[pair]
  case = dataclasses.replace(case, direction=direction)
  return request_lib.Request(case, in_process.Function(function)), bugs


@pytest.mark.parametrize('pair', bugs_testing.PAIRS)
def test_two_bugs_are_told_apart(pair):
  # given
  asked, bugs = two(pair, CASE)

  # when
  found = shrink.separate_bugs(check.run(asked))

  # then
  assert len(found) == 2
  for (stage, said), (failure, look, also) in zip(bugs, found):
    assert (look[1], also) == (stage, [])
    assert said in failure.pattern


@pytest.mark.slow
@pytest.mark.parametrize('pair', bugs_testing.PAIRS)
def test_each_of_two_bugs_has_a_case(pair, tmp_path):
  # given
  asked, bugs = two(pair, SMALL)

  # when
  found = shrink.shrink(asked)
  shrink.write(found, str(tmp_path / 'smallest'), 'shrink')

  # then
  assert len(found) == 2
  for (stage, said), one in zip(bugs, found):
    sizes = one.layer.sizes
    assert one.failure.stage == stage
    assert said.split('; ')[0] in one.failure.pattern
    assert sizes['R'] <= 2 and max(sizes['D'], sizes['F']) <= 16
  second = folder_lib.read(tmp_path / 'smallest' / 'bug_2')
  assert second.config.num_tokens == found[1].layer.sizes['T']


def test_a_place_must_stay_where_little_else_is_said_and_no_number():
  for told, words in {
    'off by up to 0.3 %, of all; in the last 7 columns alone': True,
    'near what is expected; in row 3 alone': False,
    'as if y was zero; in the last 7 columns alone': False,
  }.items():
    assert shrink._words(told).startswith('in the last n columns') == words
  told = 'as if operands was rounded to tf32: {} of what is off is left'
  some = {shrink._words(told.format(left)) for left in ('nothing', '1/2e+05')}
  assert len(some) == 1


@pytest.mark.slow
def test_a_fault_of_ours_stays_the_same():
  # given: swapped experts need two of them
  candidate = host.Megakernel(fault='swapped_experts')
  asked = request_lib.Request(
    dataclasses.replace(CASE, direction='forward'), candidate
  )

  # when
  [found] = shrink.shrink(asked)

  # then
  assert found.failure.stage == 'gate_up'
  assert 2 <= found.layer.sizes['E'] <= 3


def test_a_right_kernel_has_none():
  # given
  asked = request(trial.Kernel(trial.ascending).forward)

  # when / then
  with pytest.raises(
    shrink.NothingFails, match='expected a case that it fails'
  ):
    shrink.shrink(asked)


def test_the_folder_shows_it_without_us(tmp_path, capsys):
  # given
  kernel, out = tmp_path / 'kernel.py', tmp_path / 'smallest'
  wrong = inspect.getsource(numpy_kernel_testing).replace(
    'weights[rank, token, slot]', '1'
  )
  kernel.write_text(wrong)
  names: dict = {}
  exec(kernel.read_text(), names)
  asked = request_lib.Request(
    dataclasses.replace(LITTLE, tokens=2), in_process.Function(names['moe'])
  )

  # when
  [found] = shrink.shrink(asked)
  shrink.write([found], str(out), 'shrink')

  # then
  sizes = found.layer.sizes
  assert sizes['R'] == sizes['E'] == sizes['K'] == 1
  assert max(sizes['T'], sizes['D'], sizes['F']) <= 4
  assert 'topk_weights was left out' in shrink.text([found], str(out))
  assert folder_lib.read(out).config.num_experts == 1
  alone = tmp_path / 'alone'
  shutil.copytree(out, alone)
  assert _reproduced(alone, kernel) == 1
  kernel.write_text(inspect.getsource(numpy_kernel_testing))
  assert _reproduced(alone, kernel) == 0
  given = [f'--candidate={kernel}:moe', f'--case={out}', '--out=none']
  assert main.main(['shrink', *given]) == cli.NO_PARITY
  assert 'nothing is written' in capsys.readouterr().out


def _reproduced(folder, kernel) -> int:
  command = [
    sys.executable,
    '-I',
    str(folder / 'reproduce.py'),
    f'{kernel}:moe',
  ]
  return subprocess.run(command, cwd=folder, check=False).returncode


@pytest.mark.parametrize('size', [2, 3])
def test_experts_of_a_token_stay_distinct(size):
  # given: K = 2 of 8 experts
  ids = np.array([[0, 7], [6, 4], [3, 1], [2, 5]], np.int32)

  # when
  made = shrink._distinct(ids - 1, size)

  # then
  assert made.min() >= 0 and made.max() < size
  assert all(len({*row}) == 2 for row in made)
  kept = (ids - 1 >= 0) & (ids - 1 < size)
  np.testing.assert_array_equal(made[kept], (ids - 1)[kept])


@pytest.mark.parametrize(
  'fault, late, said',
  [
    ('swapped_gate_up', False, 'swiglu task'),
    ('skipped_wait', True, 'does not wait for event 0, which dispatch task'),
  ],
)
@pytest.mark.slow
def test_of_our_own_launch_the_task_or_event_is_told(fault, late, said):
  # given
  modes = checking.Checking(late_puts=late)
  launch = host.Megakernel(checking=modes, fault=fault)

  # when
  [found] = shrink.shrink(request_lib.Request(LITTLE, launch))

  # then
  assert said in found.tasks[0]
  assert said in shrink.text([found], 'out')
