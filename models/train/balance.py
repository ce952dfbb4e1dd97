"""What keeps the experts of a layer evenly loaded.

Sigmoid routers (DeepSeek-V3) have a bias that corrects the choice and is moved
after each step, and a small loss on each sequence: arXiv 2412.19437, section
2.1.2.  Softmax routers have a loss on the whole batch: arXiv 2101.03961,
equation 4, with a share of each token's K choices in place of its one.
"""

from typing import Any

import numpy as np

from hpmoe.models import config as config_lib
from hpmoe.models import operators
from hpmoe.models import routed as routed_lib
from hpmoe.reference.contract import array_typing as at

# Factor of the loss on sequences, section 4.2 of the same.
_SEQUENCE_FACTOR = 1e-4


def factor(config: config_lib.ModelConfig) -> float:
  """Returns the factor of `loss` that the family is trained with."""
  if config.family.router == 'softmax':
    return config.router_aux_loss_coef
  return _SEQUENCE_FACTOR


def loss(
  nn: operators.Operators,
  config: config_lib.ModelConfig,
  routed: routed_lib.Routed,
  sequences: int,
) -> at.Float[Any, '']:
  """Returns how uneven a layer's choices are: 1 where all are even.

  `[]`; sum over experts of E * f * P, where f is an expert's share of the
  choices and P its mean share of the scores; the mean over sequences for a
  sigmoid router.

  Args:
    nn: of a framework.
    config: sizes and options.
    routed: of one layer.
    sequences: B, into which the tokens of all ranks are cut.
  """
  softmax = config.family.router == 'softmax'
  groups, experts = 1 if softmax else sequences, config.num_experts
  scores = routed.scores.reshape(groups, -1, experts)
  shares = nn.softmax(scores) if softmax else nn.sigmoid(scores)
  if not softmax:
    shares = shares / shares.sum(axis=-1, keepdims=True)
  choices = routed.topk_ids.reshape(groups, -1, 1)
  hits = choices == nn.constant(np.arange(experts), choices)
  product = hits.astype(shares.dtype).mean(axis=1) * shares.mean(axis=1)
  return (experts * product.sum(axis=-1)).mean()


def moved_bias(
  bias: at.Float[at.Array, 'E'], loads: at.Int32[at.Array, 'E'], rate: float
) -> at.Float[at.Array, 'E']:
  """Returns the bias, up by `rate` where an expert had too little, or down.

  Args:
    bias: `[E]` of one router.
    loads: `[E]` int32, tokens of each expert in the step.
    rate: step of the bias.
  """
  # Exact: no mean is rounded.
  lacking = loads.sum() - loads * loads.size
  step = (lacking > 0).astype(bias.dtype) - (lacking < 0).astype(bias.dtype)
  return bias + bias.dtype.type(rate) * step
