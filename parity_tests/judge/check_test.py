"""Whole checks of the megakernel: workers, threads, files, awkward shapes."""

import dataclasses
import zlib

import ml_dtypes
import numpy as np
import pytest

from hpmoe.backend_ascend import _native
from hpmoe.backend_ascend.compiler import compiler
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.host.launch import runtime
from hpmoe.parity_tests.ascend import host
from hpmoe.parity_tests.ascend import twin_candidate
from hpmoe.parity_tests.cache import cache_key
from hpmoe.parity_tests.cache import versions
from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.case import input_files
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.judge import bench as bench_lib
from hpmoe.parity_tests.judge import check
from hpmoe.parity_tests.judge import judgement
from hpmoe.parity_tests.judge import verdicts
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import presets
from hpmoe.reference.contract import tensors

SHAPES = {
  'one_of_each': config_testing.make_config(r=1, t=1, e=1, k=1, d=3, f=2),
  'k_is_e': config_testing.make_config(r=2, t=5, e=4, k=4, d=6, f=3),
  'an_expert_per_rank': config_testing.make_config(
    r=4, t=3, e=4, k=1, d=8, f=5
  ),
  'one_token_each': config_testing.make_config(r=2, t=1, e=4, k=2, d=5, f=4),
}
LAYERS = SHAPES | {
  name: presets.config(presets.get(name), 4) for name in presets.RUNS_HERE
}
CUTS = (
  dict(),
  dict(row_block=1, col_block=1),
  dict(row_block=8, col_block=24, chain_rows=8, event_grain='expert'),
  dict(row_block=512, col_block=1024, token_block=7, chain_rows=512),
)
Kind = layout.Kind
PUTS = (Kind.DISPATCH, Kind.RETURN, Kind.DISPATCH_GRAD, Kind.RETURN_GRAD)
WEIGHT_GRADS = (Kind.DOWN_WEIGHT_GRAD, Kind.GATE_UP_WEIGHT_GRAD)
TOKEN_TILES = (Kind.COMBINE, Kind.COMBINE_GRAD, Kind.TOPK_WEIGHT_GRAD)


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
  input_files.save_safetensors(path, arrays)


def _verdicts(report):
  return {(r.stage, r.lane, r.rule): r.verdict for r in report.results}


# Every shape once, in one dtype or the other; `make sweep` runs it in both.
@pytest.mark.parametrize(
  ('name', 'dtype', 'placement'),
  [
    pytest.param(
      name,
      *policy,
      marks=() if (i + j) % 2 == 0 else pytest.mark.slow,
    )
    for i, name in enumerate(SHAPES)
    for j, policy in enumerate(
      [(np.float32, 'combine'), (ml_dtypes.bfloat16, 'before_down')]
    )
  ],
)
@pytest.mark.few(1)
def test_a_file_of_any_shape_passes_in_all_lanes(
  tmp_path, name, dtype, placement
):
  path = tmp_path / 'layer.safetensors'
  _write(path, name, dtype)

  report = check.run(
    check.Request(
      case_lib.Case(direction='both', input=str(path), placement=placement)
    )
  )

  assert report.verdict == verdicts.PASS, _verdicts(report)
  assert report.first_failure is None
  layer = report.config['layer']
  assert layer['d_model'] == SHAPES[name].d_model
  assert {r.lane for r in report.results} == set(verdicts.LANES)
  judged_tensors = {verdicts.tensor_of(r.stage) for r in report.results}
  assert judged_tensors == {*tensors.PLAN, *tensors.STAGES, *tensors.GRADS}


@pytest.fixture(scope='module')
def bench():
  request = check.Request(
    case_lib.Case(direction='both', preset='tiny', ranks=2, routing='zipf')
  )
  return request, bench_lib.Bench(request.case, keep=True)


def _check_bits(results):
  judged_lanes = {r.lane for r in results}
  assert {'exact', 'bitwise'} <= judged_lanes
  for result in results:
    assert result.verdict == verdicts.PASS, result
    assert result.worst_ulp == 0 or result.lane == 'bounded', result


