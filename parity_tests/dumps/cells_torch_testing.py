"""Dumps a small MoE of MindSpore's cells with msprobe, on a CPU.

It needs MindSpore, and msprobe on the path.

Run as: python cells_torch_testing.py FOLDER LEVEL BUG
"""

import json
import os
import sys

os.environ['GLOG_v'] = '3'  # noqa: SIM112

import mindspore  # noqa: E402
from mindspore import mint  # noqa: E402
from mindspore import nn  # noqa: E402
from mindspore import ops  # noqa: E402
import numpy as np  # noqa: E402

mindspore.set_device('CPU')
# LinalgVectorNorm, of msprobe's statistics, has no kernel of a CPU.
mint.norm = lambda x, *_, **__: ops.sqrt(
  (x.astype(mindspore.float32) ** 2).sum()
)

from msprobe.mindspore import PrecisionDebugger  # noqa: E402

EXPERTS, TOP_K, D_MODEL, D_FF = 8, 2, 16, 8


def _make_parameter(name, *shape, part=slice(None)):
  values = np.random.default_rng(len(name)).normal(size=shape) / 4
  tensor = mindspore.Tensor(values[part].astype(np.float32))
  return mindspore.Parameter(tensor, name=name)


class OneRank:
  """Where all experts lie on one rank: there is nobody to send rows to."""

  first, count = 0, EXPERTS

  def dispatch(self, slab):
    return slab

  def combine(self, y):
    return y


class MoeExperts(nn.Cell):
  """Experts, each of which sees all tokens."""

  def __init__(self, lost_expert, ranks):
    super().__init__()
    own_part = slice(ranks.first, ranks.first + ranks.count)
    self.gate_up_proj = _make_parameter(
      'gate_up_proj', EXPERTS, 2 * D_FF, D_MODEL, part=own_part
    )
    self.down_proj = _make_parameter(
      'down_proj', EXPERTS, D_MODEL, D_FF, part=own_part
    )
    self._lost_expert, self._ranks = lost_expert, ranks

  def construct(self, x, ids, weights):
    slabs = (x, ids.astype(mindspore.int32), weights)
    x, ids, weights = map(self._ranks.dispatch, slabs)
    y = ops.zeros_like(x)
    for expert in range(self._ranks.count):
      number = self._ranks.first + expert
      if number == self._lost_expert:
        continue
      hits = (ids == number).astype(mindspore.float32)
      gate_up = ops.matmul(x, self.gate_up_proj[expert].T)
      gate, up = ops.chunk(gate_up, 2, -1)
      out = ops.matmul(gate * ops.sigmoid(gate) * up, self.down_proj[expert].T)
      y = y + (hits * weights).sum(-1)[:, None] * out
    return self._ranks.combine(y)


class Block(nn.Cell):
  """A router and its experts."""

  def __init__(self, lost_expert, ranks):
    super().__init__()
    self.gate = nn.Dense(D_MODEL, EXPERTS, has_bias=False)
    self.gate.weight.set_data(_make_parameter('gate', EXPERTS, D_MODEL))
    self.experts = MoeExperts(lost_expert, ranks)

  def construct(self, x):
    shares = ops.softmax(self.gate(x), -1)
    ids = ops.argsort(shares, axis=-1, descending=True)[:, :TOP_K]
    weights = ops.gather_elements(shares, 1, ids)
    weights = weights / weights.sum(-1, keepdims=True)
    return x + self.experts(x, ids, weights)


class Net(nn.Cell):
  """Two layers, of which the second may lose an expert."""

  def __init__(self, lost_expert, ranks):
    super().__init__()
    blocks = [Block(expert, ranks) for expert in (None, lost_expert)]
    self.layers = nn.CellList(blocks)

  def construct(self, x):
    for layer in self.layers:
      x = layer(x)
    return x


def dump_run(folder, level, lost_expert, ranks, seed):
  """Dumps a net, forward and backward, on some tokens."""
  config = dict(
    task='tensor',
    dump_path=folder,
    rank=[],
    step=[],
    level=level,
    tensor=dict(scope=[], list=[], data_mode=['all']),
  )
  with open(f'{folder}.{seed}.json', 'w', encoding='utf-8') as file:
    json.dump(config, file)
  net = Net(lost_expert, ranks)
  x = np.random.default_rng(seed).normal(size=(24, D_MODEL)).astype(np.float32)
  debugger = PrecisionDebugger(config_path=f'{folder}.{seed}.json')
  debugger.start(net)
  loss = lambda x: (net(x) ** 2).sum()
  mindspore.value_and_grad(loss, 0, net.trainable_params())(mindspore.Tensor(x))
  debugger.stop()
  debugger.step()


def main():
  folder, level, bug = sys.argv[1:]
  dump_run(folder, level, 3 if bug == 'lose_expert' else None, OneRank(), 1)


if __name__ == '__main__':
  main()
