"""Rows of the gallery were measured, and have a reason where they fail."""

import copy
import sys

import pytest

from benchmarks import gallery
from hpmoe.tools.docs import figures

_TABLE = figures.load('gallery')
_GPU_TABLE = figures.load('gallery_gpu')


def test_rows_are_of_the_entries_and_what_was_measured():
  assert _TABLE['rows'] == gallery.tabulate(_TABLE['layers'])
  assert not gallery.list_contradictions(_TABLE['layers'])


def test_rows_of_a_gpu_are_of_its_entries():
  layers = _GPU_TABLE['layers']
  assert _GPU_TABLE['rows'] == gallery.tabulate_gpu(layers)
  assert not gallery.list_contradictions(layers, gallery.GPU_ENTRIES)
  layers[gallery.GPU_ENTRIES[0].name]['bf16'] = 'PASS'
  (line,) = gallery.list_contradictions(layers, gallery.GPU_ENTRIES)
  assert line.startswith('torch grouped_mm: reason: expected bf16')


@pytest.mark.parametrize(
  ('name', 'dtype', 'outcome'),
  [
    ('JAX ragged_dot', 'bf16', 'PASS'),
    ('MindSpore operators', 'f32', 'FAIL: y (exact)'),
    ('torch grouped_mm', 'policy', 'FAIL: dx (exact)'),
  ],
)
def test_another_outcome_than_an_entry_says_is_named(name, dtype, outcome):
  layers = copy.deepcopy(_TABLE['layers'])
  layers[name][dtype] = outcome
  (line,) = gallery.list_contradictions(layers)
  assert line.startswith(f'{name}: ')


def test_an_entry_without_figures_is_named():
  layers = dict(_TABLE['layers'])
  del layers['JAX ragged_dot']
  (line,) = gallery.list_contradictions(layers)
  assert line == 'JAX ragged_dot: expected figures, got none'


def test_every_adapter_is_an_entry_s():
  entries = (*gallery.ENTRIES, *gallery.GPU_ENTRIES)
  files = {entry.adapter.partition(':')[0] for entry in entries}
  shared_files = {'of_both.py', 'of_jax.py', 'of_onnx.py', 'of_torch.py'}
  shared_files.add('triton_gmm.py')
  adapters = {path.name for path in gallery.ADAPTERS.glob('*.py')}
  assert files == adapters - shared_files


def test_what_changes_bits_is_named_with_what_is_wrong():
  rows = [
    dict(name='batch', apart={'y': dict(grade='rounding')}),
    dict(name='slots', apart={'y': dict(grade='wrong'), 'dx': None}),
    dict(name='threads', apart={'d_w_down': dict(grade='rounding')}),
  ]
  assert gallery.describe_changes(rows) == 'batch, slots (WRONG)'


@pytest.mark.slow
def test_the_cheapest_row_is_that_of_the_page():
  (entry,) = (e for e in gallery.ENTRIES if e.name == 'JAX ragged_dot')
  outcome = gallery.check(entry, 'bf16', sys.executable)
  assert outcome == _TABLE['layers'][entry.name]['bf16']
