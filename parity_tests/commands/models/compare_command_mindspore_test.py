"""`hpmoe compare` of MindSpore's decoder with JAX's."""

import json

import pytest

from hpmoe.models.train import folder_testing
from hpmoe.parity_tests.commands import main


class TestMindSpore:
  @pytest.mark.slow
  def test_host_agrees_forward_and_backward(self, tmp_path):
    model = folder_testing.config(tmp_path, 'mixtral_tiny')
    out = tmp_path / 'out.json'
    code = main.main(
      [
        'compare',
        '--left=jax:host',
        '--right=mindspore:host',
        f'--model={model}',
        '--batch=1',
        '--sequence=16',
        f'--out={tmp_path}',
        f'--json={out}',
      ]
    )
    report = json.loads(out.read_text())
    assert code == 0
    assert [(o['layer'], o['wrong']) for o in report['layers']] == [(0, False)]
    # The front end gave the bits of the kernel alone.
    assert report['layers'][0]['why'] == 'the kernel on what the layer read'
    rows = [r for r in report['rows'] if 'parameters_grad' in r['NPU Name']]
    assert rows
    assert all(float(r['NPU l2norm']) > 0 for r in rows)

  def test_the_oracle_is_jaxs(self, tmp_path, capsys):
    right = '--right=mindspore:oracle'
    assert main.main(['compare', right, f'--out={tmp_path}']) == 2
    assert 'moe: expected one of' in capsys.readouterr().err
