"""Mistakes of public kernels: each is named, and the kernel without it runs."""

import subprocess

import pytest

from hpmoe.backend_ascend.twin import twin_testing

_MODES = ('in order', 'seeded', 'late')
# What is found in every mode: the twin's kind and words, or how much of the
# result is off where all that is read was written.
_FINDINGS = {
  'ExpertWithoutRows': 'undefined []: which nobody has written',
  'UnpermuteTail': '128 off',
  'RightPadding': '3 off',
  'SharedWorkspace': 'race [event]: writes space of rank 0 + 0x0 (256 B)',
  'QueueOfOne': 'refused []: AllocTensor: expected a free buffer, got 1',
  'FlagReused': 'flag [: SetFlag<MTE2_MTE3>(0): ',
}


@pytest.fixture(name='outcomes', scope='module')
def run_fixture(tmp_path_factory):
  binary = tmp_path_factory.mktemp('bugs') / 'public_bugs'
  source = twin_testing.TWIN / 'examples/public_bugs_test.cc'
  twin_testing.compile_program(source, binary)
  ran = subprocess.run([binary], capture_output=True, text=True, check=True)
  lines = [line.split('|') for line in ran.stdout.splitlines()]
  return {(name, form, mode): text for name, form, mode, text in lines}


def test_every_kernel_ran_in_every_mode(outcomes):
  forms = ('right', 'wrong')
  assert outcomes.keys() == {
    (name, form, mode)
    for name in _FINDINGS
    for form in forms
    for mode in _MODES
  }


@pytest.mark.parametrize('mode', _MODES)
@pytest.mark.parametrize('name', _FINDINGS)
def test_a_right_kernel_gives_its_result(outcomes, name, mode):
  assert outcomes[name, 'right', mode] == '0 off'


@pytest.mark.parametrize('mode', _MODES)
@pytest.mark.parametrize('name', _FINDINGS)
def test_what_is_wrong_is_named(outcomes, name, mode):
  kind, _, words = _FINDINGS[name].partition(': ')
  text = outcomes[name, 'wrong', mode]
  assert text.startswith(kind) and words in text
  assert not words or 'public_bugs.h:' in text
