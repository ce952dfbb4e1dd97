"""Vocabularies of sentencepiece and tiktoken: the ids of transformers.

`make test-torch` runs it; HPMOE_TORCH_PYTHON names a Python that has
transformers, sentencepiece with protobuf, and tiktoken.
"""

import json
import os
import pathlib
import subprocess

import pytest

from hpmoe.models.checkpoint import tokenizer

_SCRIPT = pathlib.Path(__file__).with_name('vocabulary_torch_testing.py')


@pytest.mark.parametrize('kind', ['bpe', 'unigram', 'tiktoken'])
def test_ids_are_those_of_transformers(tmp_path, kind):
  folder = tmp_path / kind
  subprocess.run(
    [os.environ['HPMOE_TORCH_PYTHON'], '-I', _SCRIPT, folder, kind], check=True
  )
  loaded_tokenizer = tokenizer.load(folder)
  for text, ids in json.loads((folder / 'ids.json').read_text()):
    encoding = loaded_tokenizer.encode(text, add_special_tokens=False)
    assert encoding.ids == ids, text