@pytest.mark.slow
def test_every_lane_judges_the_order_by_the_instruction_sets(monkeypatch):
  # Given an order and two instruction sets, when all lanes judge, then launches
  # are in that order by the first, serial runs by the last, and all pass.
  first, last = _native.isas()[-1], 'portable'
  launches = set()
  for name in ('run', 'run_serial'):

    def spied(
      image, *arguments, name=name, function=getattr(runtime, name), **options
    ):
      order = image.policy.accumulation_order
      launches.add((name, order, options['isa']))
      return function(image, *arguments, **options)

    monkeypatch.setattr(runtime, name, spied)
  request = check.Request(
    case_lib.Case(
      direction='both',
      preset='tiny',
      dtype='bfloat16',
      accumulation_order='even_odd_32',
    ),
    host.Megakernel(isa=(first, last)),
  )

  results = bench_lib.Bench(request.case).judge(request)

  assert {r.verdict for r in results} == {verdicts.PASS}
  assert launches == {
    ('run', 'even_odd_32', first),
    ('run_serial', 'even_odd_32', last),
  }


@pytest.mark.parametrize(
  ('grain', 'chain_rows', 'order'),
  [
    ('expert', None, 'interleaved'),
    ('expert', 8, 'last'),
    ('row_block', 16, 'interleaved'),
    ('row_block', None, 'last'),
  ],
)
def test_no_bit_depends_on_how_weight_gradients_are_cut(
  bench, grain, chain_rows, order
):
  request, layer_bench = bench
  options = dataclasses.replace(
    request.candidate.options,
    event_grain=grain,
    row_block=8,
    col_block=24,
    chain_rows=chain_rows,
    order=granularity.WEIGHT_GRAD_ORDERS[order],
  )
  cut_request = request.but(
    direction='backward',
    options=options,
    lanes=('exact', 'bitwise'),
  )

  results = layer_bench.judge(cut_request)

  _check_bits(results)


def _cuts(config, options, layer_pass) -> dict[tuple, set[tuple]]:
  """Returns, by kind and expert, the [begin, end) that tiles have of rows.

  Of columns too; a chain's links are cuts of the rows that they sum.  Rows are
  those of the average expert.
  """
  image = compiler.COMPILE[layer_pass.direction](
    config, precision.PrecisionPolicy(), options
  ).image
  average = config.num_ranks * config.num_tokens * config.top_k
  average //= config.num_experts
  cuts = {}
  tasks = image.tables['tasks']
  for task in tasks[tasks['rank'] == 0]:
    kind = Kind(task['kind'])
    if kind in PUTS:
      continue
    rows = int(task['row_begin']), int(task['row_end'])
    if kind in WEIGHT_GRADS:
      links = cuts.setdefault((kind, 'summed', average), set())
      chain = image.options.chain_rows
      links.add(min(int(task['peer'] + 1) * chain, average))
      height = config.d_ff if kind == Kind.DOWN_WEIGHT_GRAD else config.d_model
      cuts.setdefault((kind, 'height', height), set()).add(rows)
    elif kind in TOKEN_TILES:
      extent = config.num_tokens
      cuts.setdefault((kind, 'tokens', extent), set()).add(rows)
    else:
      cut = min(rows[0], average), min(rows[1], average)
      cuts.setdefault((kind, 'rows', average), set()).add(cut)
    if kind in WEIGHT_GRADS or layout.UNIT_OF_KIND[kind] == layout.Unit.AIC:
      cols = int(task['col_begin']), int(task['col_end'])
      cuts.setdefault((kind, 'columns', 2), set()).add(cols)
  return cuts


@pytest.mark.parametrize(
  'layer_pass', passes.from_direction('both'), ids=lambda p: p.name
)
@pytest.mark.parametrize('blocks', CUTS, ids=str)
@pytest.mark.parametrize('name', LAYERS)
@pytest.mark.few(37)
def test_the_serial_run_is_cut_otherwise(name, blocks, layer_pass):
  # Given tiles of any size, whole tensors and single elements among them, then
  # every dimension that has more than one element is cut elsewhere.
  options = granularity.Options(**blocks)
  if options.row_block < 16 and name not in ('tiny', *SHAPES):
    return  # too many tasks
  config = LAYERS[name]
  other = host.choose_other_tiling(options, config, layer_pass)
  first = _cuts(config, options, layer_pass)
  second = _cuts(config, other, layer_pass)
  assert first.keys() == second.keys() and first
  assert other.event_grain != options.event_grain
  for (kind, dimension, extent), cut in first.items():
    is_same = cut == second[kind, dimension, extent]
    assert not is_same or extent <= 1, (kind, dimension, cut)


