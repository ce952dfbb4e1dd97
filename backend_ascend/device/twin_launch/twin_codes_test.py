"""Images of int8 codes: the device source has the host's bits.

Sums of codes are exact, and so is the activation `absolute`: all tensors are
equal.  `hpmoe check --backend=ascend_twin --rows=int8_token` judges the rest.
"""

import dataclasses

import numpy as np
import pytest

from hpmoe.backend_ascend.compiler import compiler
from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.device.twin_launch import twin_runtime
from hpmoe.backend_ascend.host.launch import runtime
from hpmoe.backend_ascend.host.launch import runtime_testing
from hpmoe.backend_ascend.host.load import arrays
from hpmoe.backend_ascend.twin import twin_testing
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import precision

# Rows, columns and depths that no block divides.
ODD = config_testing.make_config(r=2, t=13, e=4, k=2, d=41, f=35)
OPTIONS = granularity.Options(
  num_aic=2, num_aiv=3, row_block=8, col_block=24, put_rows=5
)
FORMS = dict(zip(('quantised', 'rows'), layout.QUANTISED[1]))
EXACT = precision.PrecisionPolicy('bfloat16', activation='absolute', **FORMS)


def _compile(config, policy=EXACT, options=OPTIONS) -> image_lib.Image:
  return compiler.compile_forward(config, policy, options).image


def _expect_equal(actual, expected, names=None):
  for name in names or expected:
    np.testing.assert_array_equal(
      arrays.bits(actual[name]), arrays.bits(expected[name]), err_msg=name
    )


def _expect_the_host_s_bits(config, policy=EXACT, options=OPTIONS, **modes):
  image = _compile(config, policy, options)
  inputs = runtime_testing.make_code_inputs(config, policy, 'zipf')
  twin = twin_runtime.launch(image, inputs, modes=twin_runtime.Modes(**modes))
  expected = runtime.launch(image, inputs)
  assert np.abs(expected['y'].astype(np.float32)).max() > 0
  _expect_equal(twin, expected)


@pytest.mark.parametrize('order', twin_runtime.ORDERS)
@pytest.mark.parametrize('ranks', [1, 2, 4])
def test_all_tensors_are_the_host_s(ranks, order):
  config = config_testing.make_config(r=ranks, t=13, e=4, k=2, d=41, f=35)
  _expect_the_host_s_bits(config, order=order)


@pytest.mark.parametrize(
  'policy',
  [
    dict(storage='float32'),
    dict(points=layout.WIDE_POINTS),
    dict(placement='before_down'),
  ],
  ids=str,
)
def test_so_they_are_under_every_policy(policy):
  _expect_the_host_s_bits(ODD, dataclasses.replace(EXACT, **policy))


@pytest.mark.parametrize(
  'options', [dict(relay=True), dict(event_grain='expert')], ids=str
)
def test_so_they_are_however_rows_travel(options):
  _expect_the_host_s_bits(
    ODD, options=dataclasses.replace(OPTIONS, **options), order='late'
  )


@pytest.mark.parametrize(
  'd, f',
  [(1500, 16), (16, 4300), (8200, 8)],
  ids=['several_stages', 'two_parts_of_f', 'two_parts_of_d'],
)
@pytest.mark.few(1)
def test_so_they_are_of_what_a_memory_does_not_hold(d, f):
  # Given depths of more than a stage of L1, and rows of more than a set of UB.
  config = config_testing.make_config(r=1, t=3, e=2, k=1, d=d, f=f)
  options = dataclasses.replace(OPTIONS, row_block=64, col_block=256)
  _expect_the_host_s_bits(config, options=options)


def test_a_tile_of_two_strips():
  # Given sums that half of L0C does not hold.
  config = config_testing.make_config(r=1, t=70, e=1, k=1, d=48, f=256)
  options = dataclasses.replace(OPTIONS, row_block=128, col_block=256)
  _expect_the_host_s_bits(config, options=options, order='late')


def test_with_silu_what_lies_before_it_has_equal_bits():
  policy = dataclasses.replace(EXACT, activation='swiglu')
  image = _compile(ODD, policy)
  inputs = runtime_testing.make_code_inputs(ODD, policy, 'zipf')
  twin = twin_runtime.launch(image, inputs)
  expected = runtime.launch(image, inputs)
  _expect_equal(
    twin, expected, ('expert_in_codes', 'expert_in_scales', 'gate_up_sums')
  )
  codes = [x['activation_codes'].astype(np.int32) for x in (twin, expected)]
  assert np.abs(codes[0] - codes[1]).max() <= 1


@twin_testing.needs_asc_devkit
def test_real_headers_give_equal_bits():
  _expect_the_host_s_bits(ODD, include=twin_testing.ASC_DEVKIT, order='late')
