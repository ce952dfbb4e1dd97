"""A check says what it costs, and refuses what does not fit."""

import pytest

from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.judge import judgement as judgement_lib
from hpmoe.parity_tests.judge import price as price_lib
from hpmoe.reference.contract import memory

_WHOLE = judgement_lib.Judgement()
_SAMPLE = judgement_lib.Judgement(judgement_lib.OF_SAMPLE, tiles=8)


def estimate(judgement=_WHOLE, **fields) -> price_lib.Price:
  price = price_lib.estimate(case_lib.Case(**fields), judgement)
  assert price is not None
  return price


def test_weights_of_a_large_layer_are_what_to_change(monkeypatch):
  monkeypatch.setattr(memory, 'available', lambda: 10**9)
  with pytest.raises(ValueError, match='^experts: ') as refusal:
    estimate(preset='deepseek_v3', dtype='bfloat16').refuse()
  text = str(refusal.value)
  assert len(text) < 300
  for word in ('1.0 GB', ' min', '% of it weights', 'd_model', '--tiles=8'):
    assert word in text


def test_rows_of_a_small_layer_are_what_to_change(monkeypatch):
  monkeypatch.setattr(memory, 'available', lambda: 10**9)
  with pytest.raises(ValueError, match='^tokens: .*smaller tokens'):
    estimate(preset='tiny', tokens=1 << 24).refuse()
  estimate(preset='tiny').refuse()


def test_a_sample_costs_what_it_samples():
  whole = estimate(preset='qwen3_30b_a3b', tokens=4096)
  sample = estimate(_SAMPLE, preset='qwen3_30b_a3b', tokens=4096)
  assert sample.seconds < whole.seconds / 20
  assert sample.least_bytes < whole.least_bytes


def test_only_those_who_wait_are_told():
  assert not estimate(preset='small').describe()
  assert 'GB' in estimate(preset='qwen3_30b_a3b').describe()


def test_given_inputs_have_no_price():
  assert price_lib.estimate(case_lib.Case(input={}), _WHOLE) is None
