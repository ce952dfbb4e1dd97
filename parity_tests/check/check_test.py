"""Whole checks of our backend: workers, threads, files, awkward shapes."""

import dataclasses
import zlib

import ml_dtypes
import numpy as np
import pytest
from safetensors import numpy as safetensors

from hpmoe.parity_tests.check import candidates
from hpmoe.parity_tests.check import check
from hpmoe.parity_tests.check import passes
from hpmoe.parity_tests.lanes import lanes
from hpmoe.parity_tests.report import report
from hpmoe.reference.contract import tensors
from hpmoe.reference.contract.config import MoEConfig

SHAPES = {
  'one_of_each': MoEConfig(1, 1, 1, 1, 3, 2),
  'k_is_e': MoEConfig(2, 5, 4, 4, 6, 3),
  'an_expert_per_rank': MoEConfig(4, 3, 4, 1, 8, 5),
  'one_token_each': MoEConfig(2, 1, 4, 2, 5, 4),
}


def _write(path, name: str, dtype) -> None:
  """Writes random inputs of a named shape."""
  rng = np.random.default_rng(zlib.crc32(name.encode()))
  config = SHAPES[name]
  arrays = {}
  for key in tensors.INPUTS:
    dims = tensors.SPECS[key].dims(**config.dims())
    arrays[key] = rng.normal(size=dims).astype(dtype)
  picks = [
    rng.permutation(config.num_experts)[: config.top_k]
    for _ in range(config.num_ranks * config.num_tokens)
  ]
  shape = arrays['topk_ids'].shape
  arrays['topk_ids'] = np.array(picks, np.int32).reshape(shape)
  arrays['topk_weights'] = rng.random(shape).astype(np.float32)
  if dtype != np.float32:  # Otherwise it is drawn.
    arrays['dy'] = rng.normal(size=arrays['x'].shape).astype(dtype)
  safetensors.save_file(arrays, path)


def _verdicts(made):
  return {(r.stage, r.lane, r.rule): r.verdict for r in made.results}


@pytest.mark.parametrize(
  ('dtype', 'placement'),
  [(np.float32, 'combine'), (ml_dtypes.bfloat16, 'before_down')],
)
@pytest.mark.parametrize('name', SHAPES)
def test_a_file_of_any_shape_passes_in_all_lanes(
  tmp_path, name, dtype, placement
):
  path = tmp_path / 'layer.safetensors'
  _write(path, name, dtype)

  made = check.run(
    check.Request(direction='both', input=str(path), placement=placement)
  )

  assert made.verdict == lanes.PASS, _verdicts(made)
  assert made.first_failure is None
  layer = made.config['layer']
  assert layer['d_model'] == SHAPES[name].d_model
  assert {r.lane for r in made.results} == set(lanes.LANES)
  judged = {lanes.tensor_of(r.stage) for r in made.results}
  assert judged == {*tensors.PLAN, *tensors.STAGES, *tensors.GRADS}


@pytest.fixture(scope='module')
def bench():
  request = check.Request(
    direction='both', preset='tiny', ranks=2, routing='zipf'
  )
  return request, check.Bench(request, keep=True)


@pytest.mark.parametrize('threads', (1, 2, 7))
@pytest.mark.parametrize('workers', ((1, 1), (3, 5), (24, 48)), ids=str)
def test_no_bit_depends_on_workers_or_threads(bench, workers, threads):
  request, made = bench
  options = dataclasses.replace(
    request.options, num_aic=workers[0], num_aiv=workers[1]
  )
  one = dataclasses.replace(
    request, options=options, threads=threads, lanes=('exact', 'bitwise')
  )

  results = made.judge(one, check.make_candidate(one))

  assert {r.lane for r in results} == {'exact', 'bitwise'}
  for result in results:
    assert (result.verdict, result.worst_ulp) == (lanes.PASS, 0), result


@pytest.mark.parametrize('order', ('interleaved', 'last'))
@pytest.mark.parametrize('chain_rows', (None, 8, 16))
@pytest.mark.parametrize('grain', ('expert', 'row_block'))
def test_no_bit_depends_on_how_weight_gradients_are_cut(
  bench, grain, chain_rows, order
):
  request, made = bench
  options = dataclasses.replace(
    request.options,
    event_grain=grain,
    row_block=8,
    col_block=24,
    chain_rows=chain_rows,
    weight_grad_order=order,
  )
  one = dataclasses.replace(
    request,
    direction='backward',
    options=options,
    lanes=('exact', 'bitwise'),
  )

  results = made.judge(one, check.make_candidate(one))

  for result in results:
    assert (result.verdict, result.worst_ulp) == (lanes.PASS, 0), result


def test_the_serial_run_sums_weight_gradients_in_other_tasks():
  request = check.Request()
  config = SHAPES['k_is_e']
  for chain_rows in (None, 128):
    options = dataclasses.replace(request.options, chain_rows=chain_rows)

    cut = candidates.cut_otherwise(options, config, passes.BACKWARD)

    assert (cut.chain_rows is None) != (chain_rows is None)
    assert cut.row_block != options.row_block
    assert cut.event_grain != options.event_grain


def test_lanes_and_standards_asked_for_are_those_that_judge(bench):
  request, made = bench
  one = dataclasses.replace(
    request, lanes=('standard',), standards=('catlass', 'commercial_l2')
  )

  results = made.judge(one, check.make_candidate(one))

  assert {r.lane for r in results} == {'standard'}
  rules = {r.rule for r in results}
  assert rules == {
    'catlass',
    'commercial_l2',
    'commercial_l2: movement, bitwise',
  }


def test_a_launch_that_cannot_end_is_a_failure_with_a_replay():
  request = check.Request(
    preset='tiny',
    ranks=2,
    fault='missing_signal',
    lanes=('bitwise',),
    arguments=('--preset=tiny', '--ranks=2', '--fault=missing_signal'),
  )

  with pytest.raises(candidates.CandidateError) as error:
    check.run(request)

  said = report.error_json(request, error.value)
  first, task = said['first_failure'], error.value.diagnosis.task
  assert str(error.value).endswith(f'; replay: {first["replay"]}')
  assert first['replay'] == (
    'hpmoe check --preset=tiny --ranks=2 --fault=missing_signal --lane=bitwise'
  )
  assert first['stage'] == 'activation' and task.kind == 'swiglu'
  for name in ('rank', 'expert', 'row_block', 'col_block'):
    assert first[name] == getattr(task, name)
  assert first['got'] is None and 'token' in first
  assert said['seconds'] > 0


@pytest.mark.parametrize(
  ('invoked', 'on_path', 'printed'),
  [
    ('/venv/bin/hpmoe', None, '/venv/bin/hpmoe'),
    ('/venv/bin/hpmoe', '/other/hpmoe', '/venv/bin/hpmoe'),
    ('/venv/bin/hpmoe', '/venv/bin/hpmoe', 'hpmoe'),
    ('/venv/bin/pytest', None, 'hpmoe'),
  ],
)
def test_a_replay_starts_with_what_runs_here(
  monkeypatch, invoked, on_path, printed
):
  monkeypatch.setattr('sys.argv', [invoked])
  monkeypatch.setattr('shutil.which', lambda name: on_path)

  assert check.Request().replay('exact') == f'{printed} check --lane=exact'
