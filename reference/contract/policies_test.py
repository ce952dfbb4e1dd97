"""Names and words of policies."""

import pytest

from hpmoe.reference.contract import policies
from hpmoe.reference.contract import precision


def policy(words, storage='bfloat16'):
  return precision.PrecisionPolicy(storage, **policies.fields(words))


@pytest.mark.parametrize('name', policies.POLICIES)
def test_each_name_is_a_policy_with_a_source(name):
  # given, when
  public_policy = policy((name,))

  # then: its own words say the same again
  own_words = policies.words(public_policy)
  assert (
    policy((*own_words, f'placement={public_policy.placement}'))
    == public_policy
  )
  assert policies.POLICIES[name].source


def test_later_words_win_and_a_string_has_commas():
  changed_policy = policy('vllm,silu=accumulate,placement=combine')
  assert changed_policy.rounding('silu') is None
  assert changed_policy.placement == 'combine'


def test_storage_is_that_of_the_policy():
  assert policy(('hf_mixtral',)).rounding('silu') == 'bfloat16'
  assert policy(('hf_mixtral',), 'float32').rounding('silu') is None


def test_an_unknown_word_is_refused_with_those_that_are_known():
  with pytest.raises(ValueError, match="^policy: expected one of .*'vllm'.*"):
    policies.fields(('vlm',))
