"""`make ascend-npu` and `ascend-npus`, with stand-ins for what they need."""

import os
import pathlib
import subprocess

import numpy as np
import pytest

from hpmoe.backend_ascend.device.npus import local_ranks
from hpmoe.backend_ascend.device.standin import rehearsal
from hpmoe.backend_ascend.host.launch import runtime
from hpmoe.backend_ascend.host.launch import runtime_testing as testing
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import precision

FOLDER = pathlib.Path(__file__).resolve().parent
ROOT = FOLDER.parents[2]
FAKE = FOLDER.parent / 'fake_cann'
CHIP = 'SOC_VERSION=Ascend910B1'


def _make(
  target: str, cann=None, shmem=None, *variables: str
) -> subprocess.CompletedProcess:
  environment = {k: v for k, v in os.environ.items() if 'MAKE' not in k}
  for name, value in (('ASCEND_HOME_PATH', cann), ('SHMEM_HOME_PATH', shmem)):
    # An empty variable counts as none.
    environment[name] = str(value or '')
  return subprocess.run(
    ['make', '--no-print-directory', *variables, target],
    cwd=ROOT,
    env=environment,
    capture_output=True,
    text=True,
  )


def _library(path: pathlib.Path, *sources: str | pathlib.Path) -> None:
  path.parent.mkdir(parents=True)
  flags = ('-std=c++17', '-O1', '-fPIC', '-shared', f'-I{ROOT}')
  headers = f'-I{FOLDER.parent}/standin/include'
  files = [FOLDER.parent / 'standin' / source for source in sources]
  compiler = os.environ.get('CXX') or 'c++'
  subprocess.run([compiler, *flags, headers, *files, '-o', path], check=True)


def _install_stand_ins(tmp_path) -> tuple[pathlib.Path, pathlib.Path]:
  """Returns the folders of a CANN and a SHMEM, built from stand-ins."""
  cann, shmem = tmp_path / 'cann', tmp_path / 'installed'
  _library(cann / 'lib64/libacl_rt.so', 'acl.cc', 'board.cc')
  acl = cann / 'lib64/libacl_rt.so'
  _library(shmem / 'shmem/lib/libshmem.so', 'shmem.cc', acl)
  (cann / 'include').symlink_to(FOLDER.parent / 'standin/include')
  (shmem / 'shmem/include').symlink_to(FOLDER.parent / 'standin/include')
  (cann / 'tikcpp').symlink_to(FAKE / 'tikcpp')
  return cann, shmem


class TestMake:
  @pytest.mark.parametrize(
    'target, cann, shmem, variable, value',
    [
      ('ascend-npu', None, None, 'ASCEND', 'none'),
      ('ascend-npu', '/nowhere', None, 'ASCEND', '/nowhere'),
      ('ascend-npus', None, None, 'ASCEND', 'none'),
      ('ascend-npus', FAKE, None, 'SHMEM', 'none'),
      ('ascend-npus', FAKE, '/nowhere', 'SHMEM', '/nowhere'),
    ],
  )
  def test_says_in_one_line_what_is_missing(
    self, target, cann, shmem, variable, value
  ):
    process = _make(target, cann, shmem, CHIP)
    lines = [
      line for line in process.stderr.splitlines() if 'make:' not in line
    ]
    assert process.returncode != 0 and not process.stdout
    (line,) = lines
    assert line.startswith(f'{variable}_HOME_PATH: expected')
    assert line.endswith(f'got {value}')

  @pytest.mark.slow
  def test_operators_are_configured_and_built(self, tmp_path):
    # Given CANN's rules, here those of a stand-in, when the operators are
    # made, then each gets its source, and their host side compiles.
    flags = 'KERNEL_FLAGS=-DHPMOE_FLOAT_COUNTS'
    process = _make('ascend-npu', FAKE, None, f'NPU_BUILD={tmp_path}', flags)
    assert process.returncode == 0, process.stderr
    for text in (
      'npu_op_package: hpmoe TYPE RUN',
      'npu_op_library: cust_optiling TILING launch_op.cc',
      'OP_TYPE HpmoeLaunch KERNEL_FILE hpmoe_launch.cc',
      'OP_TYPE HpmoeLaunchGrad KERNEL_FILE hpmoe_launch_grad.cc',
      '--cce-auto-sync=off -DHPMOE_FLOAT_COUNTS',
      'Built target cust_optiling',
    ):
      assert text in process.stdout, process.stdout

  @pytest.mark.slow
  def test_what_it_builds_is_what_ranks_load(self, tmp_path):
    # Given a CANN and a SHMEM, when the host program is made for a chip, then
    # two ranks launch by it, with the bits of the host.
    cann, shmem = _install_stand_ins(tmp_path)
    out = tmp_path / 'out'
    refusal = _make('ascend-npus', cann, shmem, f'NPUS_OUT={out}')
    assert 'SOC_VERSION: expected the chip' in refusal.stderr
    flags = 'KERNEL_FLAGS=-DHPMOE_FLOAT_COUNTS'
    process = _make('ascend-npus', cann, shmem, f'NPUS_OUT={out}', CHIP, flags)
    assert process.returncode == 0, process.stderr
    for text in (
      'ascendc_fatbin_library: hpmoe_megakernel Ascend910B1',
      '--cce-auto-sync=off;-DHPMOE_FLOAT_COUNTS',
    ):
      assert text in process.stdout, process.stdout
    config = config_lib.MoEConfig(
      num_ranks=2, num_tokens=5, num_experts=4, top_k=2, d_model=16, d_ff=16
    )
    policy = precision.PrecisionPolicy('float32', activation='absolute')
    image = testing.compile_layer(config, policy)
    inputs = testing.make_inputs(config, policy, exact=True)
    with (
      rehearsal.Rehearsal(2) as twin,
      local_ranks.LocalRanks(
        2,
        [image],
        environment=twin.environment,
        library=out / 'libhpmoe_npus.so',
        kernel=out / 'hpmoe_megakernel.o',
      ) as ranks,
    ):
      actual = ranks.run(image, inputs)
    expected = runtime.launch(image, inputs)
    assert np.array_equal(actual['y'], expected['y'])
