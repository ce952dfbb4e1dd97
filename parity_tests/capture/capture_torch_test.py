"""A layer of Hugging Face's Qwen3-MoE, recorded in a run, and judged.

Where torch is, this project is not: HPMOE_TORCH_PYTHON names a Python that has
torch and transformers.  `make test-torch` runs it.
"""

import json
import os
import pathlib
import shutil
import subprocess

import pytest

import hpmoe
from hpmoe.parity_tests.case import read_case

FOLDER = pathlib.Path(__file__).parent
GRADS = ('dx', 'd_topk_weights', 'd_w_gate_up', 'd_w_down')


@pytest.fixture(scope='module')
def ran(tmp_path_factory) -> tuple[pathlib.Path, dict]:
  """Returns a folder of what was recorded, and what was seen beside."""
  folder = tmp_path_factory.mktemp('torch')
  names = 'capture.py', 'qwen3_torch_testing.py'
  for file in (*(FOLDER / name for name in names), read_case.__file__):
    shutil.copy(file, folder)
  process = subprocess.run(
    [
      os.environ['HPMOE_TORCH_PYTHON'],
      '-I',
      '-Werror::DeprecationWarning:read_case',
      FOLDER / 'torch_testing.py',
      folder,
      folder,
    ],
    stdout=subprocess.PIPE,
    text=True,
    check=True,
  )
  return folder, json.loads(process.stdout.splitlines()[-1])


def _verdict(folder: pathlib.Path):
  case = hpmoe.Case(input=f'{folder}/inputs.safetensors', direction='both')
  return hpmoe.check(f'outputs:{folder}', case, lanes=['bounded', 'standard'])


def test_a_run_that_is_recorded_is_as_one_that_is_not(ran):
  assert ran[1]['same']


@pytest.mark.parametrize(
  ('run', 'form'),
  [
    ('right', 'swiglu'),
    ('gelu', 'geglu'),
    ('gelu_pytorch_tanh', 'geglu_tanh'),
    ('relu', 'reglu'),
    ('quick_gelu', 'swiglu:alpha=1.702'),
  ],
)
def test_the_activation_is_that_of_the_module(ran, run, form):
  _, notes = read_case.read(ran[0] / run / 'inputs.safetensors')
  assert notes['activation_form'] == form
  assert _verdict(ran[0] / run).is_pass


def test_an_activation_that_is_no_attribute_is_not_known(ran):
  _, notes = read_case.read(ran[0] / 'list' / 'inputs.safetensors')
  assert 'activation_form' not in notes


@pytest.mark.parametrize('run', ('right', 'grouped', 'two_steps'))
def test_a_right_layer_and_its_gradients_pass(ran, run):
  report = _verdict(ran[0] / run)
  assert report.is_pass, str(report)
  assert {report.stages[name] for name in ('y', *GRADS)} == {'pass'}


@pytest.mark.parametrize('run', ('lost', 'bf16'))
def test_a_fault_of_the_forward_pass_is_found(ran, run):
  # bfloat16 rounds more often than the policy says.
  assert _verdict(ran[0] / run).first_failure.stage == 'y'


def test_a_fault_of_the_backward_pass_is_found(ran):
  report = _verdict(ran[0] / 'cut')
  failure = report.first_failure
  assert (failure.stage, failure.expert) == ('d_w_down', 3)
  # In their own coordinates too: [E, D, F].
  assert 'down_proj' in str(report) or 'd_w_down[3' in str(report)
  assert report.stages['y'] == report.stages['d_w_gate_up'] == 'pass'


@pytest.mark.parametrize(
  ('run', 'expected'),
  [('frozen', {'d_w_gate_up'}), ('list', {'d_w_gate_up', 'd_w_down'})],
)
def test_what_wants_no_gradient_is_not_judged(ran, run, expected):
  # Of a layer with frozen weights; of one that routes by itself, whose experts
  # are a list.
  report = _verdict(ran[0] / run)
  assert report.is_pass, str(report)
  assert {name for name in GRADS if report.stages[name] == 'pass'} == expected


@pytest.mark.parametrize(
  ('run', 'message'),
  [
    ('none', 'layer: expected call 0 within the block, got 0 calls'),
    ('two', 'call: expected a number from 0 to 1, as the block has 2 calls'),
    ('late', 'layer: expected call 1 within the block, got 1 calls'),
    ('twice', 'layer: expected one backward pass through call 0, got 2'),
    ('broken', 'mine'),
    (
      'where',
      "x: expected an argument of the layer .* got none named 'tokens'",
    ),
    ('name', "w_up: expected x, .* got 'w_up'"),
    ('block', 'topk_ids: expected an argument of the layer or a parameter'),
    ('bias', 'layer: expected only the parameters .*, got bias'),
  ],
)
def test_what_cannot_be_recorded_is_refused(ran, run, message):
  pytest.raises(ValueError, _raise, ran[1]['said'][run]).match(message)


def _raise(text: str):
  raise ValueError(text)
