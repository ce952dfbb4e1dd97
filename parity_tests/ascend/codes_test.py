"""`hpmoe check --rows=int8_token --weights=int8_channel` of the megakernel."""

import dataclasses

import numpy as np
import pytest

from hpmoe.backend_ascend.compiler import compiler
from hpmoe.backend_ascend.device.twin_launch import twin_runtime
from hpmoe.backend_ascend.host.launch import runtime
from hpmoe.backend_ascend.host.load import code_values
from hpmoe.parity_tests.ascend import host
from hpmoe.parity_tests.ascend import twin_candidate
from hpmoe.parity_tests.candidates import checking
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.commands import main
from hpmoe.parity_tests.judge import check
from hpmoe.parity_tests.judge import judgement
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import precision

FORMS = dict(quantised='int8_channel', rows='int8_token')
FLAGS = ('--weights=int8_channel', '--rows=int8_token')
FINE = granularity.Options(row_block=4, col_block=8, put_rows=3, token_block=3)
STAGES = {
  *('expert_in_scales', 'expert_in_codes', 'gate_up', 'activation_scales'),
  *('activation_codes', 'expert_out', 'returned', 'y', 'layer'),
}


def _check(candidate=host.Megakernel(FINE), **fields) -> check.Report:
  case = case_lib.Case(
    **dict(preset='tiny', ranks=2, tokens=16) | FORMS | fields
  )
  lanes = judgement.Judgement(lanes=('bitwise', 'bounded'))
  return check.run(check.Request(case, candidate, lanes))


class TestPasses:
  @pytest.mark.parametrize(
    'fields',
    [
      dict(dtype='bf16', placement='before_down'),
      dict(dtype='bf16', preset='odd', tokens=None),
      dict(dtype='bf16', policy=('activation=f32', 'gate_up=f32')),
      dict(dtype='bf16', routing='one_rank'),
      dict(dtype='bf16', routing='empty_experts'),
    ],
    ids=str,
  )
  @pytest.mark.few(1)
  def test_every_stage(self, fields):
    report = _check(**fields)
    assert report.verdict == 'pass', report.first_failure
    assert {row.stage for row in report.results} >= STAGES

  def test_with_puts_late_relay_and_races_looked_for(self):
    options = granularity.Options(
      row_block=4, col_block=8, num_aic=2, num_aiv=3, relay=True
    )
    modes = checking.Checking(permute=3, late_puts=True, races=True)
    report = _check(host.Megakernel(options, checking=modes), dtype='bf16')
    assert report.verdict == 'pass' and not report.num_races


@pytest.mark.few(1)
def test_the_device_source_on_the_twin():
  options = dataclasses.replace(FINE, col_block=24, num_aic=2, num_aiv=2)
  twin = twin_candidate.Twin(options, twin=twin_runtime.Modes(order='late'))
  report = _check(twin, dtype='bf16')
  assert report.verdict == 'pass', report.first_failure
  assert {row.stage for row in report.results} >= STAGES


class TestFaults:
  """A fault of one task is found in the stage that the task writes."""

  @pytest.mark.parametrize(
    'fault, stage',
    [
      ('stale_row', 'expert_in_scales'),
      ('wrong_offset', 'expert_in_codes'),
      ('dropped_k_term', 'expert_out'),
      ('swapped_experts', 'gate_up'),
      ('swapped_gate_up', 'activation_scales'),
      ('off_by_one_row', 'returned'),
      ('lost_k_slot', 'y'),
      ('misplaced_weight', 'y'),
    ],
  )
  @pytest.mark.few(1)
  def test_names_the_stage(self, fault, stage):
    report = _check(host.Megakernel(FINE, fault=fault))
    assert report.verdict == 'fail'
    assert report.first_failure.stage == stage


class TestRequests:
  @pytest.mark.parametrize(
    'flags, message',
    [
      (['--direction=backward'], 'direction: expected forward with rows'),
      (['--isolate'], 'rows: expected none with isolate'),
      (['--backend=ascend_npus'], 'weights: expected none with --backend'),
      (['--frontend=jax'], 'weights: expected none with'),
      (
        ['--rows=e4m3_token'],
        'weights=int8_channel with rows=int8_token, or none',
      ),
    ],
  )
  def test_what_has_no_codes_says_so(self, flags, message, capsys):
    argv = ['check', '--preset=tiny', '--ranks=2', *FLAGS, *flags]
    assert main.main(argv) == 2
    assert message in capsys.readouterr().err

  def test_determinism_tries_the_forward_pass(self, capsys):
    argv = ['determinism', *FLAGS, '--interleavings=4', '--dtype=bf16']
    assert main.main([*argv, '--layout=3x5', '--threads=2']) == 0
    assert '0 differing bits' in capsys.readouterr().out


def test_what_sums_mean_follows_the_experts_of_rows():
  # Given rows of two experts and one of nobody, when their sums are read, then
  # each has the scales of its own expert's columns.
  config = config_lib.MoEConfig(
    num_ranks=1,
    num_tokens=3,
    num_experts=2,
    top_k=1,
    d_model=2,
    d_ff=2,
    capacity=4,
  )
  policy = precision.PrecisionPolicy(**FORMS)
  image = compiler.compile_forward(config, policy, FINE).image
  ids = np.array([[[0], [1], [1]]], np.int32)
  plan = runtime.route(image, ids)
  sums = np.full((1, 4, 4), 10, np.int32)
  inputs, outputs = {}, {}
  for name, (rows, weight) in code_values._SCALES.items():
    width = 4 if name == 'gate_up' else 2
    outputs[f'{name}_sums'] = sums[..., :width]
    outputs[f'{rows}_scales'] = np.full((1, 4, 1), 0.5, np.float32)
    inputs[f'{weight}_scales'] = np.arange(1, 3, dtype=np.float32).reshape(
      1, 2, 1, 1
    ) * np.ones(width, np.float32)
  values = code_values.compute_values(image, plan, inputs, outputs)
  assert values['gate_up'][0, :, 0].tolist() == [5, 10, 10, 0]
  assert values['expert_out'].shape == (1, 4, 2)
