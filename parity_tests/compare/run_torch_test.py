"""Runs of transformers that msprobe dumped, against the folder they are of.

`make test-torch` runs it; HPMOE_TORCH_PYTHON names a Python that has torch,
transformers and mindstudio-probe.
"""

import json
import os
import pathlib
import subprocess

import numpy as np
import pytest

from hpmoe.models import families
from hpmoe.models import golden_testing as golden
from hpmoe.models.checkpoint import convert
from hpmoe.models.checkpoint import hf_folder
from hpmoe.parity_tests.compare import run_diff
from hpmoe.parity_tests.compare import run_dump
from hpmoe.parity_tests.compare import run_report
from hpmoe.parity_tests.compare import scores

_SCRIPT = pathlib.Path(__file__).with_name('run_torch_testing.py')
_LAYER = 'model.layers.1'
# A configuration of each family that transformers has under its own name.
_FAMILIES = {
  fields['model_type']: name
  for name, fields in golden.CONFIGS.items()
  if fields['model_type'] not in ('kimi_k2', 'pangu_ultra_moe')
}


def _run(folder: pathlib.Path, bug: str) -> None:
  subprocess.run(
    [os.environ['HPMOE_TORCH_PYTHON'], '-I', _SCRIPT, folder, bug], check=True
  )


def _compare(folder: pathlib.Path, bug: str) -> run_diff.Result:
  _run(folder, bug)
  return _compare_folder(folder)


def _compare_folder(folder: pathlib.Path) -> run_diff.Result:
  model = folder / 'model'
  return run_diff.compare(
    convert.read(model),
    hf_folder.open_files(model),
    run_dump.open_dump(str(folder / 'dump')),
  )


@pytest.mark.parametrize('bug', ['none', 'bfloat16'])
def test_rounding_alone_parts_a_right_run(tmp_path, bug):
  result = _compare(tmp_path, bug)
  assert [r.name for r in result.rows if r.verdict != run_diff.ROUNDING] == []
  assert result.verdict == 'pass'


@pytest.mark.parametrize('family', _FAMILIES)
def test_every_module_of_a_family_is_found_and_right(tmp_path, family):
  fields = golden.CONFIGS[_FAMILIES[family]]
  table = families.FAMILIES[families.unwrap(fields)['model_type']]
  architecture = [table.architecture, *table.other_architectures][-1]
  (tmp_path / 'config.json').write_text(
    json.dumps(fields | dict(architectures=[architecture]))
  )
  script = _SCRIPT.with_name('family_torch_testing.py')
  python = os.environ['HPMOE_TORCH_PYTHON']
  subprocess.run([python, '-I', script, tmp_path], check=True)
  result = _compare_folder(tmp_path)
  assert [r.name for r in result.rows if r.verdict != run_diff.ROUNDING] == []
  assert result.weights is not None and result.weights.kind == 'same'


@pytest.mark.parametrize(
  ('bug', 'module', 'text'),
  [
    ('experts', f'{_LAYER}.mlp.experts', 'experts 3 and 4 are exchanged'),
    ('rope', 'model.layers.0.self_attn', ''),
    ('eps', f'{_LAYER}.post_attention_layernorm', ''),
    ('router', f'{_LAYER}.mlp.gate', 'rows 0 and 1 are exchanged'),
  ],
)
def test_the_first_wrong_module_is_named(tmp_path, bug, module, text):
  result = _compare(tmp_path, bug)
  assert result.first is not None
  assert result.first.name == module
  assert text in run_report.conclude(result)


def test_scores_are_those_of_transformers(tmp_path):
  _run(tmp_path, 'router')
  sides = [
    scores.compute_logits(weights.config, weights.load())
    for weights in (convert.read(tmp_path / n) for n in ('model', 'run'))
  ]
  tokens = np.arange(24, dtype=np.int32).reshape(2, 12) * 5 % 64
  measured = scores.measure(tokens, 2, *sides).to_json()
  expected = json.loads((tmp_path / 'scores.json').read_text())
  assert expected['divergence'] > 1e-3
  assert {n: measured[n] for n in expected} == pytest.approx(expected, rel=1e-5)
