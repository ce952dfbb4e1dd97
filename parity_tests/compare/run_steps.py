"""A decoder as a list of steps.

A step is one module of a model, such as a norm, a projection, the core of
attention or a router: its inputs and outputs under their names in a dump, and
the function from one to the other.  Run in order, the steps are the decoder
(`models/decoder_layers.py`); each can also run on its inputs in a dump.
"""

from collections.abc import Callable, Iterator, Sequence
import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from hpmoe.models import attention as attention_lib
from hpmoe.models import config as config_lib
from hpmoe.models import decoder_layers
from hpmoe.models import operators
from hpmoe.models import parameters
from hpmoe.models import routed as routed_lib
from hpmoe.models.jax import decoder
from hpmoe.models.jax import moe as moe_lib

Array = Any
# A tensor of a module: its path, then 'input.0', 'output.0' and so on.
Slot = tuple[str, str]
OUTPUT, INPUT = 'output.0', 'input.0'


@dataclasses.dataclass(frozen=True)
class Read:
  """An input of a step.

  Attributes:
    slot: its place in a dump.
    source: the result of an earlier step; None: tokens.
  """

  slot: Slot
  source: Slot | None


@dataclasses.dataclass(frozen=True)
class Step:
  """One module.

  Attributes:
    name: its name in reports.
    reads: its inputs, in order.
    results: the places of its outputs in a dump; some have several.
    prefixes: of the names of its parameters.
    compute: (a run with these parameters, positions (`states.Positions`), the
      arrays) -> the results.
    is_choice: whether it chooses experts, so that near ties may change it.
  """

  name: str
  reads: tuple[Read, ...]
  results: tuple[Slot, ...]
  prefixes: tuple[str, ...]
  compute: Callable[[operators.Run, Any, Sequence[Array]], tuple[Array, ...]]
  is_choice: bool = False


def make_run(
  config: config_lib.ModelConfig, params: dict[str, Array], dtype: str
) -> operators.Run:
  """Returns a run of the decoder's operators with these parameters."""
  policy = routed_lib.policy_of_model(
    moe_lib.policy_of(jnp.dtype(dtype)), config
  )
  return operators.Run(
    decoder.OPERATORS,
    config,
    params,
    moe_lib.framework,
    policy,
    1,
    lambda name, x: x,
  )


def list_steps(config: config_lib.ModelConfig) -> Iterator[Step]:
  """Yields the steps of a decoder, in the order of computation."""
  embedding = 'model.embed_tokens'
  # Whether the module itself multiplies what it looks up.
  is_scaled = config.family.scaled_embeddings
  factor = config.embedding_multiplier if is_scaled else 1.0

  def embed(run, visible, arrays):
    rows = run.nn.embed(run.params[f'{embedding}.weight'], arrays[0])
    return (run.scaled(rows, factor),)

  yield Step(
    embedding,
    (Read((embedding, INPUT), None),),
    ((embedding, OUTPUT),),
    (embedding,),
    embed,
  )
  hidden = (embedding, OUTPUT)
  if config.embedding_multiplier != factor:
    first = ('model.layers.0.input_layernorm', INPUT)
    yield _scale_step(embedding, hidden, first, config.embedding_multiplier)
    hidden = first
  for number in range(config.num_hidden_layers):
    yield from _list_layer(config, number, hidden)
    hidden = (f'model.layers.{number}', OUTPUT)
  yield _norm_step('model.norm', hidden)
  head = parameters.head_name(config).removesuffix('.weight')
  yield Step(
    'lm_head',
    (Read(('lm_head', INPUT), ('model.norm', OUTPUT)),),
    (('lm_head', OUTPUT),),
    (head,),
    lambda run, visible, arrays: (decoder_layers.score_words(run, arrays[0]),),
  )


