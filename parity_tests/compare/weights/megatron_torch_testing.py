"""Saves a model as Megatron-LM does (torch_dist), in torch's Python.

Reads a Qwen3-MoE of FOLDER/left and writes FOLDER/right, half of the experts by
each rank, and FOLDER/logits.pt.  With BUG, a conversion of layer 1 is
wrong.

Run as: python -m torch.distributed.run --nproc_per_node=2
  megatron_torch_testing.py FOLDER BUG
"""

import contextlib
import json
import pathlib
import sys

from megatron.core import dist_checkpointing
from megatron.core import parallel_state
from megatron.core import transformer
from megatron.core.models import gpt
from megatron.core.models.gpt import gpt_layer_specs
from megatron.core.tensor_parallel import random as megatron_random
from megatron.core.transformer.moe import moe_utils
from safetensors import torch as safetensors_torch
import torch


def make_model(fields):
  """Returns Megatron-LM's model of a config.json."""
  config = transformer.TransformerConfig(
    num_layers=fields['num_hidden_layers'],
    hidden_size=fields['hidden_size'],
    num_attention_heads=fields['num_attention_heads'],
    num_query_groups=fields['num_key_value_heads'],
    kv_channels=fields['head_dim'],
    ffn_hidden_size=fields['moe_intermediate_size'],
    moe_ffn_hidden_size=fields['moe_intermediate_size'],
    num_moe_experts=fields['num_experts'],
    moe_router_topk=fields['num_experts_per_tok'],
    moe_router_load_balancing_type='none',
    moe_token_dispatcher_type='allgather',
    expert_model_parallel_size=torch.distributed.get_world_size(),
    gated_linear_unit=True,
    activation_func=torch.nn.functional.silu,
    add_bias_linear=False,
    normalization='RMSNorm',
    layernorm_epsilon=fields['rms_norm_eps'],
    qk_layernorm=True,
    hidden_dropout=0.0,
    attention_dropout=0.0,
    use_cpu_initialization=True,
    gradient_accumulation_fusion=False,
    pipeline_dtype=torch.float32,
  )
  spec = gpt_layer_specs.get_gpt_layer_local_spec(
    fields['num_experts'], False, qk_layernorm=True, normalization='RMSNorm'
  )
  return gpt.GPTModel(
    config=config,
    transformer_layer_spec=spec,
    vocab_size=fields['vocab_size'],
    max_sequence_length=64,
    position_embedding_type='rope',
    rotary_base=int(fields['rope_theta']),
    share_embeddings_and_output_weights=False,
  ).eval()


def convert(fields, tensors, names, first_expert):
  """Returns the tensors that Megatron-LM's model has under some names."""
  groups, width = fields['num_key_value_heads'], fields['head_dim']
  renamed = {
    'embedding.word_embeddings.weight': 'model.embed_tokens.weight',
    'decoder.final_layernorm.weight': 'model.norm.weight',
    'output_layer.weight': 'lm_head.weight',
  }
  of_layer = {
    'input_layernorm.weight': 'input_layernorm.weight',
    'pre_mlp_layernorm.weight': 'post_attention_layernorm.weight',
    'self_attention.linear_proj.weight': 'self_attn.o_proj.weight',
    'self_attention.q_layernorm.weight': 'self_attn.q_norm.weight',
    'self_attention.k_layernorm.weight': 'self_attn.k_norm.weight',
    'mlp.router.weight': 'mlp.gate.weight',
  }

  def find(name):
    if name in renamed:
      return tensors[renamed[name]]
    layer, rest = name.removeprefix('decoder.layers.').split('.', 1)
    prefix = f'model.layers.{layer}.'
    if rest in of_layer:
      return tensors[prefix + of_layer[rest]]
    if rest == 'self_attention.linear_qkv.weight':
      q, k, v = (tensors[f'{prefix}self_attn.{n}_proj.weight'] for n in 'qkv')
      heads = [a.reshape(groups, -1, width, a.shape[-1]) for a in (q, k, v)]
      return torch.cat(heads, 1).reshape(-1, q.shape[-1])
    expert, matrix = rest.removeprefix('mlp.experts.local_experts.').split('.')[
      :2
    ]
    prefix = f'{prefix}mlp.experts.{int(expert) + first_expert}.'
    gate, up, down = (
      tensors[f'{prefix}{n}_proj.weight'] for n in ('gate', 'up', 'down')
    )
    return torch.cat([gate, up]) if matrix == 'linear_fc1' else down

  return {name: find(name) for name in names}


