"""Solutions of a benchmark's definition: right, wrong, and those that cheat."""

import json
import re

import numpy as np
import pytest

from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import main
from hpmoe.parity_tests.definitions import definition as definition_lib
from hpmoe.parity_tests.definitions import definition_check
from hpmoe.parity_tests.definitions import definition_testing as testing
from hpmoe.parity_tests.definitions import input_kinds
from hpmoe.parity_tests.definitions import layer_inputs
from hpmoe.parity_tests.definitions import workload_inputs
from hpmoe.parity_tests.judge import check
from hpmoe.parity_tests.judge import judgement
from hpmoe.parity_tests.judge import request as request_lib
from hpmoe.parity_tests.judge import verdicts

# No test here is of the roundings that a failure is put down to.
pytestmark = pytest.mark.verdict_alone

_TOKENS = 9
_JUDGEMENT = judgement.Judgement(
  definition_check.LANES, definition_check.RECORDS, repeat=1
)


@pytest.fixture(scope='module')
def files(tmp_path_factory):
  """Returns a folder with a definition and a workload, and their paths."""
  folder = tmp_path_factory.mktemp('definition')
  return (
    folder,
    testing.write_definition(folder),
    testing.write_workload(folder, _TOKENS),
  )


def _judge(files, extra_source, function, **options) -> check.Report:
  folder, definition, workload = files
  path = testing.write_kernels(folder, extra_source)
  case, candidate = definition_check.make_request(
    definition, f'{path}::{function}', workload=workload, **options
  )
  request = request_lib.Request(case, candidate, _JUDGEMENT)
  return definition_check.separate_rules(check.run(request))


class TestVerdict:
  def test_the_reference_passes_and_the_rules_say_what_they_would(self, files):
    report = _judge(files, '', 'run')
    assert report.verdict == verdicts.PASS
    rules = report.config['public_rules']
    assert [*rules] == [*definition_check.RECORDS]
    assert rules['flashinfer_contest']['verdict'] == verdicts.PASS
    notes = '\n'.join(report.config['notes'])
    assert 'rule flashinfer_contest (MLSys 2026) accepts the output' in notes

  @pytest.mark.parametrize(
    ('source', 'verdict'),
    [
      ('layer(*inputs)', verdicts.PASS),
      ('layer(*inputs[:9], 1.0)', verdicts.FAIL),
      ('layer(*inputs[:8], 0, inputs[9])', verdicts.FAIL),
    ],
    ids=['right', 'factor ignored', 'first expert ignored'],
  )
  @pytest.mark.few(1)
  def test_random_inputs_show_who_ignores_a_scalar(
    self, files, source, verdict
  ):
    folder, definition, _ = files
    text = f'def compute_output(*inputs):\n  return {source}\n'
    path = testing.write_kernels(folder, text)
    case, candidate = definition_check.make_request(
      definition, f'{path}::compute_output', tokens=_TOKENS
    )
    request = request_lib.Request(case, candidate, _JUDGEMENT)
    assert check.run(request).verdict == verdict

  @pytest.mark.parametrize('change', testing.CHANGES)
  @pytest.mark.few(1)
  def test_a_wrong_kernel_fails(self, files, change):
    report = _judge(files, testing.make_change(change), 'changed')
    assert report.verdict == verdicts.FAIL

  @pytest.mark.parametrize(
    ('change', 'options'),
    [
      ('activation in fp8', dict(rows='activation=e4m3_1x128')),
      ('activation in bf16', dict(policy=('activation=bfloat16',))),
    ],
  )
  @pytest.mark.few(1)
  def test_another_policy_is_a_difference_that_can_be_said(
    self, files, change, options
  ):
    extra_source = testing.make_change(change)
    assert _judge(files, extra_source, 'changed').verdict == verdicts.FAIL
    assert (
      _judge(files, extra_source, 'changed', **options).verdict == verdicts.PASS
    )

  def test_public_rules_accept_what_is_wrong(self, files):
    # An activation in eight bits that nobody declared: the contest's rule
    # takes it, and it is named here all the same.
    report = _judge(files, testing.make_change('activation in fp8'), 'changed')
    rules = report.config['public_rules']
    assert rules['flashinfer_contest']['verdict'] == verdicts.PASS
    assert report.verdict == verdicts.FAIL
    # Every token that has an expert is wrong, so none of them is to blame.
    failure = report.first_failure
    assert 'expert' not in failure.pattern + failure.hint


