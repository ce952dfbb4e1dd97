"""Reading holds a model once, converting not even that."""

import json
import subprocess
import sys

import numpy as np
import pytest

from hpmoe.models import config as config_lib
from hpmoe.models import parameters as parameters_lib
from hpmoe.models.checkpoint import convert
from hpmoe.models.checkpoint import weights as weights_lib

_MIB = 2**20
# What a process has that reads nothing, and the one that reads, in bytes.
# VmHWM counts mapped files too.
_PEAK = """
import sys, re
from hpmoe.models.checkpoint import convert

def peak():
  text = open('/proc/self/status').read()
  return int(re.search(r'VmHWM:\\s+(\\d+) kB', text)[1]) * 1024

convert.read(sys.argv[1])
before = peak()
{}
print(peak() - before)
"""
# Pages, buffers and what NumPy and the allocator keep.
_SLACK = 12 * _MIB


@pytest.fixture(scope='module')
def model(tmp_path_factory):
  """Returns (folder, bytes of the model, bytes of its largest tensor)."""
  fields = config_lib.load('qwen3_moe_tiny').to_hf() | dict(
    hidden_size=256,
    moe_intermediate_size=512,
    num_experts=24,
    num_hidden_layers=5,
    torch_dtype='float32',
  )
  config = config_lib.from_hf(fields)
  params = {
    name: np.full(spec.shape, 0.5, np.float32)
    for name, spec in parameters_lib.parameter_shapes(config).items()
  }
  folder = tmp_path_factory.mktemp('model') / 'hf'
  convert.write(folder, weights_lib.of_parameters(config, params))
  sizes = [array.nbytes for array in params.values()]
  # Large enough to tell.
  assert max(sizes) + _SLACK < sum(sizes) / 4
  return folder, sum(sizes), max(sizes)


def _measured(folder, work: str) -> int:
  ran = subprocess.run(
    [sys.executable, '-c', _PEAK.format(work), str(folder)],
    capture_output=True,
    text=True,
    check=True,
  )
  return int(ran.stdout)


class TestPeakMemory:
  def test_loading_holds_one_copy_and_a_tensor(self, model):
    folder, total, largest = model
    peak = _measured(folder, 'held = convert.read(sys.argv[1]).load()')
    assert total <= peak <= total + largest + _SLACK

  def test_converting_holds_two_tensors(self, model, tmp_path):
    folder, _, largest = model
    out = json.dumps(str(tmp_path / 'out'))
    work = f'convert.write({out}, convert.read(sys.argv[1]))'
    assert _measured(folder, work) <= 2 * largest + _SLACK
