"""A case takes the words that the command takes."""

import numpy as np
import pytest

from hpmoe.parity_tests.case import case as case_lib


@pytest.mark.parametrize(
  'word, dtype',
  [('bf16', 'bfloat16'), ('f16', 'float16'), ('float32', 'float32')],
)
def test_short_names_of_dtypes(word, dtype):
  case = case_lib.Case(preset='tiny', ranks=2, dtype=word, weights=word)

  assert (case.dtype, case.weights) == (dtype, dtype)
  assert case == case_lib.Case(
    preset='tiny', ranks=2, dtype=dtype, weights=dtype
  )
  assert str(case.make().arrays['x'].dtype) == dtype


def test_a_policy_as_the_command_has_it():
  words = case_lib.Case(policy='gate_up=f32,silu=bf16').policy
  assert words == ('gate_up=f32', 'silu=bf16')
  assert case_lib.Case(policy='').policy == ()


def test_an_unknown_dtype_is_named():
  with pytest.raises(ValueError, match="expected .*, got 'bf15'"):
    case_lib.Case(preset='tiny', dtype='bf15').make()


@pytest.mark.parametrize('word', ['w_gate_up=float16', 'x=float16', ''])
def test_drawn_values_are_finite_in_what_the_policy_stores(word):
  words = (word,) if word else ()
  case = case_lib.Case(preset='tiny', ranks=2, policy=words)

  arrays = case.make().arrays

  for name in ('x', 'w_gate_up', 'w_down', 'topk_weights'):
    assert np.isfinite(arrays[name]).all(), name


def test_the_old_name_of_from_folder_works_and_warns(monkeypatch):
  monkeypatch.setattr(
    case_lib.Case, 'from_folder', lambda folder, direction: (folder, direction)
  )
  with pytest.warns(DeprecationWarning, match='Case.from_folder'):
    old_name = vars(case_lib.Case)['of']
    assert old_name('folder', 'forward') == ('folder', 'forward')
