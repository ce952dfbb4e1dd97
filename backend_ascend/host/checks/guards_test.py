"""What kernels do beyond their tiles is found, and nothing else."""

import os
import shlex
import subprocess

import numpy as np

from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.host.launch import runtime
from hpmoe.backend_ascend.host.launch import runtime_testing as testing
from hpmoe.backend_ascend.image import freestanding_testing as freestanding
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import precision

_FOLDER = 'backend_ascend/host/checks'
CONFIG = config_testing.make_config(r=4, t=13, e=8, k=3, d=10, f=6)

# What kernels do that read or write beyond their tiles, and what is said.
_EXPECTED = """\
right:
gemm, a row too many: wrote element [2, 0] of c, which is [2, 3]
gemm, a row before: wrote element [-1, 0] of c, which is [2, 3]
gemm, a column too many: wrote element [1, 3] of c, which is [2, 3]
gemm, a column before: wrote element [1, -1] of c, which is [2, 3]
gemm, an operand: wrote element [0, 0] of b, which is [4, 3] and only read
gemm, beside another task that writes its operand:
gemm, reads beyond:
read: nan nan nan 2.000000
weights: wrote element [0, 0] of row_weight, which is [1, 2] and only read
read: nan 2.000000
gathered gemm: wrote element [0, -1] of a, which is [2, 4]
read: nan 2.000000
transposed gemm, reads beyond:
read: nan nan 2.000000
gemm, carry: wrote element [2, 0] of carry, which is [2, 3]
gemm, carry handed on: wrote element [0, -1] of carry, which is [2, 3]
carried: 5.000000
swiglu: wrote element [2, 0] of out, which is [2, 3]
swiglu grad: wrote element [0, 2] of d_row_weight, which is [1, 2]
combine: wrote element [1, 3] of y, which is [2, 3]
combine, reads beyond:
read: nan nan 2.000000
gathered combine: wrote element [3, 3] of rows, which is [4, 3]
dots: wrote element [0, 3] of out, which is [1, 3]
read: nan nan 2.000000
put: wrote element [3, 0] of out, which is [3, 4]
norm: wrote element [3, 0] of out, which is [3, 4]
norm, reads beyond:
read: nan nan nan 2.000000
gain: wrote element [0, 2] of out, which is [1, 2]
codes, a row too many: wrote element [2, 0] of c, which is [2, 3]
codes, an operand: wrote element [1, -1] of a, which is [2, 4]
read: -256
quantise: wrote element [0, 4] of codes, which is [3, 4]
scales: wrote element [0, 3] of scales, which is [1, 3]
code swiglu: wrote element [2, 0] of codes, which is [2, 3]
read: nan nan
meaning: wrote element [0, 3] of out, which is [2, 3]
copy: wrote element [0, 8] of to, which is [1, 8]
header: wrote element [0, 1] of weight, which is [1, 1]
slot: 3
"""


def test_kernels_that_leave_their_tiles_are_told(tmp_path):
  binary = tmp_path / 'guards_test'
  compiler = shlex.split(os.environ.get('CXX') or 'c++')
  sources = (
    f'{freestanding.ROOT}/{_FOLDER}/guards{s}.cc' for s in ('', '_test')
  )
  flags = ('-std=c++17', '-Wall', '-Werror', f'-I{freestanding.ROOT}')
  subprocess.run([*compiler, *flags, *sources, '-o', binary], check=True)

  process = subprocess.run([binary], capture_output=True, text=True, check=True)

  lines = [line.rstrip() for line in process.stdout.splitlines()]
  assert lines == _EXPECTED.splitlines()


def test_saved_rows_of_nobody_are_nan_and_the_caller_s_stay():
  policy = precision.PrecisionPolicy()
  case = testing.make_case(layout.Direction.BACKWARD, CONFIG, policy, 'zipf')
  plan = runtime.route(case.image, case.inputs['topk_ids'])
  valid = plan.counts.sum(axis=0).reshape(4, -1).sum(axis=1)

  read = runtime._with_poisoned_padding(case.image, case.inputs, plan)

  assert set(read) == {'expert_in', 'gate_up', 'activation'}
  for name, rows in read.items():
    for rank in range(4):
      np.testing.assert_array_equal(
        rows[rank, : valid[rank]], case.inputs[name][rank, : valid[rank]]
      )
      assert np.isnan(rows[rank, valid[rank] :]).all()
    assert not np.isnan(case.inputs[name]).any()
