"""What `make` says where a tool lacks: one line, before anything is built."""

import os
import platform
import subprocess

import pytest

from hpmoe.tools import import_graph

# No target gets as far as an environment, and no compiler can link a runtime.
LACKING = ('PYTHON=false', 'CLANGXX=false', 'BAZEL=false', 'NPU_CMAKE=false')


def _run_make(target, tmp_path, **environment):
  """Returns what `make` says but for its own lines."""
  environment_kept = {
    k: v
    for k, v in os.environ.items()
    if not k.startswith(('MAKE', 'MFLAGS', 'ASCEND_'))
  }
  process = subprocess.run(
    ['make', f'VENV={tmp_path}/venv', *LACKING, target],
    cwd=import_graph.ROOT,
    env=environment_kept | environment,
    capture_output=True,
    text=True,
  )
  assert process.returncode == 2
  lines = (process.stdout + process.stderr).splitlines()
  return [line for line in lines if not line.startswith('make')]


@pytest.mark.parametrize(
  ('target', 'lacks'),
  [
    (
      'sanitize',
      'false: expected a compiler with the runtimes of '
      '-fsanitize=address,undefined. On Debian: apt-get install g++, or beside '
      'Clang libclang-rt-dev',
    ),
    (
      'sanitize-thread',
      'false: expected a compiler with the runtimes of '
      '-fsanitize=thread. On Debian: apt-get install g++, or beside Clang '
      'libclang-rt-dev',
    ),
    (
      'bazel',
      'false: expected Bazel. On Debian: apt-get install bazel-bootstrap',
    ),
    (
      'ascend-npu',
      'ASCEND_HOME_PATH: expected the folder of an installed CANN '
      'toolkit, 8.5.0 or newer, as its set_env.sh sets it, got none',
    ),
  ],
)
def test_a_target_says_in_one_line_what_lacks(target, lacks, tmp_path):
  assert _run_make(target, tmp_path, CXX='false') == [lacks]


@pytest.mark.parametrize('stamp', ['full', 'newest'])
def test_the_suite_has_the_extras_without_which_tests_are_skipped(stamp):
  makefile = (import_graph.ROOT / 'Makefile').read_text()
  rule = makefile.partition(f'$(VENV)/{stamp}.stamp:')[2].partition('\n\n')[0]
  extras = rule.partition('moe[')[2].partition(']')[0].split(',')
  assert {'models', 'mpi', 'test'} <= set(extras)
  assert ('mindspore' in extras) == (stamp == 'full')


_OLD = (
  'ASCEND_HOME_PATH: expected the folder of an installed CANN toolkit, 8.5.0 '
  'or newer, as its set_env.sh sets it, got {version} in {folder}'
)
_NO_CMAKE = 'false: expected CMake. On Debian: apt-get install cmake'


@pytest.mark.parametrize(
  ('expected', 'version'),
  [
    *[(_OLD, version) for version in ('8.3.RC1', '8.0.0.alpha003', '7.0.1')],
    *[(_NO_CMAKE, version) for version in (None, '8.5.0', '9.1.0', '10.0.0')],
  ],
)
def test_operators_for_an_npu_need_a_new_cann_and_cmake(
  expected, version, tmp_path
):
  # Given a folder that looks like that of a CANN, which may not say which,
  if version:
    info = f'{platform.machine()}-linux/ascend_toolkit_install.info'
    (tmp_path / info).parent.mkdir()
    (tmp_path / info).write_text(f'package_name=toolkit\nversion={version}\n')
  config = tmp_path / 'tikcpp/ascendc_kernel_cmake/asc-config.cmake'
  config.parent.mkdir(parents=True)
  config.touch()

  # when there is no CMake, then one line names what lacks, an old CANN first.
  lines = _run_make('ascend-npu', tmp_path, ASCEND_HOME_PATH=str(tmp_path))
  assert lines == [expected.format(version=version, folder=tmp_path)]
