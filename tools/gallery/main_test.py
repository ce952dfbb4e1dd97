"""What was found has a reason, and a wrong adapter is named."""

import ast

import pytest

import hpmoe
from hpmoe.tools.docs import figures as figures_lib
from hpmoe.tools.gallery import main

_LINES = 15


def _figures() -> dict:
  return figures_lib.load(main.NAME)['layers']


def _adapters() -> list[str]:
  return sorted({entry.adapter.partition(':')[0] for entry in main.ENTRIES})


def _lines(source: str) -> dict[str, int]:
  """Returns the lines of each function, without its docstring."""
  return {
    node.name: node.end_lineno - node.lineno + 1
    for node in ast.parse(source).body
    if isinstance(node, ast.FunctionDef)
  }


class TestFound:
  def test_rows_are_of_what_was_found(self):
    assert figures_lib.load(main.NAME)['rows'] == main.rows(_figures())

  def test_has_a_reason_for_each_failure_and_no_other(self):
    assert not main.wrong(_figures())

  @pytest.mark.parametrize(
    ('name', 'outcome'),
    [('JAX ragged_dot', 'PASS'), ('MindSpore operators', 'FAIL: y (exact)')],
  )
  def test_another_outcome_than_its_words_is_named(self, name, outcome):
    figures = _figures()
    dtype = 'bf16' if outcome == 'PASS' else 'f32'
    figures[name][dtype]['outcome'] = outcome
    (line,) = main.wrong(figures)
    assert line.startswith(f'{name}: found: expected')

  def test_an_entry_without_figures_is_named(self):
    figures = _figures()
    del figures['JAX ragged_dot']
    assert main.wrong(figures) == ['JAX ragged_dot: expected figures, got none']


class TestAdapters:
  @pytest.mark.parametrize('file', _adapters())
  def test_has_fifteen_lines_at_most(self, file):
    lines = _lines((main.ADAPTERS / file).read_text())
    assert lines and max(lines.values()) <= _LINES, lines

  def test_a_longer_one_is_counted(self):
    body = '  pass\n' * _LINES
    assert _lines(f'def moe():\n{body}') == {'moe': _LINES + 1}

  def test_gate_and_up_swapped_are_named(self, monkeypatch):
    """Given ragged_dot's adapter with a bug, its row says where."""
    monkeypatch.syspath_prepend(main.ADAPTERS)
    text = (main.ADAPTERS / 'jax_products.py').read_text()
    halves = 'jnp.split(gate_up, 2, -1)'
    assert halves in text
    adapter: dict = {}
    exec(text.replace(halves, f'{halves}[::-1]'), adapter)
    case = hpmoe.Case(preset='tiny', ranks=1, capacity=32)
    report = hpmoe.check(adapter['ragged_dot'], case, lanes=('exact',))
    found = main.figure(str(report))
    assert found.outcome == 'FAIL: activation (exact)'
    assert 'element   activation[0, ' in found.text
