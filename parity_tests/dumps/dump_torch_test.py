"""Dumps that the real msprobe writes, of torch and of MindSpore, judged.

`make test-torch` runs it; HPMOE_TORCH_PYTHON names a Python that has torch,
transformers and mindstudio-probe.
"""

import os
import pathlib
import subprocess
import sys

import pytest

from hpmoe.backend_ascend.frontends import msrun_testing
from hpmoe.parity_tests.dumps import dump_check

_SCRIPT = pathlib.Path(__file__).with_name('dump_torch_testing.py')


def _judge(folder: pathlib.Path, bug: str, *implementation: str):
  python, words = os.environ['HPMOE_TORCH_PYTHON'], (bug, *implementation)
  subprocess.run([python, '-I', _SCRIPT, folder / 'dump', *words], check=True)
  return dump_check.check_dump(str(folder / 'dump'))


def test_a_right_run_passes_forward_and_backward(tmp_path):
  rows = _judge(tmp_path, 'none')
  assert [(row.direction, row.verdict) for row in rows] == [
    ('both', 'pass'),
    ('both', 'pass'),
  ]


@pytest.mark.parametrize(
  ('bug', 'stage'),
  [
    ('lose_expert', 'y'),
    ('weigh_twice', 'y'),
    ('cut_gradient', 'dx'),
    ('double_weights_gradient', 'd_topk_weights'),
  ],
)
def test_a_bug_is_found_in_its_layer(tmp_path, bug, stage):
  # A bug inside of the experts, whose dumped inputs are as they came.
  first, second = _judge(tmp_path, bug)
  assert first.verdict == 'pass'
  assert second.verdict == 'fail'
  assert second.to_json()['first_failure'] == stage


@pytest.mark.parametrize('implementation', ['grouped_mm', 'eager'])
def test_a_run_in_bfloat16_rounds_as_transformers(tmp_path, implementation):
  # Of two slots both are the same sum.
  first, second = _judge(tmp_path, 'lose_expert', implementation)
  assert first.verdict == 'pass' and first.policy[0] == 'torch_grouped_mm'
  assert second.verdict == 'fail'
  assert 'expert 3' in second.to_json()['pattern']


@pytest.mark.parametrize('implementation', ['grouped_mm', 'eager'])
def test_gradients_of_routing_weights_in_bfloat16_are_judged(
  tmp_path, implementation
):
  first, second = _judge(tmp_path, 'double_weights_gradient', implementation)
  assert first.verdict == 'pass' and 'd_topk_weights' in first.shares
  (second_row,) = dump_check.check_dump(
    str(tmp_path / 'dump'), policy=first.policy, layers=frozenset({0})
  )
  assert second_row.to_json() == first.to_json()
  assert second.to_json()['first_failure'] == 'd_topk_weights'


def _judge_ranks(folder: pathlib.Path, mode: str, bug: str):
  python = os.environ['HPMOE_TORCH_PYTHON']
  launch = ['-m', 'torch.distributed.run', '--standalone', '--nproc_per_node=2']
  script = _SCRIPT.with_name('ranks_torch_testing.py')
  # Of this Python's packages the ranks know nothing.
  env = {n: v for n, v in os.environ.items() if n != 'PYTHONPATH'}
  subprocess.run(
    [python, '-I', *launch, script, folder / 'dump', mode, bug],
    check=True,
    env=env | dict(OMP_NUM_THREADS='1'),
  )
  return dump_check.check_dump(str(folder / 'dump'))


@pytest.mark.parametrize(
  ('mode', 'places'),
  [
    ('all_reduce', ['step0/rank0+rank1']),
    ('all_to_all', ['step0/rank0+rank1']),
    ('data', ['step0/rank0', 'step0/rank1']),
  ],
)
@pytest.mark.parametrize('bug', ['none', 'lose_expert'])
def test_all_layers_of_two_ranks_are_judged(tmp_path, mode, places, bug):
  rows = _judge_ranks(tmp_path, mode, bug)
  _check_rank_rows(rows, mode, places, bug)
  assert rows[-1].call.path.endswith('layers.1.mlp.experts')