def _list_layer(
  config: config_lib.ModelConfig, number: int, hidden: Slot
) -> Iterator[Step]:
  prefix = f'model.layers.{number}'
  yield _norm_step(f'{prefix}.input_layernorm', hidden)
  yield from _list_attention(config, number)
  _, name = decoder_layers.choose_attention(config, number)
  attention = (f'{prefix}.{name}', OUTPUT)
  first = (f'{prefix}.post_attention_layernorm', INPUT)
  block_norm = 'post_attention_layernorm'
  if config.sandwich_norm:
    yield _norm_step(f'{prefix}.post_attention_layernorm', attention)
    attention = (f'{prefix}.post_attention_layernorm', OUTPUT)
    block_norm = 'pre_mlp_layernorm'
    first = (f'{prefix}.pre_mlp_layernorm', INPUT)
  yield _sum_step(
    config, f'{prefix}: residual after attention', hidden, attention, first
  )
  yield _norm_step(f'{prefix}.{block_norm}', first)
  normed = (f'{prefix}.{block_norm}', OUTPUT)
  block = f'{prefix}.mlp'
  if config.family.separate_norms:
    block = f'{prefix}.{config.family.block}'
    yield from _list_normed_experts(config, prefix, first, normed)
  elif config.has_experts(number):
    block = f'{prefix}.{config.family.block}'
    yield from _list_experts(config, block, normed)
  else:
    yield _mlp_step(block, normed)
  update = (block, OUTPUT)
  if config.family.separate_norms:
    update = (f'{prefix}.post_mlp_layernorm', INPUT)
  if config.sandwich_norm:
    yield _norm_step(f'{prefix}.post_mlp_layernorm', update)
    update = (f'{prefix}.post_mlp_layernorm', OUTPUT)
  yield _sum_step(
    config,
    f'{prefix}: residual',
    first,
    update,
    (prefix, OUTPUT),
    f'{prefix}.layer_scalar' if config.family.separate_norms else '',
  )


def _norm_step(module: str, source: Slot, eps: float | None = None) -> Step:
  def compute(run, visible, arrays):
    return (run.norm(run.params, module, arrays[0], eps),)

  slots = (module, INPUT), (module, OUTPUT)
  return Step(module, (Read(slots[0], source),), slots[1:], (module,), compute)


def _linear_step(module: str, source: Slot) -> Step:
  slots = (module, INPUT), (module, OUTPUT)
  return Step(
    module,
    (Read(slots[0], source),),
    slots[1:],
    (module,),
    lambda run, visible, arrays: (
      run.nn.linear(run.params, module, arrays[0]),
    ),
  )


def _scale_step(name: str, source: Slot, result: Slot, factor: float) -> Step:
  def compute(run, visible, arrays):
    return (run.scaled(arrays[0], factor),)

  reads = (Read(source, source),)
  return Step(f'{name}: multiplier', reads, (result,), (), compute)


def _sum_step(
  config: config_lib.ModelConfig,
  name: str,
  left: Slot,
  right: Slot,
  result: Slot,
  factor: str = '',
) -> Step:
  """Returns the sum of two results, times a parameter if one is named."""

  def compute(run, visible, arrays):
    branch = arrays[1].reshape(arrays[0].shape)
    if not config.sandwich_norm:
      branch = run.scaled(branch, config.residual_multiplier)
    total = arrays[0] + branch
    return (total * run.params[factor] if factor else total,)

  reads = (Read(left, left), Read(right, right))
  return Step(name, reads, (result,), (factor,) if factor else (), compute)


def _mlp_step(module: str, source: Slot) -> Step:
  def compute(run, visible, arrays):
    return (
      decoder_layers.mlp(run, parameters.under(run.params, module), arrays[0]),
    )

  slots = (module, INPUT), (module, OUTPUT)
  return Step(module, (Read(slots[0], source),), slots[1:], (module,), compute)


