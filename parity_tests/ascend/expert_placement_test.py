"""`--expert_placement`: judged like any launch, and wrong ones are named."""

import json
from unittest import mock

import numpy as np
import pytest

from hpmoe.backend_ascend.host.load import expert_placement
from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import main

TINY = ('--preset=tiny', '--ranks=2', '--tokens=13', '--routing=zipf')
TWIN = ('--backend=ascend_twin', '--row_block=16', '--col_block=32')
LOADS = [3, 9, 1, 7, 5, 2, 8, 4]


@pytest.fixture
def path(tmp_path):
  path = tmp_path / 'loads.json'
  path.write_text(json.dumps(LOADS))
  return path


def run(capsys, command, *arguments) -> tuple[int, str]:
  """Returns the exit code and what was output on either channel."""
  code = main.main([command, *TINY, *arguments])
  return code, ''.join(capsys.readouterr())


def find_first_bad(output: str) -> str:
  """Returns the first tensor of a report's table that has a cross."""
  return next(line for line in output.splitlines() if '✕' in line).split()[0]


@pytest.mark.parametrize(
  'arguments',
  [
    ('--lane=exact,bitwise',),
    ('--isolate', '--lane=bitwise'),
    ('--lane=exact', *TWIN),
  ],
)
@pytest.mark.few(1)
def test_both_passes_are_judged(path, capsys, arguments):
  code, output = run(
    capsys, 'check', f'--expert_placement=loads:{path}', *arguments
  )
  assert code == cli.PARITY, output
  assert f', experts placed by loads:{path}' in output.splitlines()[0]


@pytest.mark.parametrize(
  'arguments',
  [
    ('--direction=forward', '--lane=exact,bitwise', '--dtype=bf16'),
    ('--lane=exact,bitwise,bounded',),
  ],
)
@pytest.mark.few(1)
def test_copies_are_judged(path, capsys, arguments):
  flag = f'--expert_placement=copies:{path}'
  code, output = run(capsys, 'check', flag, *arguments)
  assert code == cli.PARITY, output


@pytest.mark.parametrize('kind, dtype', [('loads', 'bf16'), ('copies', 'f32')])
def test_launches_have_the_bits_of_one_without(path, capsys, kind, dtype):
  code, output = run(
    capsys,
    'determinism',
    f'--expert_placement={kind}:{path}',
    '--interleavings=2',
    '--layout=3x5',
    f'--dtype={dtype}',
  )
  assert code == cli.PARITY, output


PlacedLayer = expert_placement.PlacedLayer


def _map_twice(place):
  def wrong(self, name, array):
    if name != 'topk_ids':
      return place(self, name, array)
    return self._placement.map_ids(self._ids)

  return wrong


def _leave_weights(place):
  def wrong(self, name, array):
    return array if name.startswith('w_') else place(self, name, array)

  return wrong


def _leave_gradients(restore):
  def wrong(self, name, array):
    return array if name.startswith('d_w_') else restore(self, name, array)

  return wrong


def _lose_second_copy(place):
  def wrong(self, name, array):
    weights = place(self, name, array)
    if name == 'w_down':
      experts = np.array(self._placement.experts)
      second = [e in experts[:i] for i, e in enumerate(experts)]
      weights = np.where(
        np.reshape(second, weights.shape[:2])[..., None, None], 0, weights
      )
    return weights

  return wrong


def _lose_gradient(sum_copies):
  def wrong(self, name, grads):
    return grads[self._first_places]

  return wrong


def _sum_twice(sum_copies):
  def wrong(self, name, grads):
    once = sum_copies(self, name, grads.copy())
    return 2 * once - grads[self._first_places]

  return wrong


@pytest.mark.parametrize(
  'kind, direction, method, plant, stage',
  [
    ('loads', 'both', '_place', _map_twice, 'counts'),
    ('loads', 'both', '_place', _leave_weights, 'gate_up'),
    ('loads', 'backward', '_restore', _leave_gradients, 'd_w_down'),
    ('copies', 'forward', '_place', _lose_second_copy, 'expert_out'),
    ('copies', 'backward', '_sum_copies', _lose_gradient, 'd_w_down'),
    ('copies', 'backward', '_sum_copies', _sum_twice, 'd_w_down'),
  ],
)
@pytest.mark.few(1)
def test_a_wrong_placement_is_named(
  path, capsys, kind, direction, method, plant, stage
):
  wrong = plant(getattr(PlacedLayer, method))
  with mock.patch.object(PlacedLayer, method, wrong):
    code, output = run(
      capsys,
      'check',
      f'--expert_placement={kind}:{path}',
      f'--direction={direction}',
      '--lane=exact',
    )
  assert code == cli.NO_PARITY, output
  assert find_first_bad(output) == stage


@pytest.mark.parametrize(
  'arguments, message',
  [
    (['--relay'], 'relay: expected none with --expert_placement'),
    (['--frontend=jax'], 'expert_placement: '),
    (['--preset=tp_norm'], 'expected a whole layer with --expert_placement'),
  ],
)
def test_what_has_no_placement_is_refused(path, capsys, arguments, message):
  flag = f'--expert_placement=loads:{path}'
  code, output = run(capsys, 'check', flag, *arguments)
  assert code == cli.WRONG_REQUEST
  assert message in output and output.count('\n') == 1


def test_gradients_of_copies_that_round_twice_are_refused(path, capsys):
  flag = f'--expert_placement=copies:{path}'
  code, output = run(capsys, 'check', flag, '--dtype=bf16')
  assert code == cli.WRONG_REQUEST
  assert 'expected dtype f32 or direction forward with copies' in output
  assert output.count('\n') == 1


@pytest.mark.parametrize(
  'arguments, message',
  [
    (['--dtype=bf16'], 'expected float32 where gradients of copies are summed'),
    (['--backend=ascend_twin'], 'no copies of experts in the backward pass on'),
    (['--order=arrival'], 'expert_placement: expected none'),
  ],
)
def test_a_law_that_copies_do_not_have_is_refused(
  path, capsys, arguments, message
):
  flag = f'--expert_placement=copies:{path}'
  count = ['--interleavings=1', '--layout=1x1', '--direction=backward']
  code, output = run(capsys, 'determinism', flag, *count, *arguments)
  assert code == cli.WRONG_REQUEST
  (line,) = [x for x in output.splitlines() if x.startswith('hpmoe')]
  assert message in line
