"""A kernel that is not ours runs on the twin, and its mistake is named."""

import subprocess

import pytest

from hpmoe.backend_ascend.kernels import twin_testing

_RUN = twin_testing.TWIN / 'examples/run_vector_add.cc'
_MODES = ('in order', 'seeded', 'late')


@pytest.fixture(scope='module')
def said(tmp_path_factory) -> dict[str, list[str]]:
  """What was printed of each launch: the head, then its errors."""
  binary = tmp_path_factory.mktemp('examples') / 'run_vector_add'
  twin_testing.compile_program(_RUN, binary)
  ran = subprocess.run([binary], capture_output=True, text=True, check=True)
  by_launch: dict[str, list[str]] = {}
  for line in ran.stdout.splitlines():
    if not line.startswith(' '):
      head, _, verdict = line.partition(': ')
      by_launch[head] = errors = [verdict]
    else:
      errors.append(line.strip())
  return by_launch


@pytest.mark.parametrize('mode', _MODES)
def test_the_right_kernel_adds(said, mode):
  assert said[f'vector_add, {mode}'] == ['the sum']


@pytest.mark.parametrize('mode', _MODES)
def test_the_kernel_without_enque_and_deque_is_named(said, mode):
  _, error = said[f'vector_add_unordered, {mode}']

  assert error.startswith('hazard: vector_add_unordered at ')
  assert 'examples/vector_add_unordered.h:' in error
  assert 'SetFlag/WaitFlag<' in error


def test_in_order_alone_does_not_see_the_mistake(said):
  head = 'vector_add_unordered, {}, order not checked'

  assert said[head.format('in order')] == ['the sum']
  assert said[head.format('late')][0] == 'not the sum'
