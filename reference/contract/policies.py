"""Precision of kernels that people run, by name: words of a policy.

A word is POINT=DTYPE of `precision.POINTS`, or FIELD=NAME of `_FIELDS`.
"""

from collections.abc import Sequence
import dataclasses

from hpmoe.reference.contract import messages
from hpmoe.reference.contract import precision


@dataclasses.dataclass(frozen=True)
class PublicPolicy:
  """The policy of a public implementation.

  Attributes:
    words: that name the policy.
    source: repository, path and commit that it was read from.
  """

  words: tuple[str, ...]
  source: str


# Operator by operator, as autograd has the gradients of them.
_SILU = ('silu=storage', 'd_silu=storage')
_WEIGHT = 'routing_weight=storage'
# Shared experts are modules of their own: the routed experts' output, and its
# gradient, are stored before these are added (`deepseek_v2.py` of vLLM and
# SGLang, `moe_layer.py` of Megatron-LM, `modeling_deepseek_v3.py` and
# `modeling_qwen2_moe.py` of transformers).
_ROUTED_SUM = 'routed_sum=storage'
_ROUTED_SUMS = (_ROUTED_SUM, 'd_routed_sum=storage')
_EAGER = (
  *_SILU,
  'weighted=storage',
  'running_sum=storage',
  'd_running_sum=storage',
  'sum_order=expert',
  'd_sum_order=expert_back',
)
_TRANSFORMERS = 'huggingface/transformers 5.23.0 '

POLICIES = {
  'torch_grouped_mm': PublicPolicy(
    (*_SILU, _WEIGHT, 'weighted=storage', *_ROUTED_SUMS),
    f'{_TRANSFORMERS}integrations/moe.py, weights in the dtype of x',
  ),
  'grouped_mm_f32_weights': PublicPolicy(
    (*_SILU, *_ROUTED_SUMS),
    f'{_TRANSFORMERS}integrations/moe.py, weights in float32',
  ),
  'hf_mixtral': PublicPolicy(
    _EAGER, f'{_TRANSFORMERS}models/mixtral/modeling_mixtral.py, eager'
  ),
  'hf_qwen3_moe': PublicPolicy(
    (*_EAGER, _WEIGHT),
    f'{_TRANSFORMERS}models/qwen3_moe/modeling_qwen3_moe.py, eager',
  ),
  'deepseek_v3': PublicPolicy(
    (*_EAGER, _WEIGHT), 'deepseek-ai/DeepSeek-V3 inference/model.py 9b4e978'
  ),
  'megatron': PublicPolicy(
    ('placement=before_down', *_ROUTED_SUMS),
    'NVIDIA/Megatron-LM core/fusions/fused_bias_swiglu.py d98e8a6, compiled',
  ),
  'megatron_eager': PublicPolicy(
    ('placement=before_down', *_SILU, 'product=storage', *_ROUTED_SUMS),
    'NVIDIA/Megatron-LM core/fusions/fused_bias_swiglu.py d98e8a6, eager',
  ),
  'transformer_engine_index_map': PublicPolicy(
    (_WEIGHT, 'weighted=storage', 'running_sum=storage'),
    'NVIDIA/TransformerEngine common/permutation/permutation.cu d0067d0',
  ),
  'deepgemm_mega_moe': PublicPolicy(
    ('placement=before_down',),
    'deepseek-ai/DeepGEMM impls/sm100_*_mega_moe.cuh 54e2261, bfloat16',
  ),
  'vllm': PublicPolicy(
    ('placement=epilogue', *_SILU, _ROUTED_SUM),
    'vllm-project/vllm fused_moe.py 000d145, more than 4 slots',
  ),
  'vllm_few_slots': PublicPolicy(
    ('placement=epilogue', *_SILU, 'running_sum=storage', _ROUTED_SUM),
    'vllm-project/vllm fused_moe.py 000d145, moe_sum of 4 slots or fewer',
  ),
  'sglang': PublicPolicy(
    ('placement=epilogue', *_SILU, _ROUTED_SUM),
    'sgl-project/sglang fused_moe_triton_kernels.py 018e2ed, over 32 tokens',
  ),
  'marlin': PublicPolicy(
    ('placement=returned', *_SILU),
    'vllm-project/vllm contiguous finalise, a multiply in storage',
  ),
  'megablocks': PublicPolicy(
    (*_SILU, 'weighted=storage'), 'databricks/megablocks 78eea65'
  ),
  'maxtext': PublicPolicy(
    (*_SILU, _WEIGHT), 'AI-Hypercomputer/maxtext layers/moe.py e591f30'
  ),
  'onnxruntime': PublicPolicy(
    ('sum_order=expert',),
    'microsoft/onnxruntime contrib_ops/cpu/moe/moe_cpu.cc 09fc631',
  ),
  'mindformers': PublicPolicy(
    (_WEIGHT, 'weighted=storage', 'running_sum=storage'),
    'MindFormers parallel_core/training_graph fd4deeb',
  ),
  'ascend_finalize_routing': PublicPolicy(
    ('placement=epilogue',),
    'CANN ops-transformer grouped_matmul_finalize_routing c29bc10',
  ),
  'dysharp': PublicPolicy(('placement=epilogue',), 'DySHARP, section 4'),
}
_FIELDS = ('placement', *precision.SUM_ORDERS)


def words(policy: precision.PrecisionPolicy) -> tuple[str, ...]:
  """Returns the words of a policy, without its placement; see `fields`."""
  orders = ((name, getattr(policy, name)) for name in precision.SUM_ORDERS)
  order_words = (f'{name}={order}' for name, order in orders if order != 'slot')
  return (*policy.points, *order_words)


def _refuse_word(word: str, name: str) -> str:
  if '=' not in word:
    beside = ' or NAME=VALUE'
    return messages.refuse_choice(POLICIES, word, beside=beside)
  names, beside = (*_FIELDS, *precision.POINTS), ' before ='
  return messages.refuse_choice(names, name, beside=beside, typed=word)


def fields(words: str | Sequence[str]) -> dict[str, str | tuple[str, ...]]:
  """Returns fields of a `precision.PrecisionPolicy`: later words win.

  A string holds words with commas between them.

  Raises:
    ValueError: a word is neither a name of `POLICIES` nor as above.
  """
  values: dict[str, str] = {}
  words = words.split(',') if isinstance(words, str) else words
  for word in words:
    public_policy = POLICIES.get(word)
    for pair in public_policy.words if public_policy else (word,):
      name, _, value = pair.partition('=')
      if name not in _FIELDS and name not in precision.POINTS:
        raise ValueError(f'policy: {_refuse_word(word, name)}')
      values[name] = value
  own = {name: values.pop(name) for name in _FIELDS if name in values}
  points = tuple(
    f'{name}={dtype}' if dtype else name for name, dtype in values.items()
  )
  precision.sort_points(points, {}, 'policy')
  return {**own, **(dict(points=points) if points else {})}
