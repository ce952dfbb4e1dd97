"""The stubs say what the extension modules say."""

import pytest

from hpmoe.tools import stubs


@pytest.mark.parametrize('name', stubs.MODULES)
def test_a_stub_is_true(name):
  assert stubs.declarations(stubs.path(name).read_text()) == stubs.declarations(
    stubs.generate(name)
  )


def test_names_arguments_defaults_and_types_are_compared():
  right = (
    'def launch(image: Image, *, threads: int | None = None) -> Report: ...'
  )
  found = stubs.declarations(right)
  assert found == stubs.declarations(right.replace('...', '\n  """Runs."""'))
  for part, other in (
    ('launch', 'run'),
    ('threads', 'cores'),
    ('= None', '= 1'),
    ('Report', 'str'),
    ('*, ', ''),
  ):
    assert found != stubs.declarations(right.replace(part, other)), part
