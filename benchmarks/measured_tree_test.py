"""Which checkout a benchmark of another tree measures."""

import os
import pathlib

import pytest

from benchmarks import measured_tree

ROOT = pathlib.Path(__file__).resolve().parents[1]


def test_the_tree_that_is_imported_is_measured():
  measured_tree.check_tree(str(ROOT), dict(os.environ))


def test_a_tree_that_is_not_imported_is_refused(tmp_path):
  with pytest.raises(RuntimeError, match='--tree: expected an interpreter'):
    measured_tree.check_tree(str(tmp_path), dict(os.environ))
