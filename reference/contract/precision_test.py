"""Policies that no layer has are refused, and golden is float64 throughout."""

import pytest

from hpmoe.reference.contract import precision
from hpmoe.reference.contract import storage

PrecisionPolicy = precision.PrecisionPolicy


@pytest.mark.parametrize(
  'field', ['storage', 'accumulate', 'placement', 'accumulation_order']
)
def test_unknown_names_are_refused(field):
  with pytest.raises(ValueError, match=f"^{field}: expected one of .*'other'"):
    PrecisionPolicy(**{field: 'other'})


@pytest.mark.parametrize('dtype', sorted({*storage.FORMATS} - {'bfloat16'}))
def test_even_odd_is_of_bfloat16(dtype):
  with pytest.raises(
    ValueError,
    match="^accumulation_order: expected 'ascending' for storage "
    f"'{dtype}', got 'even_odd_32', which is defined for 'bfloat16'$",
  ):
    PrecisionPolicy(storage=dtype, accumulation_order='even_odd_32')


def test_golden_has_no_order_of_its_own():
  policy = PrecisionPolicy('bfloat16', accumulation_order='even_odd_32')
  golden = policy.golden()
  assert (golden.storage, golden.accumulate) == ('float64', 'float64')
  assert golden.accumulation_order == 'ascending'


def test_each_dtype_has_the_orders_that_are_defined_for_it():
  orders = precision.ACCUMULATION_ORDERS
  assert precision.sums(('float32', 'bfloat16'), orders) == (
    ('float32', 'ascending'),
    ('bfloat16', 'ascending'),
    ('bfloat16', 'even_odd_32'),
  )
  with pytest.raises(ValueError, match="expected 'ascending' .* float16"):
    precision.sums(('bfloat16', 'float16'), orders[1:])


def test_a_copy_of_codes_values_is_stored_as_they_are():
  # A copy is in the dtype of its source, with points or without.
  for points in ((), ('y=bfloat16',)):
    policy = PrecisionPolicy('bfloat16', x_form='e4m3_1x128', points=points)
    assert policy.storing('expert_in').storage == 'float32'
    assert policy.storing('gate_up').storage == 'bfloat16'
  plain = PrecisionPolicy('bfloat16')
  assert plain.storing('expert_in') is plain


@pytest.mark.parametrize('name', precision.ACTIVATIONS[2:])
def test_alpha_is_a_number_of_swiglu(name):
  with pytest.raises(ValueError, match=f'^alpha: expected 1 of {name}, .* 2$'):
    precision.PrecisionPolicy(activation=name, alpha=2)


def test_other_forms_differ_and_keep_the_other_numbers():
  policy = precision.with_form(precision.PrecisionPolicy(), 'gpt_oss')
  forms = precision.list_other_forms(policy)
  assert {*forms} == {
    *(f'{name}:limit=7:offset=1' for name in precision.ACTIVATIONS[2:]),
    'swiglu:limit=7:offset=1',
    'swiglu:alpha=1.702:offset=1',
    'swiglu:alpha=1.702:limit=7',
  }
