"""A loop over experts in numpy."""

import numpy as np

from benchmarks.peers import cases
from benchmarks.peers import peer


class NumpyLoop(peer.Peer):
  """Float32 only: numpy has no bfloat16 product."""

  def __init__(self, arrays):
    super().__init__(arrays)
    if arrays['x'].dtype != np.float32:
      raise peer.CannotRun('numpy has no products of bfloat16')
    self._held = {}

  def forward(self):
    return self._run(with_grads=False)

  def both(self):
    return self._run(with_grads=True)

  def multiply(self):
    a, b, c = cases.squares()
    return np.matmul(a, b, out=c)

  def _run(self, with_grads: bool):
    a = self.arrays
    x, dy, weights = a['x'], a['dy'], a['topk_weights']
    out = self._results(with_grads)
    for e, tokens, slots in cases.by_expert(a['topk_ids']):
      rows, weight = x[tokens], weights[tokens, slots][:, None]
      gate, up = np.split(rows @ a['w_gate_up'][e], 2, axis=1)
      share = 1 / (1 + np.exp(-gate))
      silu = gate * share
      hidden = silu * up
      row = hidden @ a['w_down'][e]
      out['y'][tokens] += weight * row  # a token is there at most once
      if not with_grads:
        continue
      d_out = dy[tokens]
      out['d_topk_weights'][tokens, slots] = np.einsum('td,td->t', row, d_out)
      d_out = d_out * weight
      np.matmul(hidden.T, d_out, out=out['d_w_down'][e])
      d_hidden = d_out @ a['w_down'][e].T
      d_gate = d_hidden * up * (share + silu * (1 - share))
      d_both = np.concatenate([d_gate, d_hidden * silu], axis=1)
      np.matmul(rows.T, d_both, out=out['d_w_gate_up'][e])
      out['dx'][tokens] += d_both @ a['w_gate_up'][e].T
    return out

  def _results(self, with_grads: bool):
    """Returns arrays, made once, for what is computed; sums are zero."""
    a, held = self.arrays, self._held
    if not held:
      held['y'] = np.zeros_like(a['x'])
    if with_grads and 'dx' not in held:
      held['dx'] = np.zeros_like(a['x'])
      for name in ('topk_weights', 'w_gate_up', 'w_down'):
        # An expert without rows is not written: its gradient stays zero.
        held[f'd_{name}'] = np.zeros_like(a[name])
    names = cases.RESULTS if with_grads else ('y',)
    for name in {'y', 'dx'} & set(names):
      held[name].fill(0)
    return {name: held[name] for name in names}

  def results(self, out):
    return out

  @staticmethod
  def versions():
    return {'numpy': np.__version__}