def test_lanes_and_standards_asked_for_are_those_that_judge(bench):
  request, layer_bench = bench
  lane_request = request.but(
    lanes=('standard',), standards=('catlass', 'commercial_l2')
  )

  results = layer_bench.judge(lane_request)

  rules = {r.rule for r in results if r.lane == 'standard'}
  assert rules == {'catlass', 'commercial_l2'}
  # Bits that moved and the layer are judged whatever was asked for.
  always = {(r.stage, r.lane) for r in results if r.lane != 'standard'}
  movement = {*tensors.PLAN, 'expert_in', 'returned', 'd_returned'}
  results = (
    name
    for lane_request in passes.from_direction('both')
    for name in lane_request.results
  )
  layers = {verdicts.LAYERS[name] for name in results}
  assert always == {(n, 'bitwise') for n in movement} | {
    (n, 'bounded') for n in layers
  }


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


def test_the_plan_of_a_launch_that_ended_early_is_judged():
  # Given a launch that ends early, with a plan that is wrong in one place,
  class StuckCandidate(candidates.Candidate):
    name = 'stuck'

    def run(
      self,
      config,
      policy,
      inputs,
      layer_pass=passes.FORWARD,
      oracle_tensors=None,
    ):
      plan = dict(bench_lib.Bench(request.case).plan)
      plan['counts'] = plan['counts'] + np.eye(
        *plan['counts'].shape, dtype='i4'
      )
      error = candidates.CandidateError('stuck: waits for ever')
      error.plan = plan
      raise error

  request = check.Request(
    case_lib.Case(preset='tiny', ranks=2, tokens=13),
    StuckCandidate(),
    judgement.Judgement(lanes=('bitwise',)),
  )

  # when it is checked, then the report says what of the plan is wrong.
  with pytest.raises(candidates.CandidateError) as error:
    check.run(request)
  message = (
    'stuck: waits for ever; not as the oracle plans this routing: counts'
  )
  assert str(error.value) == message


class Backwards(candidates.Candidate):
  """Our backend, but that it adds a token's slots from the last to the first.

  Its own kernels do so too: nothing that compares them with each other sees it.
  """

  name = 'backwards'

  @property
  def serial(self):
    return self.run

  def run(
    self, config, policy, inputs, layer_pass=passes.FORWARD, oracle_tensors=None
  ):
    answer = host.Megakernel().run(config, policy, inputs, layer_pass)
    terms = inputs['topk_weights'][..., None] * answer['returned']
    total = terms[:, :, -1]
    for slot in reversed(range(config.top_k - 1)):
      total = total + terms[:, :, slot]
    return answer | {'y': total}


def test_sums_of_our_own_kernels_are_in_the_order_of_the_contract(tmp_path):
  # Given four slots: two would have the same sum in both orders.
  path = tmp_path / 'layer.safetensors'
  _write(path, 'k_is_e', np.float32)
  request = check.Request(case_lib.Case(input=str(path)), Backwards())
  # When.
  results = bench_lib.Bench(request.case).judge(request)
  # Then: no bound and no record minds.
  failed_rows = [
    (r.stage, r.lane) for r in results if r.verdict == verdicts.FAIL
  ]
  assert failed_rows == [('y', 'bitwise')]


def test_a_report_is_of_the_tree_that_made_it(monkeypatch):
  digest = versions.digest_sources()
  assert len(digest) == 16 and digest == versions.list_versions()['sources']
  versions.digest_sources.cache_clear()
  monkeypatch.setattr(
    cache_key, 'digest_package', lambda package: f'changed {package}'
  )
  assert versions.digest_sources() != digest
  versions.digest_sources.cache_clear()


RELAYED = granularity.Options(
  row_block=16, col_block=32, num_aic=3, num_aiv=5, relay=True
)


@pytest.mark.parametrize(
  'direction, tensor', [('forward', 'x_relayed'), ('backward', 'dy_relayed')]
)
@pytest.mark.few(1)
def test_relayed_rows_are_judged_by_bits(direction, tensor):
  # Given a layer whose tokens cross to a rank once, on the host and on the
  # twin, then it is right;
  case = case_lib.Case(direction, 'tiny', 2)
  reports = [
    check.run(check.Request(case, candidate, judgement.Judgement(('bitwise',))))
    for candidate in (
      host.Megakernel(RELAYED),
      twin_candidate.Twin(RELAYED),
      host.Megakernel(RELAYED, fault='stale_row'),
    )
  ]
  verdict_of_reports = [report.verdict for report in reports]
  assert verdict_of_reports == [verdicts.PASS, verdicts.PASS, verdicts.FAIL]
  lane_by_stage = {
    r.stage: r.lane for r in reports[0].results if r.stage == tensor
  }
  assert lane_by_stage == {tensor: 'bitwise'}
  # and where a put leaves another token's data in a row, that tensor is named.
  assert reports[2].first_failure.stage == tensor
