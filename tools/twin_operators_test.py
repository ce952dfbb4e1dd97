"""Rows of public operators: they can be drawn, computed and judged."""

import numpy as np
import pytest

from hpmoe.backend_ascend.twin.intrinsics import run_kernel
from hpmoe.tools import twin_operators as operators

_ROWS, _COMMITS = operators.read()


@pytest.mark.parametrize('row', _ROWS, ids=lambda row: row.name)
def test_a_formula_gives_the_first_output(row):
  _, arrays, outputs = operators.arguments(row)
  first = outputs[0][0] if isinstance(outputs[0], list) else outputs[0]
  expected = operators.expect(row, arrays)
  assert expected.shape == tuple(first.shape)
  assert np.isfinite(expected.astype(float)).all()
  assert row.repository in _COMMITS


def _row(**changes):
  fields = dict(
    repository='owner/name',
    path='twice',
    inputs=('float32 2x3',),
    outputs=(),
    attributes={},
    formula='2 * a',
    rtol=0.0,
    atol=0.1,
  )
  return operators.Row(**(fields | changes))


def _launch(monkeypatch, change):
  class Operator:
    def __init__(self, *_, **__):
      pass

    def __call__(self, x, y, **_):
      return [x, change(x)]

  monkeypatch.setattr(run_kernel, 'Operator', Operator)


def _verdict(tmp_path):
  return operators.verdict(_row(), tmp_path, '', ())


def test_an_element_that_is_off_is_counted(tmp_path, monkeypatch):
  _launch(monkeypatch, lambda x: 2 * x)
  assert _verdict(tmp_path) == 'right'
  error = np.zeros((2, 3), np.float32)
  error[1, 2] = 0.25
  _launch(monkeypatch, lambda x: 2 * x + error)
  assert _verdict(tmp_path) == 'wrong: 1 of 6, by up to 0.25'
  error[0, 0] = np.nan
  assert _verdict(tmp_path).startswith('wrong: 2 of 6')


def test_what_the_twin_reports_or_refuses_is_the_verdict(tmp_path, monkeypatch):
  def report(_):
    raise run_kernel.FindingsError([f'bounds: {tmp_path}/k.h:3', 'second'])

  _launch(monkeypatch, report)
  assert _verdict(tmp_path) == 'bounds: k.h:3'

  def refuse(_):
    raise ValueError('tiling:\nfails')

  _launch(monkeypatch, refuse)
  assert _verdict(tmp_path) == 'refused: tiling: fails'
