"""A job of torchrun that `torch_npus_torch_test` starts: one process of it.

torchrun .. -m hpmoe.backend_ascend.frontends.torch_npus_testing FOLDER
"""

import numpy as np
import torch

from hpmoe.backend_ascend.device.npus import comms
from hpmoe.backend_ascend.device.standin import rehearsal
from hpmoe.backend_ascend.frontends import layer_call
from hpmoe.backend_ascend.frontends import layer_testing as testing
from hpmoe.backend_ascend.frontends.npus import torch_npus


def main(folder: str) -> None:
  """Writes y and the gradients of this process's slabs."""
  twin = rehearsal.Rehearsal
  inputs, dy = testing.case()
  comm = comms.TorchComm()
  slab = lambda array: torch.from_numpy(array[comm.rank].copy())
  slabs = {name: slab(array) for name, array in inputs.items()}
  for name, tensor in slabs.items():
    tensor.requires_grad_(name != 'topk_ids')
  layer = torch_npus.NpusMoELayer(
    layer_call.LayerCall(testing.CONFIG, testing.F32, testing.OPTIONS),
    comm,
    library=twin.library,
    kernel=twin.kernel,
  )
  y = layer(*slabs.values())
  y.backward(slab(dy))
  results = {'y': y.detach()}
  results |= {
    layer_call.GRAD_OF[n]: t.grad
    for n, t in slabs.items()
    if t.grad is not None
  }
  for name, tensor in results.items():
    np.save(f'{folder}/{name}.{comm.rank}.npy', tensor.numpy())
  try:
    layer(slabs['x'][:, :-1], *[*slabs.values()][1:])
  except ValueError as error:
    assert str(error).startswith('x: expected shape'), error
    print('refused', flush=True)
  layer.close()
