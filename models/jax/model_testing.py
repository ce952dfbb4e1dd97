"""What tests of the JAX models share: small compiled decoders."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from hpmoe.models import config as config_lib
from hpmoe.models import golden_testing as golden
from hpmoe.models.jax import decoder


def jit(function, **options):
  """Returns `function` compiled in a third of the time, for slower code."""
  quick = {'xla_backend_optimization_level': 0}
  return jax.jit(function, compiler_options=quick, **options)


def model(
  name: str, dtype: str = 'float64'
) -> tuple[config_lib.ModelConfig, dict[str, jax.Array], np.ndarray]:
  """Returns a golden configuration with parameters and tokens of a seed."""
  params = golden.weights(name, 0)
  params = {n: jnp.asarray(v, dtype) for n, v in params.items()}
  return golden.config(name), params, golden.tokens(name, 0)


def gradients(case: golden.Golden, dtype: str, moe: str, jit=jit):
  """Returns the results of the JAX decoder for a golden configuration."""
  return model_of(case, dtype, moe, jit)(case.params)


def model_of(
  case: golden.Golden, dtype: str, moe: str, jit=jit
) -> Callable[[dict[str, np.ndarray]], golden.Result]:
  """Returns the decoder of a golden configuration, compiled once."""
  mtp = bool(case.config.num_nextn_predict_layers)

  def loss(params):
    logits, aux = decoder.forward(
      params, case.config, jnp.asarray(case.tokens), moe=moe, mtp=mtp
    )
    total = decoder.next_token_loss(logits, case.tokens)
    if mtp:
      further = decoder.next_token_loss(aux.mtp_logits, case.tokens[:, 1:])
      total += golden.MTP_WEIGHT * further
    return total, (logits, aux)

  compiled = jit(jax.grad(loss, has_aux=True))

  def run(params: dict[str, np.ndarray]) -> golden.Result:
    arrays = {n: jnp.asarray(v, dtype) for n, v in params.items()}
    grads, (logits, aux) = compiled(arrays)
    return golden.result(
      case,
      [logits, aux.mtp_logits] if mtp else [logits],
      aux.hidden_states,
      grads,
      [aux.routed[layer].topk_ids for layer in sorted(aux.routed)],
    )

  return run