def _check_rank_rows(rows, mode, places, bug):
  """Checks that all layers were found, and an expert of rank 1 named."""
  # Layers and ranks, forward and backward, in one command.
  assert [row.call.place for row in rows] == [p for p in places for _ in '01']
  assert {row.direction for row in rows} == {'both'}
  wrong = [row for row in rows if row.verdict != 'pass']
  if bug == 'none':
    assert not wrong
    return
  (row,) = wrong
  assert row.call.place == places[-1]
  assert row.call.path == rows[-1].call.path
  assert row.to_json()['first_failure'] == 'y'
  expert = 3 if mode == 'data' else 7
  assert f'expert {expert}' in row.to_json()['pattern']


# Layers of Megatron-LM, vLLM and vllm-ascend; the first three have a backward.
_FOREIGN = (
  'megatron_grouped',
  'megatron_transformer_engine',
  'megatron_sequential',
  'vllm_experts',
  'vllm_shared_experts',
  'vllm_ascend_experts',
  'vllm_ascend_shared_experts',
)


def test_layers_named_as_those_of_other_projects_are_judged(tmp_path):
  script = _SCRIPT.with_name('foreign_torch_testing.py')
  subprocess.run(
    [os.environ['HPMOE_TORCH_PYTHON'], '-I', script, tmp_path / 'dump'],
    check=True,
  )
  rule = 'renormalize_naive:top_k=2'
  rows = dump_check.check_dump(str(tmp_path / 'dump'), router=rule)
  # A right layer and one without expert 3 of each.
  assert [row.call.kind.label for row in rows] == [
    kind for kind in _FOREIGN for _ in '01'
  ]
  assert [row.verdict for row in rows] == ['pass', 'fail'] * len(_FOREIGN)
  assert {row.direction for row in rows[:6]} == {'both'}
  for row in rows[1::2]:
    assert row.to_json()['first_failure'] == 'y'
    assert 'expert 3' in row.to_json()['pattern']


@pytest.mark.parametrize('level', ['L0', 'mix'])
@pytest.mark.parametrize('bug', ['none', 'lose_expert'])
def test_cells_of_mindspore_are_judged(tmp_path, level, bug):
  # HPMOE_MSPROBE is a folder of packages with msprobe for this Python.
  script = _SCRIPT.with_name('cells_torch_testing.py')
  path = os.pathsep.join(
    [os.environ['HPMOE_MSPROBE'], os.environ.get('PYTHONPATH', '')]
  )
  subprocess.run(
    [sys.executable, script, tmp_path / 'dump', level, bug],
    check=True,
    env={**os.environ, 'PYTHONPATH': path},
  )
  first, second = dump_check.check_dump(str(tmp_path / 'dump'))
  assert first.direction == second.direction == 'both'
  assert first.verdict == 'pass', first.report
  assert second.verdict == ('pass' if bug == 'none' else 'fail')
  if bug != 'none':
    assert 'expert 3' in second.to_json()['pattern']


@pytest.mark.parametrize(
  ('mode', 'places'),
  [
    ('all_reduce', ['step0/rank0+rank1']),
    ('all_to_all', ['step0/rank0+rank1']),
    ('data', ['step0/rank0', 'step0/rank1']),
  ],
)
@pytest.mark.parametrize('bug', ['none', 'lose_expert'])
def test_cells_of_two_ranks_are_judged(
  tmp_path, monkeypatch, mode, places, bug
):
  monkeypatch.syspath_prepend(os.environ['HPMOE_MSPROBE'])
  script = str(_SCRIPT.with_name('cell_ranks_torch_testing.py'))
  (tmp_path / 'job').mkdir()
  msrun_testing.run(
    'import runpy, sys\n'
    f'sys.argv[1:] = [{str(tmp_path / "dump")!r}, {mode!r}, {bug!r}]\n'
    f'runpy.run_path({script!r}, run_name="__main__")\n',
    tmp_path / 'job',
  )
  rows = dump_check.check_dump(str(tmp_path / 'dump'))
  _check_rank_rows(rows, mode, places, bug)
