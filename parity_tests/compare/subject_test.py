"""What both sides read: a model's own tokens, or bytes."""

import numpy as np

from hpmoe.models.train import folder_testing
from hpmoe.models.train import text as text_lib
from hpmoe.parity_tests.compare import subject as subject_lib


class TestLoad:
  def test_a_folder_with_a_tokenizer_reads_its_tokens(self, tmp_path):
    # given
    folder = folder_testing.write(tmp_path / 'model')
    words = folder_testing.words().encode(text_lib.SHIPPED.read_text()).ids
    # when
    subject = subject_lib.load(str(folder), sequence=12)
    # then
    rows = np.lib.stride_tricks.sliding_window_view(np.array(words), 12)
    for row in subject.tokens:
      assert (rows == row).all(axis=1).any()

  def test_bytes_without_one(self):
    subject = subject_lib.load('mixtral_tiny', sequence=12)
    for row in subject.tokens:
      assert bytes(row.tolist()) in text_lib.SHIPPED.read_bytes()
