"""Two processes of an msrun job compute what one does, bit for bit."""

import numpy as np
import pytest

from hpmoe.backend_ascend.frontends import layer_testing
from hpmoe.backend_ascend.frontends import msrun_testing

# Run by each process: its slabs of what the file holds, and their gradients.
_JOB = """
import sys

import mindspore as ms
from mindspore import communication
import numpy as np

from hpmoe.backend_ascend.frontends import layer_testing as testing
from hpmoe.backend_ascend.frontends import mindspore_layer
from hpmoe.backend_ascend.frontends import mindspore_parallel

ms.set_device('CPU')
ms.set_context(pynative_synchronize=True)
communication.init('mccl')
rank = communication.get_rank()
for name in ('float32-combine', 'bfloat16-before_down'):
  policy = testing.POLICIES[name]
  inputs, dy = testing.case(policy)
  slabs = [ms.Tensor(np.ascontiguousarray(a[rank])) for a in inputs.values()]
  cell = mindspore_parallel.ParallelMoELayer(
    testing.CONFIG, policy, testing.OPTIONS
  )
  y = cell(*slabs)
  pull = ms.ops.GradOperation(get_all=True, sens_param=True)
  grads = pull(cell)(*slabs, ms.Tensor(np.ascontiguousarray(dy[rank])))
  made = (y, *(g for i, g in enumerate(grads) if i != 1))
  for key, value in zip(('y', *testing.GRADS), made, strict=True):
    raw = mindspore_layer.to_numpy(value).view(np.uint8)
    np.save(f'{sys.argv[1]}/{name}.{key}.{rank}.npy', raw)
try:
  mindspore_parallel.ParallelMoELayer(
    testing.CONFIG.__class__(4, 8, 4, 2, 8, 8), policy
  )
except ValueError as error:
  assert str(error).startswith('config.num_ranks: expected 2'), error
  print('refused')
"""


@pytest.mark.slow
def test_two_processes_have_the_bits_of_one(tmp_path):
  # When.
  logs = msrun_testing.run(_JOB, tmp_path)
  assert logs.count('refused') == 2, logs
  # Then.
  for name in ('float32-combine', 'bfloat16-before_down'):
    policy = layer_testing.POLICIES[name]
    want = layer_testing.launched(*layer_testing.case(policy), policy)
    for key, value in want.items():
      got = [np.load(tmp_path / f'{name}.{key}.{r}.npy') for r in range(2)]
      assert np.any(value != 0), key
      assert b''.join(a.tobytes() for a in got) == value.tobytes(), (name, key)
