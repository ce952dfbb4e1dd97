"""What the fuzzer found of tensor files stays found; the fuzzer itself."""

import collections
import re

import numpy as np
import pytest
from safetensors import numpy as safetensors_numpy

from hpmoe.parity_tests.case import inputs
from hpmoe.reference.contract import tensor_file
from hpmoe.tools import tensor_file_fuzz
from hpmoe.tools import tensor_file_mutations

FILES = tensor_file_fuzz.corpus()
pytestmark = pytest.mark.filterwarnings('ignore:.*additional header parsing')


@pytest.mark.parametrize('path', FILES, ids=lambda path: path.name)
def test_a_kept_file_gives_tensors_or_says_why_not(path):
  tensor_file_fuzz.outcome(path)


def test_kept_files_are_accepted_and_refused():
  ends = collections.Counter(tensor_file_fuzz.outcome(f) for f in FILES)
  assert ends['tensors | tensors'] > 0 and len(ends) > 20


@pytest.mark.parametrize('suffix', tensor_file.READERS)
def test_seeds_are_accepted(tmp_path, suffix):
  path = tmp_path / f'seed{suffix}'
  for kind, data in tensor_file_mutations.seeds():
    if kind == suffix:
      path.write_bytes(data)
      assert tensor_file_fuzz.outcome(path) == 'tensors | tensors'


@pytest.mark.parametrize('order', ['C', 'F'])
@pytest.mark.parametrize('save', [np.savez, np.savez_compressed])
def test_archives_are_read_as_numpy_reads_them(tmp_path, save, order):
  path = tmp_path / 'ids.npz'
  ids = np.arange(24, dtype=np.int32).reshape(2, 3, 4).copy(order)
  save(path, topk_ids=ids)
  read = tensor_file.read(path, ['topk_ids'])['topk_ids']
  np.testing.assert_array_equal(read, np.load(path)['topk_ids'])
  read[0, 0, 0] = 7  # as what numpy reads, it is the caller's to write


def test_more_counts_than_a_small_file_may_ask_for(tmp_path):
  # Given 1 MB of 2**13 ranks with an expert each, then the plan would have
  # 2**26 counts.
  path = tmp_path / 'layer.safetensors'
  ranks = 2**13
  safetensors_numpy.save_file(
    {
      'x': np.ones((ranks, 1, 1), np.float32),
      'topk_ids': np.zeros((ranks, 1, 1), np.int32),
      'topk_weights': np.ones((ranks, 1, 1), np.float32),
      'w_gate_up': np.ones((ranks, 1, 1, 2), np.float32),
      'w_down': np.ones((ranks, 1, 1, 1), np.float32),
    },
    path,
  )
  with pytest.raises(ValueError, match=r'R \* E of at most 16777216, got'):
    inputs.load_safetensors(path)


class TestFuzzer:
  @pytest.fixture
  def fuzzer(self, tmp_path):
    fuzzer = tensor_file_fuzz.Fuzzer(0, tmp_path)
    for suffix, data in tensor_file_mutations.seeds():
      fuzzer.run(suffix, data)
    return fuzzer

  def test_same_seed_same_files(self, tmp_path):
    kept = []
    for _ in range(2):
      fuzzer = tensor_file_fuzz.Fuzzer(3, tmp_path)
      fuzzer.run(*tensor_file_mutations.seeds()[0])
      for _ in range(20):
        fuzzer.step()
      kept.append([k[:2] for k in fuzzer.kept])
    assert kept[0] == kept[1] and len(kept[0]) > 1

  @pytest.mark.parametrize(
    'error', [KeyError('x'), OverflowError(), MemoryError(), SystemExit()]
  )
  def test_any_other_exception_is_a_finding(self, fuzzer, monkeypatch, error):
    def read(*_):
      raise error

    monkeypatch.setattr(tensor_file, 'read', read)
    with pytest.raises(tensor_file_fuzz.LawError, match=type(error).__name__):
      fuzzer.step()

  @pytest.mark.parametrize('text', ['no path', '{path}: two\nlines'])
  def test_a_bad_message_is_a_finding(self, tmp_path, monkeypatch, text):
    def read(path, *_):
      raise ValueError(text.format(path=path))

    monkeypatch.setattr(tensor_file, 'read', read)
    with pytest.raises(tensor_file_fuzz.LawError, match='expected one line'):
      tensor_file_fuzz.outcome(tmp_path / 'case.npz')

  def test_few_files_show_all_edges(self, fuzzer):
    for _ in range(30):
      fuzzer.step()
    kept = {(s, d): edges for s, d, edges in fuzzer.kept}
    chosen = list(tensor_file_fuzz.cover(fuzzer.kept))
    assert set().union(*(kept[c] for c in chosen)) == fuzzer.edges
    assert len(chosen) < len(kept)


def _numpys_reader(path, names):
  with np.load(path, allow_pickle=False) as file:
    present = sorted(file.files)
    return {name: file[name] for name in names if name in present}, present


def test_the_reader_before_this_one_is_found_out(tmp_path, monkeypatch):
  # Given numpy's reader, which returns bytes for a member that is no array,
  # when fuzzed, then a file is found on which that matters.
  monkeypatch.setitem(tensor_file.READERS, '.npz', _numpys_reader)
  fuzzer = tensor_file_fuzz.Fuzzer(0, tmp_path)
  with pytest.raises(tensor_file_fuzz.LawError, match='dtype|allocate'):
    for suffix, data in tensor_file_mutations.seeds():
      if suffix == '.npz':
        fuzzer.run(suffix, data)
    for _ in range(3000):
      fuzzer.step()


def test_found_files_have_names_that_say_what():
  found = [p.name for p in FILES if p.name.startswith('found-')]
  assert len(found) >= 9
  assert all(re.fullmatch(r'found-[a-z-]+\.npz', name) for name in found)