def plant(tensors, fields, bug):
  """Makes a conversion of layer 1 wrong, as somebody's code did."""
  experts = 'model.layers.1.mlp.experts.'
  if bug == 'experts':
    for last in ('gate_proj', 'up_proj', 'down_proj'):
      a, b = (f'{experts}{e}.{last}.weight' for e in (3, 4))
      tensors[a], tensors[b] = tensors[b], tensors[a]
  for expert in range(fields['num_experts']):
    a, b = (f'{experts}{expert}.{last}_proj.weight' for last in ('gate', 'up'))
    rows = torch.cat([tensors[a], tensors[b]])
    if bug == 'halves':
      tensors[a], tensors[b] = tensors[b], tensors[a]
    elif bug == 'interleaved':
      turns = rows.reshape(2, -1, rows.shape[-1]).transpose(0, 1)
      tensors[a], tensors[b] = turns.reshape(rows.shape).chunk(2)
    down = f'{experts}{expert}.down_proj.weight'
    if bug == 'transposed':
      tensors[down] = tensors[down].T.reshape(tensors[down].shape)
  gate, norm = 'model.layers.1.mlp.gate.weight', 'model.norm.weight'
  if bug == 'router':
    tensors[gate] = tensors[gate].roll(1, 0)
  elif bug == 'norm':
    tensors[norm] = tensors[norm] + 1


def main():
  folder, bug = pathlib.Path(sys.argv[1]), sys.argv[2]
  # What Megatron-LM asks of a GPU and its libraries, which are not there.
  moe_utils.te_general_gemm = None
  torch.cuda.synchronize = lambda *_: None
  torch.cuda.current_device = lambda: 'cpu'
  torch.distributed.init_process_group('gloo')
  rank, ranks = (
    torch.distributed.get_rank(),
    torch.distributed.get_world_size(),
  )
  parallel_state.initialize_model_parallel(expert_model_parallel_size=ranks)
  megatron_random.initialize_rng_tracker(force_reset=True)
  tracker = megatron_random.get_cuda_rng_tracker()
  tracker.fork = lambda *_: contextlib.nullcontext()
  fields = json.loads((folder / 'left/config.json').read_text('utf-8'))
  tensors = safetensors_torch.load_file(folder / 'left/model.safetensors')
  plant(tensors, fields, bug)
  model = make_model(fields)
  names = [n for n in model.state_dict() if not n.endswith('_extra_state')]
  first = rank * fields['num_experts'] // ranks
  converted = convert(fields, tensors, names, first)
  model.load_state_dict(converted, strict=False)
  tokens = torch.arange(24).reshape(2, 12) * 5 % fields['vocab_size']
  positions = torch.arange(tokens.shape[1]).expand_as(tokens)
  count = tokens.shape[1]
  mask = torch.ones(1, 1, count, count).triu(1).bool()
  with torch.no_grad():
    logits = model(tokens, positions, mask)
  if rank == 0:
    torch.save(logits, folder / 'logits.pt')
    (folder / 'right').mkdir()
  torch.distributed.barrier()
  dist_checkpointing.save(
    model.sharded_state_dict(prefix=''), str(folder / 'right')
  )
  torch.distributed.destroy_process_group()


if __name__ == '__main__':
  main()
