"""What ends a text, beside config.json."""

import json

import pytest

from hpmoe.models import config as config_lib
from hpmoe.models.checkpoint import generation_config


def _applied(content):
  files = {} if content is None else {'generation_config.json': content}
  config = config_lib.load('mixtral_tiny')
  return generation_config.applied(config, files).eos_token_id


@pytest.mark.parametrize(
  'fields, want',
  [
    (None, (257,)),
    ({}, (257,)),
    (dict(eos_token_id=None), (257,)),
    (dict(eos_token_id=3), (3,)),
    (dict(eos_token_id=[3, 257]), (3, 257)),
  ],
)
def test_the_file_comes_first(fields, want):
  content = None if fields is None else json.dumps(fields).encode()
  assert _applied(content) == want


@pytest.mark.parametrize(
  'content', [b'{', b'[]', b'{"eos_token_id": "x"}', b'{"eos_token_id": [-1]}']
)
def test_refuses(content):
  with pytest.raises(ValueError, match=r'^generation_config.json: expected '):
    _applied(content)