class TestRandomInputs:
  @pytest.mark.parametrize('seed', range(6))
  def test_a_single_token_has_an_expert_here(self, files, seed):
    # Given one token, whose experts may all be of one rank,
    _, definition, _ = files
    case, candidate = definition_check.make_request(
      definition, 'reference', tokens=1, seed=seed
    )
    # then the rank that is judged has a row, and the report says of whom.
    assert (case.input['topk_ids'] >= 0).any()
    num_local = len(candidate.inputs['gemm1_weights'])
    first = candidate.inputs['local_expert_offset']
    (line,) = [n for n in candidate.notes if 'have an expert here' in n]
    match = re.search(r'are experts ([\d, ]+) of', line)
    experts = [int(number) for number in match[1].split(',')]
    assert line.startswith('1 of 1 tokens')
    assert all(first <= expert < first + num_local for expert in experts)
    assert len(experts) == len(case.input['w_gate_up_codes'][0])


class TestTraceSet:
  def test_a_workload_has_the_inputs_that_a_check_draws(self, files, tmp_path):
    # Given inputs that hpmoe export wrote,
    _, definition, _ = files
    out = f'{tmp_path}/traces'
    words = f'--definition={definition}', '--tokens=3', '--seed=1'
    assert main.main(['export', *words, f'--out={out}']) == cli.PARITY
    (workload,) = (tmp_path / 'traces/workloads').rglob('*.jsonl')
    # then a check of that workload judges what one of random inputs does.
    drawn_case, drawn_candidate = definition_check.make_request(
      definition, 'reference', tokens=3, seed=1
    )
    case, candidate = definition_check.make_request(
      definition, 'reference', workload=str(workload)
    )
    assert drawn_candidate.inputs.keys() == candidate.inputs.keys()
    for name, value in drawn_candidate.inputs.items():
      np.testing.assert_array_equal(candidate.inputs[name], value)
    for name, array in drawn_case.input.items():
      np.testing.assert_array_equal(case.input[name], array)

  @pytest.mark.parametrize(
    ('words', 'text'),
    [
      (['--out={}'], 'tokens: expected a number with --definition'),
      (['--out={}', '--tokens=2', '--preset=tiny'], 'preset: expected'),
      (['--tokens=2'], 'out: expected a folder to write, got none'),
    ],
  )
  def test_a_wrong_request_is_named(self, files, tmp_path, capsys, words, text):
    words = [word.format(tmp_path / 'new') for word in words]
    arguments = ['export', f'--definition={files[1]}', *words]
    assert main.main(arguments) == cli.WRONG_REQUEST
    assert text in capsys.readouterr().err


class TestCheats:
  @pytest.mark.parametrize(
    'name',
    [
      'cached_by_shape',
      'cached_by_address',
      'cached_by_first_values',
      'third_call',
    ],
  )
  @pytest.mark.few(1)
  def test_an_answer_of_another_call_fails(self, files, name):
    report = _judge(files, testing.CHEATS[name], name)
    assert report.verdict == verdicts.FAIL

  @pytest.mark.parametrize(
    ('name', 'text'),
    [
      ('writes_inputs', 'hidden_states: expected an input as it was before'),
      ('returns_float32', r'output: expected bfloat16 \[9, 256\], got float32'),
    ],
  )
  def test_what_cannot_be_judged_is_said(self, files, name, text):
    with pytest.raises(candidates.CandidateError, match=text):
      _judge(files, testing.CHEATS[name], name)

  def test_destination_passing(self, files):
    report = _judge(files, testing.DESTINATION, 'run_into')
    assert report.verdict == verdicts.PASS

  @pytest.mark.parametrize('name', ['writes_nothing', 'writes_half'])
  def test_memory_of_the_last_call_is_no_answer(self, files, name):
    report = _judge(files, testing.DESTINATION, name)
    assert report.verdict == verdicts.FAIL
    failure = report.first_failure
    assert failure is not None and 'nan' in str(failure.actual).lower()


class TestNearTies:
  @pytest.fixture
  def layer(self, files):
    """Returns a layer where two experts of token 3 score the same."""
    _, definition, workload = files
    task = definition_lib.read_definition(definition)
    work = definition_lib.read_workload(workload)
    inputs = workload_inputs.make_inputs(task, work)
    inputs['routing_bias'][:] = 0
    logits = inputs['routing_logits']
    logits[3] = np.linspace(2, -2, 16)
    logits[3, 4] = logits[3, 3]
    kind = input_kinds.find_kind(task)
    return layer_inputs.Layer.from_inputs(kind, task.name, inputs)

  def test_an_answer_of_nan_follows_no_choice(self, layer):
    class _Kernel:
      def compute(self):
        return {'output': np.full((_TOKENS, 256), np.nan)}

    settled_routing = definition_check.settle_routing(layer, _Kernel())
    (choices,) = layer.route().undecided.values()
    ids = sorted(settled_routing.routing.ids[3].tolist())
    assert ids in [sorted(choice) for choice in choices]

  def test_an_undecided_token_follows_the_solution(self, layer):
    # when a kernel takes either of them,
    choice = layer.route()
    assert [*choice.undecided] == [3]
    for ids in choice.undecided[3]:
      row = definition_check.compute_row(layer, 3, np.array(ids))

      class _Kernel:
        def compute(self, row=row):
          return {'output': np.tile(row, (_TOKENS, 1))}

      # then its output is judged under its choice, and a line says so.
      settled_routing = definition_check.settle_routing(layer, _Kernel())
      assert sorted(settled_routing.routing.ids[3].tolist()) == sorted(ids)
      assert settled_routing.notes[0].startswith(
        'token 3: undecided, as experts'
      )