def _list_attention(
  config: config_lib.ModelConfig, number: int
) -> Iterator[Step]:
  """Yields projections and norms of attention, then attention as a whole.

  The whole comes last, so that it is blamed only if none of its parts is.
  """
  whole, block = decoder_layers.choose_attention(config, number)
  attention = f'model.layers.{number}.{block}'
  normed = (f'model.layers.{number}.input_layernorm', OUTPUT)
  latent = config.family.attention == 'mla'
  name_child = lambda name: f'{attention}.{name}'
  if config.is_linear(number):
    by_head = config.family.linear_attention == 'by_head'
    names = ('qkvz', 'ba') if by_head else ('qkv', 'z', 'b', 'a')
    for name in names:
      yield _linear_step(name_child(f'in_proj_{name}'), normed)
  elif not latent:
    sources = dict(q='q', k='k', v='k' if config.takes_keys(number) else 'v')
    yield from (
      _linear_step(name_child(f'{part}_proj'), normed)
      for part in dict.fromkeys(sources.values())
    )
    normed_parts = 'qk' if config.qk_norm else ''
    if config.family.separate_norms:
      normed_parts = 'qkv'
    if config.family.norm_after_rope:  # of attention as a whole
      normed_parts = ''
    for part in normed_parts:
      source = (name_child(f'{sources[part]}_proj'), OUTPUT)
      module = name_child(f'{part}_norm')
      if part == 'q' and config.family.attention_gate:
        yield _split_step(module, source)
        source = (module, INPUT)
      yield _head_norm_step(config, number, module, source)
  else:
    eps = config.family.latent_eps
    queries = normed
    if config.q_lora_rank is not None:
      yield _linear_step(name_child('q_a_proj'), normed)
      source = (name_child('q_a_proj'), OUTPUT)
      yield _norm_step(name_child('q_a_layernorm'), source, eps)
      queries = (name_child('q_a_layernorm'), OUTPUT)
    last = 'q_proj' if config.q_lora_rank is None else 'q_b_proj'
    yield _linear_step(name_child(last), queries)
    yield _linear_step(name_child('kv_a_proj_with_mqa'), normed)

  def compute(run, visible, arrays):
    if config.has_window(number):
      visible = visible.within_window()
    params = parameters.under(run.params, attention)
    return (whole(run, params, arrays[0], visible, None)[0],)

  yield Step(
    f'{attention}',
    (Read((attention, 'kwargs.hidden_states'), normed),),
    ((attention, OUTPUT),),
    (attention,),
    compute,
  )


def _split_step(norm: str, source: Slot) -> Step:
  """Returns queries without the gates beside them."""

  def compute(run, visible, arrays):
    return (attention_lib.split_gate(run, arrays[0])[0],)

  reads = (Read(source, source),)
  return Step(f'{norm}: what it reads', reads, ((norm, INPUT),), (), compute)


def _head_norm_step(
  config: config_lib.ModelConfig, number: int, module: str, source: Slot
) -> Step:
  """Returns the norm of queries, keys or values.

  Of each head or of all at once; that of values has no weight.
  """
  width = config.head_width(number)

  def compute(run, visible, arrays):
    x = arrays[0]
    if config.qk_norm != 'whole' and x.shape[-1] != width:
      x = x.reshape(*x.shape[:-1], -1, width)
    if module.endswith('.v_norm'):
      plain = run.nn.constant(np.ones(width), x)
      return (run.nn.rms_norm(x, plain, config.rms_norm_eps),)
    return (run.norm(run.params, module, x),)

  slots = (module, INPUT), (module, OUTPUT)
  return Step(module, (Read(slots[0], source),), slots[1:], (module,), compute)


def _list_experts(
  config: config_lib.ModelConfig, block: str, normed: Slot
) -> Iterator[Step]:
  """Yields router, choice, experts, shared experts and their sum."""
  gate, experts = f'{block}.{config.family.gate}', f'{block}.experts'
  yield _linear_step(gate, normed)
  yield from _list_routed(config, block, normed)
  if not config.shared_width:
    yield _copy_step(block, (experts, OUTPUT), normed)
    return
  shared = f'{block}.{config.family.shared}'
  yield _mlp_step(shared, normed)

  def add(run, visible, arrays):
    x, y = arrays
    params = parameters.under(run.params, block)
    return (y.reshape(x.shape) + decoder_layers.shared_experts(run, params, x),)

  prefixes = [shared]
  if config.family.shared_gate:
    prefixes.append(f'{block}.{config.family.shared_gate}')
  yield Step(
    f'{block}: experts and shared experts',
    (Read((block, INPUT), normed), Read((experts, OUTPUT), (experts, OUTPUT))),
    ((block, OUTPUT),),
    tuple(prefixes),
    add,
  )


