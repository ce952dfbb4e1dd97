"""A function of torch gets torch's tensors, and may return any of them.

HPMOE_TORCH_PYTHON names a Python that has torch; here its packages come after
this Python's.  `make test-torch` runs it.
"""

import os
import subprocess
import sys

import pytest

_SCRIPT = """
import sys
sys.path += sys.argv[1:2]
import torch
import hpmoe


def compute(inputs, config, policy):
  x, ids, weights, w13, w2 = (
    inputs[name]
    for name in ('x', 'topk_ids', 'topk_weights', 'w_gate_up', 'w_down')
  )
  assert all(isinstance(tensor, torch.Tensor) for tensor in inputs.values())
  y = torch.zeros(x.shape, device=x.device)
  for token in range(len(x)):
    for slot in range(ids.shape[1]):
      expert = int(ids[token, slot])
      rows = (w13[expert].float() @ x[token].float()).to(x.dtype).float()
      gate, up = rows.chunk(2)
      hidden = (torch.nn.functional.silu(gate) * up).to(x.dtype).float()
      out = (w2[expert].float() @ hidden).to(x.dtype).float()
      y[token] += weights[token, slot] * out
  return y.to(x.dtype)


compute.activations = ('swiglu',)


def strided(*layer):
  y = compute(*layer)
  wide = torch.zeros(len(y), 2 * y.shape[1], dtype=y.dtype)
  wide[:, ::2] = y
  return {'y': wide[:, ::2]}


def with_gradient(*layer):
  return {'y': compute(*layer).requires_grad_(True) * 1}


def parameter(*layer):
  return {'y': torch.nn.Parameter(compute(*layer))}


def spoils(inputs, *layer):
  y = compute(inputs, *layer)
  inputs['x'].zero_()
  return {'y': y}


strided.torch = 'cpu'


def main():
  for dtype in ('f32', 'bf16'):
    case = hpmoe.Case(preset='tiny', ranks=2, dtype=dtype)
    options = dict(lanes=['bounded'], layout='vllm', device='cpu')
    for function in (strided, with_gradient, parameter):
      function.activations = ('swiglu',)
      report = hpmoe.check(function, case, **options)
      print(dtype, function.__name__, report.is_pass)
    try:
      hpmoe.check(spoils, case, **options)
    except hpmoe.CandidateError as error:
      print(dtype, 'written to' in str(error))
  # By its name it runs in another process, and says itself what it takes.
  report = hpmoe.check(
    f'{__file__}:strided', case, lanes=['bounded'], layout='vllm'
  )
  print(report.is_pass)
  try:
    hpmoe.check(strided, case, device='cuda:99')
  except ValueError as error:
    print(str(error)[:38])


if __name__ == '__main__':
  main()
"""


@pytest.fixture(scope='module')
def packages() -> str:
  """The folder of the packages that torch is one of."""
  code = 'import pathlib, torch; print(pathlib.Path(torch.__file__).parents[1])'
  python = os.environ['HPMOE_TORCH_PYTHON']
  return subprocess.run(
    [python, '-c', code], capture_output=True, text=True, check=True
  ).stdout.strip()


def test_tensors_of_torch_are_handed_and_taken_back(packages, tmp_path):
  script = tmp_path / 'script.py'
  script.write_text(_SCRIPT)

  process = subprocess.run(
    [sys.executable, script, packages],
    stdout=subprocess.PIPE,
    text=True,
    check=True,
  )

  assert process.stdout.splitlines() == [
    'f32 strided True',
    'f32 with_gradient True',
    'f32 parameter True',
    'f32 True',
    'bf16 strided True',
    'bf16 with_gradient True',
    'bf16 parameter True',
    'bf16 True',
    'True',
    'device: expected one that torch has he',
  ]
