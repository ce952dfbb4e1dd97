"""What a difference is, and what is said without a compiler."""

import dataclasses

import numpy as np
import pytest

from hpmoe.parity_tests.ascend.determinism import interleavings
from hpmoe.reference.contract import precision
from hpmoe.tools.arm import cases
from hpmoe.tools.arm import main

PLAN = interleavings.Plan(ranks=2, dtypes=('bfloat16',), layouts=((1, 1),))


def test_a_missing_program_is_named_with_what_installs_it():
  with pytest.raises(ValueError, match='no-such-g.*apt-get install g'):
    main.require('no-such-g++ -O2')


def test_a_zero_of_another_sign_is_a_difference():
  positive_zeros, mixed_zeros = (
    np.zeros((2, 3), np.float32),
    np.zeros((2, 3), np.float32),
  )
  mixed_zeros[1, 2] = -0.0
  assert main.difference(positive_zeros, positive_zeros) == ''
  assert (
    main.difference(positive_zeros, mixed_zeros)
    == '1 of 6 elements, (1, 2): 0.0, -0.0'
  )


def test_a_tensor_that_was_not_made_there_differs():
  (case, *_) = cases.cases((PLAN,))
  expected = cases.run_here(case)
  actual = {name: a for name, a in expected.items() if name != 'y'}
  assert main.compare(expected, expected) == []
  assert main.compare(expected, actual) == ['y: not made']


def test_what_is_written_has_the_size_that_the_image_says(tmp_path):
  (case, *_) = cases.cases((PLAN,))
  cases.write(case, tmp_path / 'case')
  for name, array in case.inputs.items():
    path = tmp_path / 'case' / f'{name}.in'
    assert path.stat().st_size == array.nbytes, name
  assert (tmp_path / 'case' / 'image.bin').read_bytes() == bytes(case.image)
  assert cases.read(case, tmp_path / 'case') == {}


def test_a_layer_tells_the_orders_apart():
  # In `tiny` 24 terms, rounded to bfloat16, have nearly the same bits in both.
  deep = dataclasses.replace(cases.LAYERS[-1], dtypes=('bfloat16',))
  y = {}
  for order in precision.ACCUMULATION_ORDERS:
    plan = dataclasses.replace(deep, accumulation_orders=(order,))
    y[order] = cases.run_here(next(cases.cases((plan,))))['y'].tobytes()
  assert len(y) == len(set(y.values())) == 2


def test_subnormal_inputs_are_subnormal():
  plan = interleavings.Plan(ranks=2, layouts=((1, 1),))
  for case in cases.cases((plan,)):
    if ' subnormal forward ' in case.name:
      x = np.abs(case.inputs['x'].astype(np.float64))
      smallest = {'float16': 2.0**-14}.get(case.name.split()[-1], 2.0**-126)
      assert ((x > 0) & (x < smallest)).mean() > 0.5, case.name