def _list_normed_experts(
  config: config_lib.ModelConfig, layer: str, hidden: Slot, normed: Slot
) -> Iterator[Step]:
  """Yields the steps of `_list_experts` with norms of their own.

  Router and experts read the hidden state; a norm of the layer reads the sum.
  """
  block = f'{layer}.{config.family.block}'
  gate, experts = f'{block}.{config.family.gate}', f'{block}.experts'

  def scale(run, visible, arrays):
    factors = run.params[f'{gate}.scale'] * config.hidden_size**-0.5
    return (run.nn.rms_norm(arrays[0], factors, config.rms_norm_eps),)

  yield Step(
    f'{gate}: its norm',
    (Read(hidden, hidden),),
    ((gate, INPUT),),
    (f'{gate}.scale',),
    scale,
  )
  yield _linear_step(gate, (gate, INPUT))
  yield _norm_step(f'{block}.input_norm', hidden)
  yield from _list_routed(config, block, (f'{block}.input_norm', OUTPUT))
  yield _norm_step(f'{block}.routed_norm', (experts, OUTPUT))
  shared = f'{block}.{config.family.shared}'
  yield _mlp_step(shared, normed)
  yield _norm_step(f'{block}.shared_norm', (shared, OUTPUT))
  yield _sum_step(
    config,
    f'{block}: experts and shared experts',
    (f'{block}.shared_norm', OUTPUT),
    (f'{block}.routed_norm', OUTPUT),
    (f'{layer}.post_mlp_layernorm', INPUT),
  )


def _list_routed(
  config: config_lib.ModelConfig, block: str, normed: Slot
) -> Iterator[Step]:
  """Yields the choice of experts, and the experts."""
  gate, experts = f'{block}.{config.family.gate}', f'{block}.experts'

  def choose(run, visible, arrays):
    scores = arrays[0].reshape(1, -1, config.num_experts)
    params = parameters.under(run.params, block)
    ids, weights = routed_lib.choose(run.nn, config, params, scores)
    return ids[0], weights[0]

  yield Step(
    f'{block}: choice of experts',
    (Read((gate, OUTPUT), (gate, OUTPUT)),),
    ((experts, 'input.1'), (experts, 'input.2')),
    (f'{gate}.e_score_correction_bias', f'{gate}.per_expert_scale'),
    choose,
    is_choice=True,
  )

  def compute(run, visible, arrays):
    x, ids, weights = arrays
    tokens = x.reshape(1, -1, x.shape[-1])
    params = parameters.under(run.params, experts)
    slabs = [params[n][None] for n in parameters.OF_EXPERTS if n in params]
    y = run.layer(
      tokens,
      jnp.asarray(ids, jnp.int32)[None],
      jnp.asarray(weights)[None],
      *slabs[:2],
      run.policy,
      *slabs[2:],
    )
    return (y.reshape(x.shape),)

  yield Step(
    experts,
    (
      Read((experts, INPUT), normed),
      Read((experts, 'input.1'), (experts, 'input.1')),
      Read((experts, 'input.2'), (experts, 'input.2')),
    ),
    ((experts, OUTPUT),),
    (experts,),
    compute,
  )


def _copy_step(block: str, source: Slot, normed: Slot) -> Step:
  """Returns the block of experts, whose output is theirs."""

  def compute(run, visible, arrays):
    return (arrays[0].reshape(arrays[1].shape),)

  reads = (Read(source, source), Read((block, INPUT), normed))
  return Step(f'{block}: its sum', reads, ((block, OUTPUT),), (), compute)


def list_parameters(step: Step, names: Sequence[str]) -> list[str]:
  """Returns the parameters that a step reads.

  Args:
    step: the step.
    names: of all parameters.
  """
  return [
    name
    for name in names
    if any(name == p or name.startswith(f'{p}.') for p in step.prefixes)
  ]


def find_dtype(name: str) -> np.dtype:
  """Returns the dtype of a name, bfloat16 too."""
  return jnp.dtype(getattr(jnp, name))


def to_array(values: Any, dtype: str) -> Array:
  """Returns an array of JAX: integers as they are, the rest in a dtype."""
  array = np.asarray(values)
  if array.dtype.kind in 'iu':
    return jnp.asarray(array, jnp.int32)
  return jnp.asarray(array.astype(find_dtype(dtype)))
