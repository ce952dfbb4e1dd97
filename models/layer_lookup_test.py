"""A layer of the user is found where the command is typed."""

import sys

import pytest

from hpmoe.models import layer_lookup


def test_a_module_in_the_current_folder_is_found(tmp_path, monkeypatch):
  # Given a module beside the shell, on nobody's path,
  (tmp_path / 'layer_beside_me.py').write_text('def layer(*_):\n  return 7\n')
  monkeypatch.chdir(tmp_path)
  search_path = [path for path in sys.path if path not in ('', str(tmp_path))]
  monkeypatch.setattr(sys, 'path', search_path)

  assert layer_lookup.find_layer('layer_beside_me:layer', {})() == 7
  with pytest.raises(ValueError, match="moe: expected to import 'nobody:l'"):
    layer_lookup.find_layer('nobody:l', {})
