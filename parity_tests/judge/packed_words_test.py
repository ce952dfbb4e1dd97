"""Weights of AWQ and GPTQ in words of eight codes, read right and wrong."""

import numpy as np
import pytest

import hpmoe
from hpmoe.parity_tests.judge import quantised_testing

FORMS = ('int4_awq', 'int4_gptq')
SIZES = 'tiny:experts=4:d_model=256:d_ff=128'


def move_nibbles(words: np.ndarray, places: tuple[int, ...]) -> np.ndarray:
  """Returns words whose nibble n is that of a place in the given words."""
  new_words = np.zeros(words.shape, np.uint32)
  for nibble, place in enumerate(places):
    part = words.view(np.uint32) >> np.uint32(4 * place) & np.uint32(15)
    new_words |= part << np.uint32(4 * nibble)
  return new_words.view(np.int32)


CHANGES = {
  'codes in another order': lambda form, inputs: {
    'w_down_codes': move_nibbles(
      inputs['w_down_codes'],
      # Of a kernel that reads AWQ as GPTQ lies, and the other way round.
      (0, 4, 1, 5, 2, 6, 3, 7) if 'gptq' in form else (0, 2, 4, 6, 1, 3, 5, 7),
    )
  },
  'zero points of 1 more': lambda form, inputs: {
    'w_down_zeros': inputs['w_down_zeros'] + 1
  },
  'zero points of 1 less': lambda form, inputs: {
    'w_down_zeros': inputs['w_down_zeros'] - 1
  },
}


def check(form: str, change=None):
  def layer(inputs, config, policy):
    changes = change(form, inputs) if change else {}
    return quantised_testing.Kernel()({**inputs, **changes}, config, policy)

  layer.activations = ('swiglu', 'absolute')
  case = hpmoe.Case(preset=SIZES, direction='forward', quantised=form)
  return hpmoe.check(layer, case, lanes=['bounded'], repeat=1)


@pytest.mark.parametrize('form', FORMS)
@pytest.mark.few(1)
def test_a_right_kernel_passes(form):
  report = check(form)
  assert report.is_pass, str(report)


@pytest.mark.parametrize('words', CHANGES)
@pytest.mark.parametrize('form', FORMS)
@pytest.mark.few(2)
def test_a_wrong_one_is_named(form, words):
  failure = check(form, CHANGES[words]).first_failure
  assert failure.stage == 'expert_out'
  assert f'as if w_down had {words}' in failure.pattern.replace(
    'its codes', 'codes'
  )


def test_words_that_are_not_full_are_refused():
  case = hpmoe.Case(preset='tiny:d_model=36:d_ff=24', quantised='int4_gptq')
  with pytest.raises(ValueError, match='multiple of 8 along axis'):
    case.make()
