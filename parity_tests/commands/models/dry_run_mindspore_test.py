"""`--dry_run`: the operators of a model on an NPU, and those that it lacks."""

import json
import subprocess
import sys

import mindspore as ms
from mindspore.scipy import ops as scipy_ops
import numpy as np
import pytest

from hpmoe.models import config as config_lib
from hpmoe.models import parameters
from hpmoe.models.checkpoint import weights
from hpmoe.models.mindspore import dry_run
from hpmoe.models.mindspore import moe
from hpmoe.models.train import folder_testing
from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import main

_NPU = ('--device=ascend', '--dry_run')
_F32 = ['float32', 'float32']


@pytest.fixture(scope='module')
def config(tmp_path_factory) -> str:
  """Returns the path of the config of a model of eight layers, one dense."""
  fields = dict(
    first_k_dense_replace=1, num_experts_per_tok=2, num_hidden_layers=8
  )
  folder = tmp_path_factory.mktemp('config')
  return folder_testing.config(folder, 'deepseek_tiny', **fields)


def _list_operators(tmp_path, command: str, *options: str) -> tuple[int, dict]:
  """Returns the exit code, and rows by name and dtypes."""
  out = tmp_path / 'out.json'
  code = main.main([command, *options, *_NPU, f'--json={out}'])
  rows = json.loads(out.read_text())['operators']
  return code, {(r['name'], *r['dtypes']): r for r in rows}


class TestTrain:
  def _list_operators(self, tmp_path, config, moe_layer):
    sizes = ('--framework=mindspore', '--batch=2', '--length=16')
    model = f'--model={config}'
    return _list_operators(
      tmp_path, 'train', model, *sizes, f'--moe={moe_layer}'
    )

  @pytest.mark.slow
  def test_the_frameworks_own_operators(self, tmp_path, config, capsys):
    code, rows = self._list_operators(tmp_path, config, 'framework')
    assert code == cli.PARITY
    # Forward; of the log alone, backward; of the optimizer.
    for row, way in (
      (('MatMulExt', *_F32), 'kernel'),
      (('Softmax', 'float32'), 'kernel'),
      (('Sort', 'float32'), "CANN's operator"),
      (('Gather', 'float32', 'int32'), 'AI CPU kernel'),
      (('Reshape', 'float32'), 'view'),
      (('RsqrtGrad', *_F32), "CANN's operator"),
      (('StridedSliceGrad', 'float32'), "CANN's operator"),
      (('UnsortedSegmentSum', 'float32', 'int64'), "CANN's operator"),
      (('Sqrt', 'float32'), 'kernel'),
    ):
      assert rows[row]['way'] == way
    # Float64 is a CPU's way, and two layers have all that eight have.
    assert not [row for row in rows if 'float64' in row]
    assert rows['Softmax', 'float32']['count'] == 2 * 2
    # Python's own are no operators of a device.
    assert not {'typeof', 'StopGradient', 'make_range'} & {r[0] for r in rows}
    assert 'an NPU takes all' in capsys.readouterr().out

  def test_the_megakernel_is_one_operator(self, tmp_path, config, capsys):
    code, rows = self._list_operators(tmp_path, config, 'ascend')
    assert code == cli.PARITY
    own = {r[0]: row for r, row in rows.items() if 'Hpmoe' in r[0]}
    # Forward, again for the gradient, and for the loss after the step.
    assert {n: r['count'] for n, r in own.items()} == {
      'HpmoeLaunch': 3,
      'HpmoeLaunchGrad': 1,
    }
    assert own['HpmoeLaunch']['dtypes'][:3] == ['uint8'] * 3
    assert 'make ascend-npu' in own['HpmoeLaunchGrad']['way']
    assert ('BatchMatMul', *_F32) in rows  # attention's

  @pytest.mark.slow
  def test_refuses_ranks(self, config, capsys):
    options = ('--framework=mindspore', '--moe=ascend', '--ranks=2')
    command = ['train', f'--model={config}', *_NPU, *options]
    assert main.main(command) == cli.WRONG_REQUEST
    output = capsys.readouterr()
    assert output.err.count('\n') == 1
    assert 'config.num_ranks: expected 1 on an' in output.err


