"""A kernel that is not ours runs on the twin, and its mistake is named."""

import subprocess

from hpmoe.backend_ascend.twin import twin_testing

_RUN = twin_testing.TWIN / 'examples/run_vector_add.cc'
_MODES = ('in order', 'seeded', 'late')


def test_the_kernel_without_enque_and_deque_is_named_in_every_mode(tmp_path):
  # Given two kernels, when they run in each mode, then the right one adds, and
  # of the other an error follows; unchecked, in order alone its sum is right.
  binary = tmp_path / 'run_vector_add'
  twin_testing.compile_program(_RUN, binary)
  ran = subprocess.run([binary], capture_output=True, text=True, check=True)
  lines = ran.stdout.splitlines()

  assert lines[:3] == [f'vector_add, {mode}: the sum' for mode in _MODES]
  for mode, head, error in zip(_MODES, lines[3:9:2], lines[4:9:2]):
    assert head.startswith(f'vector_add_unordered, {mode}: ')
    assert error.startswith('  hazard: vector_add_unordered at ')
    assert 'examples/vector_add_unordered.h:' in error
    assert 'SetFlag/WaitFlag<' in error
  unchecked = 'vector_add_unordered, {}, order not checked: {}'
  assert lines[9] == unchecked.format('in order', 'the sum')
  assert not lines[10].startswith(' ')
  assert unchecked.format('late', 'not the sum') in lines
