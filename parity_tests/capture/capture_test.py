"""Which activation a layer has is seen, or said not to be; a check reads it."""

import pathlib
import types

import numpy as np
import pytest

from hpmoe.parity_tests.capture import capture
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.case import input_files
from hpmoe.parity_tests.case import read_case
from hpmoe.parity_tests.judge import activations_testing
from hpmoe.parity_tests.judge import trial_testing

FORMULAS = {
  'swiglu': trial_testing.plain_silu,
  **{name: act for name, (act, _) in activations_testing.FORMULAS.items()},
}


class Layer:
  """One that has an activation, perhaps in its parts."""

  def __init__(self, *parts, **attributes):
    self.parts = parts
    for name, value in attributes.items():
      setattr(self, name, value)

  def __call__(self):
    raise AssertionError('not called')

  def modules(self):
    return [self, *self.parts]


def gated(act):
  """As `silu_and_mul` of kernels is: of gate and up side by side."""
  return lambda gate_up: (
    act(gate_up[: len(gate_up) // 2]) * gate_up[len(gate_up) // 2 :]
  )


@pytest.mark.parametrize('name', FORMULAS)
def test_a_function_is_named_by_what_it_does(name):
  act = FORMULAS[name]
  for layer in (
    Layer(act_fn=act),
    Layer(Layer(act=act), Layer(act=act)),
    Layer(activation=gated(act)),
  ):
    assert capture._read_activation(layer) == name


def test_a_word_of_a_configuration_is_known():
  config = types.SimpleNamespace(hidden_act='gelu_pytorch_tanh')
  assert capture._read_activation(Layer(config=config)) == 'geglu_tanh'


@pytest.mark.parametrize(
  ('layer', 'expected'),
  [
    (Layer(), 'none'),
    (lambda x: x, 'none'),
    (Layer(act_fn=np.sin), 'none'),
    (Layer(act_fn='mish'), 'none'),
    (Layer(Layer(act='gelu'), act='silu'), 'geglu and swiglu'),
  ],
)
def test_what_is_not_seen_is_said(layer, expected):
  with pytest.warns(
    UserWarning, match=f'^activation: expected .* got {expected}:'
  ):
    assert capture._read_activation(layer) is None


def _write(folder: pathlib.Path, form: str) -> str:
  arrays = case_lib.Case(preset='tiny', ranks=1).make().arrays
  path = folder / 'inputs.safetensors'
  names = (*capture.INPUTS, 'dy')
  notes = {**input_files.AXES, 'activation_form': form}
  read_case.save(path, {n: np.asarray(arrays[n]) for n in names}, notes)
  return str(path)


def test_a_check_takes_the_activation_of_a_file(tmp_path):
  path = _write(tmp_path, 'geglu_tanh')
  for form in ('swiglu', 'geglu_tanh'):
    policy = case_lib.Case(input=path, activation=form).make().policy
    assert policy.activation == 'geglu_tanh'
  with pytest.raises(ValueError, match='^activation: .* geglu_tanh, as .* got'):
    case_lib.Case(input=path, activation='reglu').make()


def test_an_activation_that_nobody_knows_is_refused(tmp_path):
  with pytest.raises(ValueError, match="activation: .* got 'mish'"):
    case_lib.Case(input=_write(tmp_path, 'mish')).make()
