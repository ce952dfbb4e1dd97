"""Where MindSpore computes.

On an NPU nothing here was run yet: there is none where this is built.
"""

# Before MindSpore: it sets what MindSpore reads at its import, and without
# MindSpore its error says what installs it.
from hpmoe.backend_ascend.frontends import mindspore_layer

# isort: split

import mindspore as ms

from hpmoe.backend_ascend.frontends import mindspore_npu


def use(device: str, moe: str) -> None:
  """Has every operator from here on run on `device`, cpu or ascend.

  Args:
    device: where.
    moe: the layer of routed experts that will be asked for, by name.

  Raises:
    ValueError: there is no such device here, or the layer does not run on it.
  """
  if device == 'cpu':
    _use_cpu()
    return
  if not mindspore_layer.has_ascend():
    raise ValueError(
      "device: expected 'cpu', got 'ascend': MindSpore finds no Ascend device; "
      '--dry_run lists what would run on one'
    )
  if moe == 'host':  # its tensors are in the memory of a CPU
    raise ValueError(
      f"moe: expected 'ascend', 'framework' or a function on device 'ascend', "
      f'got {moe!r}'
    )
  if mindspore_npu.dry:
    _use_cpu()
  else:
    ms.set_device('Ascend')


def _use_cpu() -> None:
  ms.set_device('CPU')
  # Else threads hand each operator on and spin while they wait, which costs a
  # small model's step more than all that it computes.
  ms.set_context(pynative_synchronize=True)
