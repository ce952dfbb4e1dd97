"""Odd tokens have what the usual ones lack, and the others stay."""

import dataclasses

import numpy as np
import pytest

from hpmoe.parity_tests.case import inputs
from hpmoe.parity_tests.case import routings
from hpmoe.parity_tests.case import text_router
from hpmoe.parity_tests.case.values import unusual_values
from hpmoe.parity_tests.judge.limits import coded_rows
from hpmoe.parity_tests.judge.limits.bounds import bounded_values
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import presets
from hpmoe.reference.contract import quantised
from hpmoe.reference.contract import storage
from hpmoe.reference.quantised import quantise


def _is_odd(tokens: int) -> np.ndarray:
  return np.arange(tokens) % unusual_values.PERIOD == 0


class TestWeights:
  @pytest.mark.parametrize('top_k', [1, 2, 3, 8])
  def test_are_negative_zero_above_one_and_do_not_sum_to_one(self, top_k):
    # Given 32 tokens, 4 of them odd, weights of a softmax.
    ids = np.tile(np.arange(top_k, dtype=np.int32), (2, 16, 1))
    routed = routings.TokenRouting(
      ids, np.full(ids.shape, 1 / top_k, np.float32)
    )

    weights = unusual_values.change_weights(routed, np.ones(top_k))
    weights = weights.reshape(32, top_k)

    odd = weights[_is_odd(32)]
    assert (odd < 0).any() and (odd == 0).any() and (odd > 1).any()
    assert (odd.sum(-1) != 1).sum() >= 3 - (top_k == 8)
    assert (weights[~_is_odd(32)] == 1 / top_k).all()
    assert weights.dtype == np.float32

  def test_are_scaled_by_expert(self):
    # given: an expert of larger weights, and slots that no expert serves
    ids = np.array([[[0, 1]] * 8 + [[1, -1]]], np.int32)
    routed = routings.TokenRouting(ids, np.full(ids.shape, 0.5, np.float32))

    weights = unusual_values.change_weights(routed, np.array([1.0, 1024.0]))

    assert (weights[0, 1:8] == [0.5, 512]).all()
    assert abs(weights[0, 8, 1]) <= 1.5


class TestX:
  @pytest.mark.parametrize('dtype', storage.KERNEL_FORMATS)
  def test_has_subnormals_and_negative_zero(self, seed, dtype):
    x = np.ones((2, 16, 5), storage.KERNEL_FORMATS[dtype].numpy)

    odd = unusual_values.change_x(x, seed).reshape(32, 5)[_is_odd(32)]

    smallest = storage.KERNEL_FORMATS[dtype].smallest
    for value in (smallest, -smallest):
      assert (odd.astype(np.float64) == value).sum(-1).tolist() == [1] * 4
    assert ((odd == 0) & np.signbit(odd)).sum(-1).tolist() == [1] * 4

  def test_of_one_column_is_negative_zero(self, seed):
    x = unusual_values.change_x(np.ones((1, 8, 1), np.float32), seed)

    assert np.signbit(x).ravel().tolist() == [True] + [False] * 7


class TestTies:
  @pytest.mark.parametrize('name', ['mxfp4', 'mxfp8', 'e4m3_1x128_power'])
  def test_codes_of_ties_say_how_a_kernel_rounds(self, seed, name):
    # given: rows of 256 normal values, and two quantisers of one form
    form = quantised.FORMS[name]
    x = np.random.default_rng(seed).normal(size=(2, 16, 256)).astype('f4')
    away = dataclasses.replace(form, rounding=((form.element, 'away'),))
    # when
    ties = unusual_values.plant_ties(x, form).reshape(32, 256)
    even_codes, away_codes = (
      np.asarray(quantise.quantise(row_form, ties).codes, np.float32)
      for row_form in (form, away)
    )
    # then: both ties of each odd token differ, and no other token's
    differs = even_codes != away_codes
    assert differs[_is_odd(32), 1:3].all()
    assert not differs[~_is_odd(32)].any()
    assert (ties[~_is_odd(32)] == x.reshape(32, 256)[~_is_odd(32)]).all()

  def test_scales_that_are_no_powers_of_two_leave_x_as_it_is(self):
    x = np.ones((1, 8, 64), np.float32)
    form = quantised.FORMS['int8_token']
    assert unusual_values.plant_ties(x, form) is x

  def test_a_tie_is_decided_where_scales_are_powers_of_two(self):
    form = quantised.FORMS['mxfp4']
    rows = np.array([[4.5, 1.25, -1.25, *np.ones(29)]])
    policy = precision.PrecisionPolicy(rows='mxfp4')
    codes = coded_rows.requantise(policy, form, bounded_values.exact(rows))
    assert codes.value[0, :3].tolist() == [4, 1, -1]
    assert (codes.bound()[0, 1:] == 0).all()


class TestInputs:
  def test_a_named_routing_has_odd_tokens(self):
    layer_inputs = inputs.make_inputs(presets.get('tiny'), 2)

    assert (layer_inputs.arrays['topk_weights'] < 0).any()
    assert np.signbit(
      layer_inputs.arrays['x'][layer_inputs.arrays['x'] == 0]
    ).any()

  def test_x_decides_the_routing_before_it_is_odd(self):
    layer_inputs = inputs.make_inputs(presets.get('tiny'), 2)
    x = text_router.embed(layer_inputs.config, text_router.read_text(), 0)
    scores = text_router.gate_scores(layer_inputs.config, x, 0)
    router = presets.get('tiny').router
    ids = text_router.route(layer_inputs.config, router, scores, 0).topk_ids

    assert (layer_inputs.arrays['topk_ids'] == ids).all()
