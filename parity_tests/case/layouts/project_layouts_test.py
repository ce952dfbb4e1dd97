"""A project's word moves tensors as the project has them, and back."""

import ml_dtypes
import numpy as np
import pytest

from hpmoe.parity_tests.case import data_tables
from hpmoe.parity_tests.case.layouts import layouts as layouts_lib
from hpmoe.parity_tests.case.layouts import project_layouts
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors

CONFIG = config_testing.make_config(r=2, t=3, e=4, k=2, d=6, f=5, s=7)
POLICY = precision.PrecisionPolicy()
_INPUTS = ('x', 'topk_ids', 'topk_weights', 'w_gate_up', 'w_down')


def _draw(names, dtype=np.float32):
  """Returns a tensor of each name, no two elements alike."""
  arrays = {}
  for name in names:
    dims = tensors.SPECS[name].dims(**CONFIG.dims())
    kind = np.int32 if tensors.SPECS[name].kind == 'i32' else dtype
    arrays[name] = np.arange(np.prod(dims)).reshape(dims).astype(kind)
  return arrays


def _interleave(weights):
  gate, up = np.split(weights, 2, -1)
  return np.stack([gate, up], -1).reshape(weights.shape)


def _put_up_first(weights):
  gate, up = np.split(weights, 2, -1)
  return np.concatenate([up, gate], -1).transpose(0, 2, 1)


# What each project's kernel reads, written down once more.
_WEIGHTS = {
  'vllm': lambda w: w.transpose(0, 2, 1),
  'hf': lambda w: w.transpose(0, 2, 1),
  'te': lambda w: w.transpose(0, 2, 1),
  'deepgemm': lambda w: w.transpose(0, 2, 1),
  'deepgemm_ue8m0': lambda w: w.transpose(0, 2, 1),
  'cutlass': lambda w: w.transpose(0, 2, 1),
  'flashinfer': _put_up_first,
  'flashinfer_fp8': _put_up_first,
  'flashinfer_cutlass': _put_up_first,
  'gpt_oss': _interleave,
  'megatron': lambda w: w,
  'cann': lambda w: w,
}


@pytest.mark.parametrize('word', project_layouts.list_words())
def test_weights_and_tokens_are_as_the_project_has_them(word):
  inputs = _draw(_INPUTS)
  stacked = inputs['w_gate_up'].reshape(4, 6, 10)
  down = inputs['w_down'].reshape(4, 5, 6)
  is_transposed = project_layouts.read_layouts(word)['w_down'].axes[-1] == 'F'

  laid_out = project_layouts.lay_out(word, inputs, CONFIG, POLICY)

  np.testing.assert_array_equal(laid_out['w_gate_up'], _WEIGHTS[word](stacked))
  expected = down.transpose(0, 2, 1) if is_transposed else down
  np.testing.assert_array_equal(laid_out['w_down'], expected)
  np.testing.assert_array_equal(laid_out['x'], inputs['x'].reshape(6, 6))
  assert laid_out['topk_ids'].shape == (6, 2)
  assert all(array.flags.c_contiguous for array in laid_out.values())


@pytest.mark.parametrize('word', project_layouts.list_words())
def test_logits_are_those_of_all_tokens_and_experts(word):
  logits = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
  arrays = dict(router_logits=logits, d_router_logits=-logits)
  laid_out = project_layouts.lay_out(word, arrays, CONFIG, POLICY)
  for name, array in arrays.items():
    np.testing.assert_array_equal(laid_out[name], array.reshape(6, 4))
  restored = project_layouts.restore(word, laid_out, CONFIG, POLICY)
  for name, array in arrays.items():
    np.testing.assert_array_equal(restored[name], array)


@pytest.mark.parametrize('word', project_layouts.list_words())
def test_weights_of_shared_experts_are_as_those_of_experts(word):
  # given: what each rank holds a copy of
  names = ('w_shared_gate_up', 'w_shared_down', 'd_w_shared_gate_up')
  arrays = _draw((*names, 'shared_gate_up'))
  is_transposed = project_layouts.read_layouts(word)['w_down'].axes[-1] == 'F'

  # when
  laid_out = project_layouts.lay_out(word, arrays, CONFIG, POLICY)
  restored = project_layouts.restore(word, laid_out, CONFIG, POLICY)

  # then
  gate_up, down, gradient = (arrays[name] for name in names)
  expected = down.transpose(0, 2, 1) if is_transposed else down
  for name, array in (
    ('w_shared_gate_up', _WEIGHTS[word](gate_up)),
    ('d_w_shared_gate_up', _WEIGHTS[word](gradient)),
    ('w_shared_down', expected),
  ):
    np.testing.assert_array_equal(laid_out[name], array)
  for name, array in arrays.items():
    np.testing.assert_array_equal(restored[name], array)


@pytest.mark.parametrize('word', project_layouts.list_words())
def test_what_was_laid_out_is_restored(word):
  names = (*_INPUTS, 'y', 'dx', 'd_topk_weights', 'd_w_gate_up', 'd_w_down')
  arrays = _draw((*names, 'gate_up'), ml_dtypes.bfloat16)

  laid_out = project_layouts.lay_out(word, arrays, CONFIG, POLICY)
  restored = project_layouts.restore(word, laid_out, CONFIG, POLICY)

  for name, array in arrays.items():
    np.testing.assert_array_equal(restored[name], array)
  assert laid_out['d_w_down'].shape == laid_out['w_down'].shape
  assert laid_out['dx'].shape == (6, 6)


def test_axes_that_move_alone_agree_with_the_map_of_each_element():
  for word in project_layouts.list_words():
    for name, array in _draw(('w_gate_up', 'w_down', 'b_down')).items():
      layout = project_layouts.read_layouts(word).get(name)
      if layout is not None:
        by_map = layouts_lib.Layout.apply(layout, array, CONFIG.dims())
        moved_axes = project_layouts.lay_out(
          word, {name: array}, CONFIG, POLICY
        )[name]
        np.testing.assert_array_equal(moved_axes, by_map)


def test_a_row_says_whose_it_is():
  for word in project_layouts.list_words():
    assert project_layouts.describe(word)
    assert {*data_tables.read('layouts')[word]} - {'of'} <= {*tensors.IN_FILES}


def test_a_word_that_is_none_is_refused():
  with pytest.raises(ValueError, match=r"layout: expected one of 'vllm'.*"):
    project_layouts.read_layouts('vlm')
  with pytest.raises(ValueError, match=r'y: expected \[M D\] = \[6, 6\], got'):
    project_layouts.restore('vllm', _draw(['y']), CONFIG, POLICY)