class TestKinds:
  @pytest.mark.parametrize(
    ('name', 'label'),
    [
      (
        'moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e32_h7168_i2048',
        'fp8_block_scale_deepseek',
      ),
      (
        'moe_fp8_block_scale_renorm_topk10_e128_h2048_i512',
        'fp8_block_scale_renormalize',
      ),
      (
        'trtllm_fp8_block_scale_moe_topk8_e256_h3072_i1536',
        'fp8_block_scale_minimax',
      ),
      ('moe_fp8_per_tensor_scale_topk8_e256_h7168_i2048', 'fp8_per_tensor'),
      (
        'trtllm_fp8_per_tensor_scale_moe_topk2_e8_h2048_i1024',
        'fp8_per_tensor_trtllm',
      ),
      ('trtllm_fp8_per_tensor_scale_moe_topk1_e16_h5120_i8192', 'llama4_fp8'),
      (
        'trtllm_fp4_block_scale_moe_topk1_e128_h5120_i8192',
        'llama4_mxfp4_weights_as_float32',
      ),
      (
        'moe_fp4_block_scale_pre_routed_topk8_ng8_kg4_e32_h7168_i2048',
        'nvfp4_routed',
      ),
      ('moe_bf16_topk8_e256_h2048_i256', 'bf16'),
      (
        'trtllm_fp4_block_scale_moe_topk10_e128_h2048_i512',
        'mxfp4_weights_as_float32',
      ),
      (
        'trtllm_fp4_block_scale_routed_moe_topk1_e16_h5120_i8192',
        'mxfp4_weights_as_float32_routed',
      ),
      ('moe_batched_e128_h2048_i768_topk8', 'reference_of_zeros'),
    ],
  )
  def test_published_names_have_one_kind(self, name, label):
    labels = [
      kind.label for kind in input_kinds.KINDS.values() if kind.match(name)
    ]
    assert labels == [label]


class TestCommand:
  def test_three_words_judge_a_kernel(self, files, tmp_path, capsys):
    _, definition, workload = files
    code = main.main(
      [
        'check',
        f'--definition={definition}',
        f'--workload={workload}:w{_TOKENS}',
        '--solution=reference',
        '--repeat=1',
        f'--json={tmp_path / "report.json"}',
      ]
    )
    text = capsys.readouterr().out
    assert code == cli.PARITY, text
    assert 'of which rounding leaves none undecided' in text
    assert 'rule flashinfer_bench_lowbit' in text
    report = json.loads((tmp_path / 'report.json').read_text())
    assert report['verdict'] == 'pass'

  def test_a_solution_that_raises_is_a_report_too(self, files, tmp_path):
    _, definition, _ = files
    (tmp_path / 'kernel.py').write_text('def run(*inputs):\n  1 / 0\n')
    words = f'--solution={tmp_path}/kernel.py::run', '--tokens=2'
    path = tmp_path / 'report.json'
    code = main.main(
      ['check', f'--definition={definition}', *words, f'--json={path}']
    )
    assert code == cli.CANDIDATE_FAILED
    report = json.loads(path.read_text())
    assert 'got exit code 1' in report['error']
    assert report['config']['input']['x_codes'].startswith('float8_e4m3fn [1, ')

  @pytest.mark.parametrize(
    ('words', 'text'),
    [
      (['--solution=k.py::run'], 'solution: expected --definition=DEF.json'),
      (['--definition=none.json'], 'solution: expected SOLUTION.json'),
      (
        ['--definition=none.json', '--solution=reference'],
        "definition: expected a file, got 'none.json'",
      ),
      (
        ['--definition={}', '--solution=reference'],
        'workload: expected a workload or a number of tokens, got neither',
      ),
      (
        ['--definition={}', '--solution=missing.py::run', '--tokens=2'],
        "solution: expected FILE.py::function, got 'missing.py::run'",
      ),
      (
        ['--definition={}', '--solution=mine.py:run', '--tokens=2'],
        'solution: expected FILE.py::function, with two colons',
      ),
      (
        ['--definition={}', '--solution=reference', '--preset=tiny'],
        'preset: expected',
      ),
    ],
  )
  @pytest.mark.few(3)
  def test_a_wrong_request_is_named(self, files, capsys, words, text):
    words = [word.format(files[1]) for word in words]
    assert main.main(['check', *words]) == cli.WRONG_REQUEST
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert text in line and len(line) < 300
