"""Two processes of an msrun job, each with an NPU that is the twin."""

import numpy as np
import pytest

from hpmoe.backend_ascend.frontends import layer_testing
from hpmoe.backend_ascend.frontends import msrun_testing
from hpmoe.backend_ascend.kernels.ascendc.npus.standin import rehearsal
from hpmoe.backend_ascend.kernels.ascendc.twin.launch import twin_runtime

# Run by each process: its slabs of what the file holds, and their gradients.
_JOB = """
import sys

import mindspore as ms
from mindspore import communication
import numpy as np

from hpmoe.backend_ascend.frontends import layer_call
from hpmoe.backend_ascend.frontends import layer_testing as testing
from hpmoe.backend_ascend.frontends import mindspore_layer
from hpmoe.backend_ascend.frontends.npus import mindspore_npus
from hpmoe.backend_ascend.kernels.ascendc.npus.standin import rehearsal

ms.set_device('CPU')
ms.set_context(pynative_synchronize=True)
communication.init('mccl')
rank = communication.get_rank()
twin = rehearsal.Rehearsal
policy = testing.POLICIES['bfloat16-before_down']
inputs, dy = testing.case(policy)
slabs = [ms.Tensor(np.ascontiguousarray(a[rank])) for a in inputs.values()]
cell = mindspore_npus.NpusMoELayer(
  layer_call.LayerCall(testing.CONFIG, policy, testing.OPTIONS),
  library=twin.library,
  kernel=twin.kernel,
)
y = cell(*slabs)
pull = ms.ops.GradOperation(get_all=True, sens_param=True)
grads = pull(cell)(*slabs, ms.Tensor(np.ascontiguousarray(dy[rank])))
made = (y, *(g for i, g in enumerate(grads) if i != 1))
for key, value in zip(('y', *testing.GRADS), made, strict=True):
  raw = mindspore_layer.to_numpy(value)
  np.save(f'{sys.argv[1]}/{key}.{rank}.npy', raw.astype(np.float32))
try:
  cell(slabs[0][:, :-1], *slabs[1:])
except ValueError as error:
  assert str(error).startswith('x: expected shape'), error
  print('refused')
cell.close()
"""


@pytest.mark.slow
def test_two_processes_have_the_layer_and_its_gradient(tmp_path, monkeypatch):
  # Given two processes whose devices are the twin, when each has its slabs,
  # then together they have the bits of the twin in one process.
  policy = layer_testing.POLICIES['bfloat16-before_down']
  with rehearsal.Rehearsal(2) as twin:
    for name, value in twin.environment.items():
      monkeypatch.setenv(name, value)
    logs = msrun_testing.run(_JOB, tmp_path)
    assert not [e.text for r in twin.reports for e in r.errors]
    assert twin.ran == [[0, 1]] * 4
  assert logs.count('refused') == 2, logs
  want = layer_testing.launched(
    *layer_testing.case(policy), policy, launch=twin_runtime.launch
  )
  for key, value in want.items():
    got = [np.load(tmp_path / f'{key}.{rank}.npy') for rank in range(2)]
    assert np.any(value != 0), key
    assert np.array_equal(np.stack(got), value.astype(np.float32)), key
