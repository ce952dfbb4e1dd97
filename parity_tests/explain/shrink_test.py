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
  inputs = dataclasses.replace(CASE, ranks=4, d_shared=6).make()
  layer = shrink.Layer.from_inputs(inputs)
  assert layer.sizes['S'] == 6
  # when two of them and one rank are left,
  layer = dataclasses.replace(layer.cut('S', slice(2, 4)), ranks=1)
  # then so they are in a case.
  config = input_files.from_arrays(layer.arrays()).config
  assert (config.num_ranks, config.d_shared) == (1, 2)
  np.testing.assert_array_equal(
    layer.arrays()['w_shared_down'][0], inputs.arrays['w_shared_down'][0, 2:4]
  )


@pytest.mark.slow
@pytest.mark.parametrize('bug', bugs_testing.TWENTY)
def test_cases_of_some_ranks_are_made_small(bug):
  # given
  _, stage, words = bugs_testing.TWENTY[bug]
  function, direction = bugs_testing.plant(bug)
  case = dataclasses.replace(SMALL, direction=direction)

  # when
  [smallest] = shrink.shrink(
    request_lib.Request(case, in_process.Function(function))
  )

  # then
  sizes, needs = smallest.layer.sizes, NEEDS.get(bug, {})
  assert smallest.failure.stage == stage
  assert words.split('; ')[0] in smallest.failure.pattern
  assert sizes['R'] <= max(2, needs.get('R', 1))
  assert max(sizes['T'], sizes['E']) <= 4
  assert max(sizes['D'], sizes['F']) <= 16


def request_pair(pair, case):
  function, direction, bugs = bugs_testing.PAIRS[pair]
  case = dataclasses.replace(case, direction=direction)
  return request_lib.Request(case, in_process.Function(function)), bugs


@pytest.mark.parametrize('pair', bugs_testing.PAIRS)
@pytest.mark.few(2)
def test_two_bugs_are_told_apart(pair):
  # given
  pair_request, bugs = request_pair(pair, CASE)

  # when
  separated = shrink.separate_bugs(check.run(pair_request))

  # then
  assert len(separated) == 2
  for (stage, words), (failure, look, other_stages) in zip(bugs, separated):
    assert (look[1], other_stages) == (stage, [])
    assert words in failure.pattern


@pytest.mark.slow
@pytest.mark.parametrize('pair', bugs_testing.PAIRS)
def test_each_of_two_bugs_has_a_case(pair, tmp_path):
  # given
  pair_request, bugs = request_pair(pair, SMALL)

  # when
  smallest_cases = shrink.shrink(pair_request)
  shrink.write(smallest_cases, str(tmp_path / 'smallest'), 'shrink')

  # then
  assert len(smallest_cases) == 2
  for (stage, words), smallest in zip(bugs, smallest_cases):
    sizes = smallest.layer.sizes
    assert smallest.failure.stage == stage
    assert words.split('; ')[0] in smallest.failure.pattern
    assert sizes['R'] <= 2 and max(sizes['D'], sizes['F']) <= 16
  second = folder_lib.read(tmp_path / 'smallest' / 'bug_2')
  assert second.config.num_tokens == smallest_cases[1].layer.sizes['T']


def test_a_place_must_stay_where_little_else_is_said_and_no_number():
  for pattern, words in {
    'off by up to 0.3 %, of all; only in the last 7 columns': True,
    'near what is expected; only in row 3': False,
    'as if y was zero; only in the last 7 columns': False,
  }.items():
    assert (
      shrink._words(pattern).startswith('only in the last n columns') == words
    )
  pattern = 'as if operands was rounded to tf32: leaves {}'
  distinct_words = {
    shrink._words(pattern.format(left))
    for left in ('no error', '1/2e+05 of the error')
  }
  assert len(distinct_words) == 1


@pytest.mark.slow
def test_a_fault_of_ours_stays_the_same():
  # given: swapped experts need two of them
  candidate = host.Megakernel(fault='swapped_experts')
  fault_request = request_lib.Request(
    dataclasses.replace(CASE, direction='forward'), candidate
  )

  # when
  [smallest] = shrink.shrink(fault_request)

  # then
  assert smallest.failure.stage == 'gate_up'
  assert 2 <= smallest.layer.sizes['E'] <= 3


def test_a_right_kernel_has_none():
  # given
  right_request = request(trial.Kernel(trial.ascending).forward)

  # when / then
  with pytest.raises(shrink.NothingFails, match='expected a case that fails'):
    shrink.shrink(right_request)


@pytest.mark.parametrize(
  ('flag', 'field'), [('weights', 'quantised'), ('x_form', 'x_form')]
)
def test_codes_of_groups_do_not_shrink(flag, field):
  # given
  case = dataclasses.replace(CASE, **{field: 'e4m3_1x128'})

  # when / then
  with pytest.raises(ValueError, match=f'^{flag}: expected none, codes of'):
    shrink.shrink(request(trial.Kernel(trial.ascending).forward, case))


@pytest.mark.slow
def test_the_folder_shows_it_without_us(tmp_path, capsys):
  # given
  kernel, out = tmp_path / 'kernel.py', tmp_path / 'smallest'
  wrong = inspect.getsource(numpy_kernel_testing).replace(
    'weights[rank, token, slot]', '1'
  )
  kernel.write_text(wrong)
  names: dict = {}
  exec(kernel.read_text(), names)
  kernel_request = request_lib.Request(
    dataclasses.replace(LITTLE, tokens=2), in_process.Function(names['moe'])
  )

  # when
  [smallest] = shrink.shrink(kernel_request)
  shrink.write([smallest], str(out), 'shrink')

  # then
  sizes = smallest.layer.sizes
  assert sizes['R'] == sizes['E'] == sizes['K'] == 1
  assert max(sizes['T'], sizes['D'], sizes['F']) <= 4
  assert 'topk_weights was left out' in shrink.text([smallest], str(out))
  assert folder_lib.read(out).config.num_experts == 1
  alone = tmp_path / 'alone'
  shutil.copytree(out, alone)
  assert _reproduced(alone, kernel) == 1
  kernel.write_text(inspect.getsource(numpy_kernel_testing))
  assert _reproduced(alone, kernel) == 0
  arguments = [f'--candidate={kernel}:moe', f'--case={out}', '--out=none']
  assert main.main(['shrink', *arguments]) == cli.NO_PARITY
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
  distinct_ids = shrink._distinct(ids - 1, size)

  # then
  assert distinct_ids.min() >= 0 and distinct_ids.max() < size
  assert all(len({*row}) == 2 for row in distinct_ids)
  is_kept = (ids - 1 >= 0) & (ids - 1 < size)
  np.testing.assert_array_equal(distinct_ids[is_kept], (ids - 1)[is_kept])


@pytest.mark.parametrize(
  'fault, late, words',
  [
    ('swapped_gate_up', False, 'swiglu task'),
    ('skipped_wait', True, 'does not wait for event 0, which dispatch task'),
  ],
)
@pytest.mark.slow
def test_of_our_own_launch_the_task_or_event_is_told(fault, late, words):
  # given
  modes = checking.Checking(late_puts=late)
  launch = host.Megakernel(checking=modes, fault=fault)

  # when
  [smallest] = shrink.shrink(request_lib.Request(LITTLE, launch))

  # then
  assert words in smallest.tasks[0]
  assert words in shrink.text([smallest], 'out')
