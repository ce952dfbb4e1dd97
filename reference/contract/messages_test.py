"""Parts of error messages."""

import pytest

from hpmoe.reference.contract import messages
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import quantised


def test_a_short_list_is_named_whole():
  assert (
    messages.name_choices(('both', 'forward'), 'bth') == "'both', 'forward'"
  )


def test_of_a_long_list_the_nearest_are_named():
  text = messages.name_choices(quantised.FORMS, 'mxfp5')

  assert text.startswith("'mxfp8', 'mxfp4', ")
  assert text.endswith(f'(nearest of {len(quantised.FORMS)})')
  assert len(text) < 160


def test_the_longest_words_of_the_contract_fit_a_message():
  for words in (quantised.FORMS, precision.POINTS, precision.ACTIVATIONS):
    for word in words:
      assert len(messages.name_choices(words, f'{word}x')) < 200


def test_words_that_begin_alike_come_first():
  text = messages.name_choices(quantised.FORMS, 'int8')

  assert text.startswith("'int8_channel', ")


def test_a_question_mark_asks_for_all():
  text = messages.name_choices(quantised.FORMS, '?')

  assert all(repr(form) in text for form in quantised.FORMS)


@pytest.mark.parametrize(
  ('choices', 'word', 'near'),
  [
    (('vllm', 'hf', 'te'), 'vlm', 'vllm'),
    (('softmax', 'deepseek_v3', 'topk'), 'deepseek', 'deepseek_v3'),
    (('gate_up', 'expert_in'), 'gateup', 'gate_up'),
    (('renormalize', 'topk'), 'renorm', 'renormalize'),
    (('hf', 'te'), 'colossal', ''),
    (('np', 'layer'), 'nope', ''),
    (('frontend', 'seed'), 'frobnicate', ''),
  ],
)
def test_a_near_miss_is_told_what_it_may_have_meant(choices, word, near):
  text = messages.refuse_choice(choices, word)

  assert text.startswith(f"expected one of '{choices[0]}'")
  assert f'got {word!r}' in text
  assert text.endswith(f': did you mean {near!r}?') == bool(near)


def test_an_error_of_the_users_code_is_cut_to_one_line():
  short = messages.describe_error(KeyError('topk_ids'))
  long = messages.describe_error(RuntimeError('no kernel\n' + 'for this ' * 99))

  assert short == "KeyError('topk_ids')"
  assert long == 'RuntimeError: no kernel ...'
  assert len(messages.describe_error(RuntimeError('x' * 999))) < 130
