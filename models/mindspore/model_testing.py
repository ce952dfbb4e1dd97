"""What tests of the MindSpore models share."""

from collections.abc import Callable

import mindspore as ms
import numpy as np

from hpmoe.models import config as config_lib
from hpmoe.models import golden_testing as golden
from hpmoe.models.mindspore import decoder
from hpmoe.models.mindspore import ops


def tensors(params: dict[str, np.ndarray], dtype: str) -> dict[str, ms.Tensor]:
  """Returns parameters by name in a dtype; float64 to it rounds once."""
  return {
    name: ms.Tensor(value, getattr(ms, dtype)) for name, value in params.items()
  }


def model(
  name: str, dtype: str = 'float32'
) -> tuple[config_lib.ModelConfig, dict[str, ms.Tensor], ms.Tensor]:
  """Returns a golden configuration with parameters and tokens of a seed."""
  params = tensors(golden.weights(name, 0), dtype)
  return golden.config(name), params, ms.Tensor(golden.tokens(name, 0))


def model_of(
  case: golden.Golden, dtype: str, moe: str
) -> Callable[[dict[str, np.ndarray]], golden.Result]:
  """Returns the decoder of a golden configuration, of other parameters."""
  return lambda params: gradients(case._replace(params=params), dtype, moe)


def gradients(case: golden.Golden, dtype: str, moe: str) -> golden.Result:
  """Returns the results of the MindSpore decoder for a golden configuration."""
  params = tensors(case.params, dtype)
  names = golden.list_trained(case.params)
  tokens = ms.Tensor(case.tokens)
  mtp = bool(case.config.num_nextn_predict_layers)
  outputs = {}

  # Positions: a gradient over a dict is an empty tuple, without an error.
  def loss(*values):
    merged_params = params | dict(zip(names, values, strict=True))
    logits, aux = decoder.forward(
      merged_params, case.config, tokens, moe=moe, mtp=mtp
    )
    outputs.update(logits=logits, aux=aux)
    total = decoder.next_token_loss(logits, tokens)
    if mtp:
      further = decoder.next_token_loss(aux.mtp_logits, tokens[:, 1:])
      total += golden.MTP_WEIGHT * further
    return total

  places = tuple(range(len(names)))
  grads = ms.grad(loss, places)(*(params[name] for name in names))
  aux = outputs['aux']
  logits = [outputs['logits'], *([aux.mtp_logits] if mtp else [])]
  return golden.result(
    case,
    list(map(ops.to_numpy, logits)),
    list(map(ops.to_numpy, aux.hidden_states)),
    dict(zip(names, map(ops.to_numpy, grads), strict=True)),
    [ops.to_numpy(aux.routed[layer].topk_ids) for layer in sorted(aux.routed)],
  )
