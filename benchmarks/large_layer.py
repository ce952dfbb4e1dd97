r"""A layer that no process holds: a case and its outputs, written rank by rank.

    python -m benchmarks.large_layer --out=ds            # DeepSeek-V3: 22 GB
    for r in $(seq 0 31); do
      hpmoe check --case=ds/case --outputs=ds/out --direction=forward \
        --lane=bitwise,bounded --tiles=1 --shard=$r/32 --parts=ds/parts
    done
    hpmoe check --case=ds/case --outputs=ds/out --direction=forward \
      --lane=bitwise,bounded --tiles=1 --merge=ds/parts

Values are drawn as bits, for weights of 11 billion elements take minutes in any
other way.  The kernel is numpy's.  --wrong_rank has gate and up of its first
expert exchanged.
"""

import pathlib

from absl import app
from absl import flags
import ml_dtypes
import numpy as np

from hpmoe.parity_tests.case import folder
from hpmoe.parity_tests.case import inputs as inputs_lib
from hpmoe.parity_tests.case import read_case
from hpmoe.parity_tests.case import slabs
from hpmoe.parity_tests.judge import trial
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import precision

_OUT = flags.DEFINE_string('out', None, 'Folder to write.', required=True)
_SIZES = flags.DEFINE_list(
  'sizes', ['32', '16', '256', '8', '7168', '2048'], 'R, T, E, K, D, F.'
)
_WRONG = flags.DEFINE_integer('wrong_rank', None, 'Whose expert is wrong.')
_POLICY = precision.PrecisionPolicy('bfloat16')


def _draw(seed: int, shape: tuple[int, ...], scale: int) -> np.ndarray:
  """Returns bfloat16 of either sign, from 2^-scale-3 to 2^-scale-1."""
  words = np.random.SFC64(seed).random_raw(-(-int(np.prod(shape)) // 4))
  bits = words.view(np.uint16)[: int(np.prod(shape))] & np.uint16(0x81FF)
  bits += np.uint16((127 - scale - 3) << 7)
  return bits.view(ml_dtypes.bfloat16).reshape(shape)


def _inputs(ranks, tokens, experts, top_k, width, hidden):
  """Returns inputs whose weights are drawn when a rank's are asked for."""
  rng = np.random.default_rng(0)
  scores = rng.random((ranks, tokens, experts))
  ids = np.argsort(scores, axis=-1)[..., :top_k].astype(np.int32)
  local = experts // ranks
  rows = np.bincount(ids.reshape(-1) // local, minlength=ranks)
  config = config_lib.MoEConfig(
    num_ranks=ranks,
    num_tokens=tokens,
    num_experts=experts,
    top_k=top_k,
    d_model=width,
    d_ff=hidden,
    capacity=int(rows.max()),
  )

  def weights(number: int, height: int, columns: int) -> slabs.Slabs:
    shape = local, height, columns
    # Sums of products have variance 1, about.
    scale = int(np.log2(height) / 2)
    read = lambda rank: _draw(number * ranks + rank, shape, scale)
    of = np.dtype(ml_dtypes.bfloat16)
    return slabs.Slabs((ranks, *shape), of, read, 'real')

  slot_weights = rng.random((ranks, tokens, top_k), np.float32) + np.float32(
    0.1
  )
  arrays = dict(
    x=_draw(0, (ranks, tokens, width), 0),
    topk_ids=ids,
    topk_weights=slot_weights / slot_weights.sum(-1, keepdims=True),
    w_gate_up=weights(1, width, 2 * hidden),
    w_down=weights(2, hidden, width),
  )
  return inputs_lib.LayerInputs(config, _POLICY, arrays, 'uniform', {})


def _of_rank(made, rank: int, slots: np.ndarray) -> dict[str, np.ndarray]:
  """Returns the packed tensors of one rank; `slots` are those of its rows."""
  config, arrays, kernel = made.config, made.arrays, trial.Kernel()
  local = config.experts_per_rank
  w_gate_up, w_down = arrays['w_gate_up'][rank], arrays['w_down'][rank]
  expert = arrays['topk_ids'].reshape(-1)[slots] - rank * local
  x = arrays['x'].reshape(-1, config.d_model)[slots // config.top_k]
  dims = config.dims()
  columns = dict(D=dims['D'], F=dims['F'], both=2 * dims['F'])
  got = {
    name: np.zeros((config.num_rows, columns[axis]), ml_dtypes.bfloat16)
    for name, axis in dict(
      expert_in='D', gate_up='both', activation='F', expert_out='D'
    ).items()
  }
  got['expert_in'][: len(slots)] = x
  for one in range(local):
    rows = np.flatnonzero(expert == one)
    if not len(rows):
      continue
    gate_up = kernel._multiply(_POLICY, x[rows], w_gate_up[one])
    if rank == _WRONG.value and one == 0:
      gate_up = np.roll(gate_up, config.d_ff, axis=1)
    gate, up = np.split(gate_up.astype(np.float32), 2, axis=1)
    hidden = kernel._store(_POLICY, kernel._act(_POLICY, gate) * up)
    got['gate_up'][rows], got['activation'][rows] = gate_up, hidden
    got['expert_out'][rows] = kernel._multiply(_POLICY, hidden, w_down[one])
  return got


def _write_outputs(made, case: folder.Folder, out: str) -> None:
  config, arrays = made.config, made.arrays
  loaded = read_case.load(case.path)
  tiling = trial.tiling(config, arrays)
  slots = arrays['topk_ids'].size
  returned = np.zeros((slots, config.d_model), ml_dtypes.bfloat16)
  held = []
  for rank, of_row in enumerate(tiling.slot_of_row):
    held.append(_of_rank(made, rank, of_row))
    returned[of_row] = held[-1]['expert_out'][: len(of_row)]
  by_token = returned.reshape(-1, config.top_k, config.d_model)
  weights = arrays['topk_weights'].reshape(-1, config.top_k)
  ids = arrays['topk_ids'].reshape(weights.shape)
  y = trial.Kernel()._combine(_POLICY, 'y', ids, by_token, weights)
  tokens = config.num_tokens
  for rank, got in enumerate(held):
    mine = slice(rank * tokens, (rank + 1) * tokens)
    got |= dict(returned=by_token[mine], y=y[mine])
    read_case.write(out, loaded, 'real', got, rank)


def main(_: list[str]) -> None:
  """Writes the case and the outputs."""
  top = pathlib.Path(_OUT.value)
  made = _inputs(*map(int, _SIZES.value))
  case = folder.write(top / 'case', 'forward', {'real': made}, per_rank=True)
  _write_outputs(made, case, str(top / 'out'))


if __name__ == '__main__':
  app.run(main)
