"""`hpmoe convert`: every format, and one line for what is wrong."""

import json

import numpy as np
import pytest

from hpmoe.models import config as config_lib
from hpmoe.models import parameters as parameters_lib
from hpmoe.models.checkpoint import convert
from hpmoe.models.checkpoint import weights as weights_lib
from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import main


@pytest.fixture(scope='module')
def model():
  """Returns (config, parameters) of a small model."""
  config = config_lib.load('mixtral_tiny')
  rng = np.random.default_rng(8)
  return config, {
    name: rng.standard_normal(spec.shape).astype(spec.dtype)
    for name, spec in parameters_lib.parameter_shapes(config).items()
  }


@pytest.fixture
def folder(model, tmp_path):
  convert.write(tmp_path / 'in', weights_lib.of_parameters(*model))
  return tmp_path / 'in'


def _run(folder, *options) -> int:
  out = folder.parent / 'out'
  return main.main(['convert', f'--from={folder}', f'--to={out}', *options])


class TestConvert:
  def test_writes_a_folder(self, model, folder, tmp_path, capsys):
    report = tmp_path / 'report.json'
    assert _run(folder, '--format=hf', f'--json={report}') == cli.PARITY
    content = json.loads(report.read_text())
    assert (content['from_format'], content['to_format']) == ('hf', 'hf')
    assert content['parameters'] == sum(a.size for a in model[1].values())
    assert 'to_format' in capsys.readouterr().out
    params = convert.read(tmp_path / 'out').load()
    for name, array in model[1].items():
      np.testing.assert_array_equal(params[name], array)

  def test_rounds_if_asked(self, folder, tmp_path):
    assert _run(folder, '--dtype=bfloat16') == cli.PARITY
    copy = convert.read(tmp_path / 'out')
    assert copy.config.dtype == 'bfloat16'

  def test_refuses_a_truncated_file_and_leaves_nothing(self, folder, capsys):
    file = folder / 'model.safetensors'
    file.write_bytes(file.read_bytes()[:-3])
    assert _run(folder) == cli.WRONG_REQUEST
    self._one_line(capsys, r'model.safetensors: expected')
    assert [path.name for path in folder.parent.iterdir()] == ['in']

  def test_refuses_nan_found_late_and_leaves_nothing(
    self, model, tmp_path, capsys
  ):
    # given NaN in the last tensor, when all others are written already
    config, params = model
    last = list(params)[-1]
    weights = weights_lib.of_parameters(config, params)
    damaged = {**params, last: np.full_like(params[last], np.nan)}
    folder_in = tmp_path / 'in'
    convert.write(
      folder_in,
      weights_lib.Weights(
        weights.fields, config, weights.specs, damaged.__getitem__
      ),
    )
    # then
    assert _run(folder_in) == cli.WRONG_REQUEST
    self._one_line(capsys, f'{last}: expected finite weights, got nan')
    assert [path.name for path in tmp_path.iterdir()] == ['in']

  def _one_line(self, capsys, text):
    output = capsys.readouterr()
    assert output.err.count('\n') == 1
    assert output.err.startswith('hpmoe convert: ')
    assert text in output.err
