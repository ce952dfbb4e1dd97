"""Programs that compute the layer: right, wrong, dead, hung, half done."""

import dataclasses
import inspect
import pathlib
import sys
import textwrap
import time
import types

import pytest

from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.candidates import external_program
from hpmoe.parity_tests.candidates import function_candidate
from hpmoe.parity_tests.candidates import in_process
from hpmoe.parity_tests.candidates import numpy_kernel_testing
from hpmoe.parity_tests.candidates import processes
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.case import inputs as inputs_lib
from hpmoe.parity_tests.judge import check
from hpmoe.parity_tests.judge import judgement
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.report import report_text
from hpmoe.reference.contract import presets

CASE = case_lib.Case(preset='tiny', ranks=2)
# All ranks are computed from the files of all, and one is written.
KERNEL = """
def moe_lost_slot(inputs, layer, policy):
  weights = inputs['topk_weights'].copy()
  weights[1, 3, 0] = 0
  return moe({**inputs, 'topk_weights': weights}, layer, policy)

def moe_of_swiglu(inputs, layer, policy):
  assert policy.activation == 'swiglu'
  return moe(inputs, layer, policy)

moe_of_swiglu.activations = ('swiglu',)

def moe_back(inputs, layer, policy, slope=1):
  from hpmoe.parity_tests.judge import trial_testing as trial
  from hpmoe.reference.contract import config, precision
  activation = policy.activation
  policy = precision.PrecisionPolicy(policy.storage, activation=activation)
  of = config.MoEConfig(**vars(layer)), policy
  # In the order of depth, as the oracle does not add.
  kernel = trial.Kernel(trial.ascending, slope=slope)
  saved = kernel.forward(*of, inputs)
  grads = kernel.backward(*of, {**inputs, **saved})
  names = 'dx', 'd_topk_weights', 'd_w_gate_up', 'd_w_down'
  return {name: grads[name] for name in names}

def of_swiglu(backward):
  forward = lambda *given: moe_of_swiglu(*given)
  forward.activations, forward.backward = ('swiglu',), backward
  return forward

silent = of_swiglu(moe_back)
again = of_swiglu(lambda *given: moe_back(*given))
again.backward.recomputes = True
again_and_wrong = of_swiglu(
  lambda *given: moe_back(*given, slope=np.float32(1.0001)))
again_and_wrong.backward.recomputes = True
"""
RANK = """
import os, signal, subprocess, sys, time
import numpy as np
folder, out, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
sys.path[:0] = [folder, os.path.dirname(os.path.abspath(__file__))]
import kernel, read_case

case, function = read_case.load(folder), kernel.moe
if rank == 1:
  %s
  pass
for data in case.data:
  parts = [read_case.inputs(case, data, r) for r in range(2)]
  inputs = {n: np.stack([part[n] for part in parts]) for n in parts[0]}
  policy = case.data[data]
  policy.limit, policy.alpha, policy.offset = 0, 1, 0
  y = function(inputs, case.layer, policy)['y']
  read_case.write(out, case, data, {'y': y[rank]}, rank)
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
  """Returns a function from what rank 1 does first to a program."""
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'kernel.py').write_text(
    inspect.getsource(numpy_kernel_testing) + KERNEL
  )

  def make(
    first: str = 'pass', timeout_s: float = 60
  ) -> external_program.Program:
    (tmp_path / 'rank.py').write_text(RANK % textwrap.dedent(first))
    command = f'{sys.executable} rank.py {{case}} {{out}} {{rank}}'
    return external_program.Program(command, per_rank=True, timeout_s=timeout_s)

  return make


def _check(candidate, lanes=verdicts.LANES, direction='forward'):
  case = dataclasses.replace(CASE, direction=direction)
  return check.run(
    check.Request(case, candidate, judgement.Judgement(tuple(lanes)))
  )


def _python(function: str) -> external_program.Interpreter:
  return external_program.Interpreter(python=sys.executable, name=function)


def _make_function(function: str) -> candidates.Candidate:
  path, _, name = function.partition(':')
  return in_process.Function(getattr(_module(path), name))


def _module(path: str):
  module = types.ModuleType('kernel')
  exec(pathlib.Path(path).read_text(), vars(module))
  return module


class TestABackwardPassThatRecomputes:
  # Given: it returns y alone, and reads nothing that the forward pass saved.

  @pytest.mark.parametrize(
    ('kind', 'direction'),
    [
      (_python, 'both'),
      (function_candidate.Subprocess, 'backward'),
      (_make_function, 'both'),
    ],
    ids=('python', 'candidate', 'called'),
  )
  @pytest.mark.few(1)
  def test_is_judged_by_what_it_may_have_recomputed(
    self, program, kind, direction
  ):
    program()
    report = _check(kind('kernel.py:again'), direction=direction)
    assert report.verdict == verdicts.PASS
    assert 'recomputes' not in report_text.format_notes(report)

  @pytest.mark.verdict_alone
  def test_is_told_to_say_so(self, program):
    program()
    report = _check(_make_function('kernel.py:silent'), direction='both')
    assert report.first_failure.stage == 'd_w_down'
    assert 'function.backward.recomputes = True' in report_text.format_notes(
      report
    )

  @pytest.mark.slow
  def test_may_be_wrong(self, program):
    program()
    wrong = function_candidate.Subprocess('kernel.py:again_and_wrong')
    report = _check(wrong, direction='both')
    assert report.first_failure.stage == 'd_w_gate_up'
    assert 'recomputes' not in report_text.format_notes(report)


class TestVerdicts:
  def test_a_function_in_another_python(self, program):
    program()
    report = _check(_python('kernel.py:moe'))
    assert report.verdict == verdicts.PASS
    assert {r.lane for r in report.results if r.verdict == verdicts.PASS} >= {
      'exact',
      'bounded',
      'standard',
    }
    assert not report.changes

  @pytest.mark.parametrize('lane', ('exact', 'bounded'))
  @pytest.mark.few(1)
  def test_its_bug_is_found(self, program, lane):
    program()
    report = _check(_python('kernel.py:moe_lost_slot'), (lane,))
    first = report.first_failure
    assert (first.rank, first.token) == (1, 3)

  def test_it_may_lack_an_activation(self, program):
    program()
    report = _check(_python('kernel.py:moe_of_swiglu'))
    assert report.verdict == verdicts.PASS
    exact = {r.verdict for r in report.results if r.lane == 'exact'}
    assert exact == {verdicts.NOT_JUDGED}

  def test_a_process_for_each_rank(self, program):
    assert _check(program()).verdict == verdicts.PASS

  @pytest.mark.slow
  def test_the_bug_of_one_rank_is_found(self, program):
    report = _check(program('function = kernel.moe_lost_slot'))
    assert report.verdict == verdicts.FAIL
    assert report.first_failure.rank == 1
    token, column = report.first_failure.index[1:]
    place = f'{{out}}/real.rank1.safetensors y[{token}, {column}]; tile: '
    assert report.first_failure.location.startswith(place)


def _run(candidate):
  layer_inputs = inputs_lib.make_inputs(presets.get('tiny'), 2)
  candidate.ready(CASE)
  return candidate.run(
    layer_inputs.config, layer_inputs.policy, layer_inputs.arrays
  )


@pytest.mark.parametrize(
  ('first', 'message'),
  [
    ('os.abort()', 'rank 1: expected an answer, got signal 6'),
    ('sys.exit(7)', 'rank 1: expected an answer, got exit code 7'),
    ('time.sleep(60)', 'rank 1: expected an answer within 5 s, got none'),
    ('sys.exit(0)', 'expected outputs of rank 1, got none'),
    (
      'open(f"{out}/real.rank1.safetensors", "wb").write(b"half"); os._exit(0)',
      'real.rank1.safetensors: expected a readable',
    ),
    (
      'function = lambda *a: {"y": np.zeros((2, 16, 31), "f4")}',
      r'y: expected \[1, 16, 32\] of every rank, as rank 0 has, got .*31\]',
    ),
  ],
)
@pytest.mark.few(2)
def test_a_rank_that_fails_is_named(
  program, tmp_path, monkeypatch, first, message
):
  monkeypatch.setattr('tempfile.tempdir', str(tmp_path / 'temporary'))
  (tmp_path / 'temporary').mkdir()
  with pytest.raises((candidates.CandidateError, ValueError), match=message):
    _run(program(first, timeout_s=5))
  assert not [*(tmp_path / 'temporary').iterdir()]


def test_the_other_ranks_end_with_the_first_that_fails(tmp_path):
  start = time.monotonic()
  codes = processes.call(
    tmp_path, {0: ['sleep', '60'], 1: ['sh', '-c', 'exit 3']}, {}, 60
  )
  assert codes == {1: 3}
  assert time.monotonic() - start < 30
  assert not processes.find_pids(tmp_path)


@pytest.mark.parametrize(
  ('candidate', 'message'),
  [
    (
      external_program.Program('./moe {case}'),
      r'command: expected a program with {c',
    ),
    (
      external_program.Program('./moe {case} {out} {rank}'),
      'expected --per_rank',
    ),
    (_python('kernel:moe'), 'candidate: expected FILE.py:function with'),
    (_python('none.py:moe'), "candidate: expected a file, got 'none.py'"),
    (
      external_program.Program('./none {case} {out}'),
      'expected a program .*none',
    ),
    (
      external_program.Program('true {case} {out}'),
      'expected tensors in {out}, got',
    ),
  ],
)
def test_what_cannot_be_run_or_answers_nothing_is_refused(candidate, message):
  with pytest.raises((ValueError, candidates.CandidateError), match=message):
    _run(candidate)