def unknown(x, ids, weights, *rest):
  """A user's layer with an operator that no NPU has."""
  solve = scipy_ops.SolveTriangular(False, False, 'N')
  identity = ms.Tensor(np.eye(1, dtype=np.float32))
  y = moe.framework(x, ids, weights, *rest)
  return y * solve(identity, identity).astype(y.dtype)


@pytest.fixture(scope='module')
def folder(tmp_path_factory) -> str:
  """Returns the folder of a model in bfloat16."""
  return str(folder_testing.write(tmp_path_factory.mktemp('model') / 'a'))


class TestGenerate:
  @pytest.mark.slow
  def test_a_model_in_bfloat16(self, tmp_path, folder):
    options = (f'--from={folder}', '--framework=mindspore', '--moe=ascend')
    code, rows = _list_operators(tmp_path, 'generate', *options)
    assert code == cli.PARITY
    (own,) = {row[1:] for row in rows if row[0] == 'HpmoeLaunch'}
    assert own.count('bfloat16') == 3
    assert ('Cast', 'bfloat16') in rows

  @pytest.mark.slow
  def test_an_operator_that_an_npu_lacks_is_named(
    self, tmp_path, folder, capsys
  ):
    code, rows = _list_operators(
      tmp_path,
      'generate',
      f'--from={folder}',
      '--framework=mindspore',
      f'--moe={__name__}:unknown',
    )
    assert code == cli.NO_PARITY
    lacked = [row for row, fields in rows.items() if fields['way'] is None]
    assert lacked == [('SolveTriangular', *_F32)]
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith('an NPU lacks, ')
    assert last.endswith(': SolveTriangular(float32, float32)')


class TestNarrowed:
  @pytest.mark.parametrize('name', config_lib.names())
  def test_its_weights_are_small_and_its_layers_the_same(self, name):
    config = dry_run.shortened(config_lib.load(name))
    small = dry_run.narrow(config)
    shapes = parameters.parameter_shapes(small, 'float32')
    assert shapes.keys() == parameters.parameter_shapes(config).keys()
    assert sum(map(weights.num_bytes, shapes.values())) < 256e6
    names = ('num_experts', 'num_experts_per_tok', 'n_group', 'head_dim')
    assert all(getattr(small, n) == getattr(config, n) for n in names)

  @pytest.mark.slow
  def test_deepseek_v3_is_listed_in_less_than_two_gigabytes(self):
    code = (
      'import resource, sys\n'
      'from hpmoe.parity_tests.commands import main\n'
      'code = main.main(sys.argv[1:])\n'
      'used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss\n'
      'assert used < 2e6, used\n'  # KiB
      'sys.exit(code)\n'
    )
    options = ('--model=deepseek_v3', '--right=mindspore:framework', *_NPU)
    sizes = ('--batch=1', '--sequence=16')
    command = [sys.executable, '-c', code, 'compare', *options, *sizes]
    process = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    assert process.returncode == cli.PARITY
    assert 'an NPU takes all 63' in process.stdout


@pytest.mark.slow
def test_compare_lists_a_side_with_its_gradients(tmp_path, config, capsys):
  options = (f'--model={config}', '--batch=1', '--sequence=16')
  code, rows = _list_operators(
    tmp_path, 'compare', '--right=mindspore:framework', *options
  )
  assert code == cli.PARITY
  assert ('RsqrtGrad', *_F32) in rows
  # Given sides of JAX alone, when listed, then there is nothing to list.
  assert main.main(['compare', *options, *_NPU]) == cli.WRONG_REQUEST
  assert 'expected a side in mindspore' in capsys.readouterr().err
