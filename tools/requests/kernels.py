"""A numpy layer, right or wrong in a known way, for the fixed requests.

Its sums have one order on every machine, so its bits do not depend on a BLAS.
"""

import ml_dtypes
import numpy as np


def _multiply(rows, weight):
  """Returns `[n, y]` float32, summed product by product."""
  total = np.zeros((len(rows), weight.shape[1]), np.float32)
  for k in range(weight.shape[0]):
    total += rows[:, k : k + 1] * weight[k]
  return total


def _read_weight(inputs, name, owner, local):
  """Returns one expert's weight in float32, from codes where it has them."""
  if name in inputs:
    return inputs[name][owner, local].astype(np.float32)
  codes = inputs[f'{name}_codes'][owner, local].astype(np.float32)
  return codes * inputs[f'{name}_scales'][owner, local].astype(np.float32)


def _activate(gate, up, policy):
  if policy.activation == 'absolute':
    return np.abs(gate) * up
  with np.errstate(over='ignore'):
    return gate / (1 + np.exp(-gate)) * up


def _make(fault=''):
  """Returns a layer that commits a fault."""

  def layer(inputs, config, policy):
    x, ids, weights = (inputs[n] for n in ('x', 'topk_ids', 'topk_weights'))

    def store(array):
      return array.astype(x.dtype).astype(np.float32)

    y = np.zeros(x.shape, np.float32)
    for expert in range(config.num_experts):
      owner, local = divmod(expert, config.experts_per_rank)
      w_gate_up = _read_weight(inputs, 'w_gate_up', owner, local)
      w_down = _read_weight(inputs, 'w_down', owner, local)
      rank, token, slot = np.nonzero(ids == expert)
      rows = x[rank, token].astype(np.float32)
      gate, up = np.split(store(_multiply(rows, w_gate_up)), 2, axis=-1)
      if fault == 'swapped':
        gate, up = up, gate
      activation = store(_activate(gate, up, policy))
      if fault == 'early':
        activation = activation.astype(ml_dtypes.bfloat16).astype(np.float32)
      out = store(_multiply(activation, w_down))
      share = weights[rank, token, slot, None]
      if fault == 'unweighted':
        share = np.ones_like(share)
      if fault == 'lost_slot':
        share = share * (slot[:, None] > 0)
      y[rank, token] += share * out
    if fault == 'shifted':
      y = np.roll(y, 1, axis=1)
    if fault == 'nan':
      y[0, 0, 0] = np.nan
    return {'y': y.astype(x.dtype) if fault != 'zeros' else 0 * x}

  return layer


right = _make()
swapped = _make('swapped')
early = _make('early')
unweighted = _make('unweighted')
lost_slot = _make('lost_slot')
shifted = _make('shifted')
nan = _make('nan')
zeros = _make('zeros')


def crash(inputs, config, policy):
  """Raises, as a kernel that cannot run."""
  raise RuntimeError('the device is gone')


def nothing(inputs, config, policy):
  """Returns no y."""
  return {}
