"""Makes models/testdata/golden/ from the implementations in transformers.

Pangu's, which is not in transformers, were made by `pangu_torch.py` at 65b6aff.

Needs torch and transformers, which are no dependency of the project, beside
it; each file names the versions that made it:

    python -m hpmoe.tools.golden.make_golden --only=gemma_plain

With --greedy it makes `greedy.json` instead: the tokens that the best score
chooses, of a configuration of each family.

In float64 torch is told that float32 is float64, or transformers would round
norms, softmax, routers and rotations to float32 in between.
"""

import contextlib
import dataclasses
import json
from unittest import mock

from absl import app
from absl import flags
import ml_dtypes
import numpy as np
import torch
import transformers
from transformers import modeling_layers

from hpmoe.models import config as config_lib
from hpmoe.models import families
from hpmoe.models import generation_testing
from hpmoe.models import golden_testing as golden
from hpmoe.models import parameters
from hpmoe.models.checkpoint import expert_layout

_NAMES = flags.DEFINE_list('only', [], 'Configurations to make; none for all.')
_GREEDY = flags.DEFINE_bool('greedy', False, 'Make greedy.json.')
_SEEDS = 2000
_ROUTERS = ('topkrouter', 'moev1gate', 'gemma4textrouter')
# Where bfloat16's largest error of few weights is one draw, another one.
_FIRST = {
  **dict(flash_plain=11, hy_plain=32, kimi_groups=80),
  **dict(sparse_few=16, sparse_yarn=9),
}
# In logits whose spread is about 1: what float32 never moves them by.
_LEAST_LEAD = 2e-3


def main(argv) -> None:
  del argv
  torch.set_num_threads(1)  # small matrices
  transformers.logging.set_verbosity_error()
  if _GREEDY.value:
    records = json.loads(generation_testing.FILE.read_text())
    names = generation_testing.FAMILIES
    records = {n: records.get(n) or find_greedy(n) for n in names}
    generation_testing.FILE.write_text(json.dumps(records) + '\n')
    return
  for name in _NAMES.value or golden.CONFIGS:
    arrays = make(name)
    np.savez_compressed(golden.FOLDER / f'{name}.npz', **arrays)
    print(name, 'seed', arrays['seed'], 'loss', arrays['loss'])


def make(name: str) -> dict[str, np.ndarray]:
  """Returns the arrays of a file, for the first seed that is fit.

  A seed is fit if in no dtype rounding decides which experts a token goes to,
  with a factor of two to spare in the distance of its scores.
  """
  for seed in range(_FIRST.get(name, 0), _SEEDS):
    runs = {}
    for dtype in ('float64', 'bfloat16', 'float32'):
      runs[dtype] = run = _Run(name, seed, dtype)
      wide = runs['float64']
      distance = np.max(np.abs(run.scores - wide.scores), axis=-1)
      if np.any(wide.margins <= 2 * distance) or not _sees_as(run, wide):
        break
      assert np.array_equal(run.topk_ids, wide.topk_ids), name
    else:
      return _arrays(seed, runs) | {'nearby': _nearby(name, seed, runs)}
  raise RuntimeError(f'{name}: expected a fit seed below {_SEEDS}, got none')


def _sees_as(run: '_Run', wide: '_Run') -> bool:
  """Returns whether rounding is far from what indexers choose."""
  for actual, exact in zip(run.index_scores, wide.index_scores, strict=True):
    is_visible = exact > np.finfo(np.float32).min / 2
    distance = np.abs(np.where(is_visible, actual - exact, 0)).max(axis=-1)
    gap = _gap(np.where(is_visible, exact, -np.inf), wide.config.index_topk)
    if np.any(gap <= 2 * distance):
      return False
  return True


def find_greedy(name: str) -> dict[str, object]:
  """Returns the first fit seed, and the tokens after its prompt, in float64.

  A seed is fit if no best score is near the next one.
  """
  for seed in range(_SEEDS):
    run = _Run(name, seed, 'float64')
    token_ids = golden.tokens(name, seed)[:1]
    leads: list[float] = []
    while len(leads) < generation_testing.COUNT:
      with torch.no_grad(), _float32_is(torch.float64):
        out = run.model(
          torch.tensor(token_ids, dtype=torch.int64), use_cache=False
        )
      scores = _numpy(out.logits[0, -1])
      leads.append(float(_gap(scores[None], 1)[0] / scores.std()))
      if leads[-1] < _LEAST_LEAD:
        break
      token_ids = np.append(token_ids, [[scores.argmax()]], axis=1)
    else:
      tokens = token_ids[0, -len(leads) :].tolist()
      print(name, 'seed', seed, 'least lead', min(leads))
      return dict(seed=seed, tokens=tokens)
  raise RuntimeError(f'{name}: expected a fit seed below {_SEEDS}, got none')


def _arrays(seed: int, runs: dict[str, '_Run']) -> dict[str, np.ndarray]:
  wide = runs['float64']
  wide.backward()
  of_grads = scales(wide.grads, wide.params)
  arrays: dict[str, np.ndarray] = dict(
    seed=np.asarray(seed),
    loss=np.asarray(wide.loss.item()),
    scales=of_grads,
    made_by=np.asarray(
      f'torch {torch.__version__}, transformers {transformers.__version__}'
    ),
  )
  unscaled = np.ones_like(of_grads)
  for dtype, run in runs.items():
    run.backward()
    kept_grads = golden.keep(run.grads, unscaled, run.params)
    of_parameter = golden.keep(
      {n: np.full_like(run.grads[n], s) for n, s in _by_name(run, of_grads)},
      unscaled,
      run.params,
    )
    arrays |= {
      f'logits.{dtype}': pack(run.logits, dtype),
      f'hidden_states.{dtype}': pack(run.hidden_states, dtype),
      f'topk_ids.{dtype}': run.topk_ids.astype(np.int8),
    }
    # Divided by their scale a gradient's values are no longer exact in bf16.
    exact = 'float64' if dtype == 'float64' else 'float32'
    arrays[f'grads.{dtype}'] = (kept_grads / of_parameter).astype(exact)
  return arrays


def _nearby(name: str, seed: int, runs: dict[str, '_Run']) -> np.ndarray:
  """Returns `golden.Golden.nearby`."""
  wide = runs['float64']
  of_grads = scales(wide.grads, wide.params)
  out = []
  for number in range(golden.NEIGHBOURS):
    params = golden.neighbour(wide.params, number)
    results = [
      _Run(name, seed, dtype, params).result(of_grads)
      for dtype in ('float32', 'float64')
    ]
    out.append(golden.errors(*results))
  return np.asarray(out)


def _by_name(run: '_Run', scales: np.ndarray):
  return zip(golden.list_trained(run.params), scales, strict=True)


@contextlib.contextmanager
def _float32_is(dtype: torch.dtype):
  """Lets Python code that asks torch for float32 get `dtype`."""
  float32 = torch.float32
  widened = (
    torch.Tensor.double if dtype == torch.float64 else torch.Tensor.float
  )
  narrow = torch.float64 if dtype == torch.float64 else torch.float32
  with (
    mock.patch.object(torch, 'float32', narrow),
    mock.patch.object(torch, 'float', narrow),
    mock.patch.object(torch.Tensor, 'float', widened),
  ):
    torch.set_default_dtype(narrow)  # of a number times a whole one
    try:
      yield
    finally:
      torch.set_default_dtype(float32)


class _Run:
  """One forward pass of the reference implementation, and its gradients."""

  def __init__(self, name: str, seed: int, dtype: str, params=None):
    self.config, self.name = golden.config(name), name
    self.dtype = getattr(torch, dtype)
    self.params = params or golden.weights(name, seed)
    tokens = torch.tensor(golden.tokens(name, seed), dtype=torch.int64)
    self.index_scores: list[np.ndarray] = []
    with _float32_is(self.dtype), self._recorded_choices():
      self._build(name)
      self._forward(tokens)

  @contextlib.contextmanager
  def _recorded_choices(self):
    """Keeps the scores `[B * S, C]` of which an indexer takes the best."""
    topk, length = torch.Tensor.topk, self.config.index_topk

    def record(scores, count, *args, **kwargs):
      if scores.ndim == 3 and count == length and scores.shape[-1] == 8:
        rows = _numpy(scores).reshape(-1, scores.shape[-1])
        self.index_scores.append(rows)
      return topk(scores, count, *args, **kwargs)

    with mock.patch.object(torch.Tensor, 'topk', record):
      yield

  def _build(self, name: str) -> None:
    model_class = _model_class(_family(name).architecture)
    fields = dict(golden.CONFIGS[name], attn_implementation='eager')
    if (
      self.config.model_type == 'kimi_k2' and not self.config.normalizes_weights
    ):
      # transformers' DeepSeek-V3 would divide a single weight by itself.
      fields['norm_topk_prob'] = False
    heads = len(parameters.mtp_layers(self.config))
    if heads and 'mlp_layer_types' in fields:
      fields['mlp_layer_types'] = fields['mlp_layer_types'] + ['sparse'] * heads
    config = model_class.config_class(**fields)
    config._experts_implementation = 'eager'
    self.model = model_class(config).to(self.dtype).eval()
    self.modules = {'': self.model}
    for layer in parameters.mtp_layers(self.config):
      block = self.model.model.layers[-1]
      head = modeling_layers.MtpLayer(
        config, type(block), type(block.input_layernorm), layer
      )
      self.modules[f'model.layers.{layer}.'] = head.to(self.dtype).eval()
    state = {}
    for parameter, value in self.params.items():
      place, tensor = self._of_transformers(parameter, value)
      state[place] = tensor.to(self.dtype)
    for prefix, module in self.modules.items():
      own = {n: t for n, t in state.items() if _owner(self, n) == prefix}
      own = {n[len(prefix) :]: t for n, t in own.items()}
      if not prefix and self.config.tie_word_embeddings:
        embeddings = _rename(_family(name), 'model.embed_tokens.weight')
        own['lm_head.weight'] = own[embeddings]
      # The tower for pictures, and what torch ties, are not ours.
      left = module.load_state_dict(own, strict=False)
      ignored = (*_family(name).ignored, 'lm_head.weight')
      ignored += ('model.vision_tower.', 'model.mm_projector.')
      missing = [n for n in left.missing_keys if not n.startswith(ignored)]
      assert not missing and not left.unexpected_keys, (missing, left)

  def _of_transformers(self, name: str, value: np.ndarray):
    place, tensor = _of_transformers(self.config, name, value)
    return _rename(_family(self.name), place), tensor

  def _forward(self, tokens: torch.Tensor) -> None:
    router_outputs = []
    routers = [
      module
      for whole in self.modules.values()
      for module in whole.modules()
      if type(module).__name__.lower().endswith(_ROUTERS)
    ]
    for whole in self.modules.values():
      for module in whole.modules():
        if hasattr(module, 'e_score_correction_bias'):
          bias = module.e_score_correction_bias
          # HY3 keeps it beside the router.
          getattr(module, 'gate', module).__dict__['bias_of_choice'] = bias
    for router in routers:
      if hasattr(router, 'moe_statics'):
        bias = router.moe_statics.e_score_correction_bias
        router.__dict__['bias_of_choice'] = bias.squeeze(0)
      router.register_forward_hook(
        lambda module, _, out: router_outputs.append((module, out))
      )
    out = self.model(tokens, output_hidden_states=True, use_cache=False)
    self.loss = _loss(out.logits, tokens[:, 1:])
    logits = [out.logits]
    for prefix, head in self.modules.items():
      if prefix:
        logits.append(self._further(head, out.hidden_states[-1], tokens))
        self.loss = self.loss + golden.MTP_WEIGHT * _loss(
          logits[-1], tokens[:, 2:]
        )
    self.logits = np.concatenate([_numpy(v).reshape(-1) for v in logits])
    self.hidden_states = np.stack([_numpy(h) for h in out.hidden_states])
    self._record(router_outputs)

  def _further(self, head, hidden, tokens: torch.Tensor) -> torch.Tensor:
    model = self.model.model
    embeds = model.embed_tokens(tokens[:, 1:])
    count = embeds.shape[1]
    positions = torch.arange(count)[None]
    lowest = torch.finfo(embeds.dtype).min
    mask = torch.full((count, count), lowest, dtype=embeds.dtype).triu(1)
    hidden = head(
      embeds,
      hidden[:, :-1],
      position_embeddings=model.rotary_emb(embeds, positions),
      attention_mask=mask[None, None],
      position_ids=positions,
      past_key_values=None,
    )
    return self.model.lm_head(hidden)

  def _record(self, router_outputs) -> None:
    """Keeps ids, what they were chosen by, and how near a choice was."""
    ids, scores, margins = [], [], []
    for router, (logits, _, chosen_ids) in router_outputs:
      choice_scores = _numpy(logits)
      if self.config.model_type == 'gemma4_text':  # gives shares
        choice_scores = np.log(choice_scores)
      if self.config.family.choice_bias:
        shares = torch.softmax(logits.double(), dim=-1)
        choice_scores = _numpy(shares + router.bias_of_choice.double())
      margins.append(_margin(self.config, router, choice_scores))
      ids.append(
        np.sort(chosen_ids.numpy(), axis=-1).astype(np.int8).reshape(-1)
      )
      scores.append(choice_scores)
    self.topk_ids = np.concatenate(ids)
    self.scores = np.concatenate(scores)
    self.margins = np.concatenate(margins)

  def result(self, scales: np.ndarray) -> golden.Result:
    """Returns logits, hidden states and gradients as tests compare them."""
    self.backward()
    grads = golden.keep(self.grads, scales, self.params)
    return golden.Result(self.logits, self.hidden_states, grads, self.topk_ids)

  def backward(self) -> None:
    if hasattr(self, 'grads'):
      return
    with _float32_is(self.dtype):
      self.loss.backward()
    grads = {}
    for prefix, module in self.modules.items():
      for name, parameter in module.named_parameters():
        if parameter.grad is not None:
          grads[prefix + name] = parameter.grad
    self.grads = {}
    for name in golden.list_trained(self.params):
      place, _ = self._of_transformers(name, self.params[name])
      grad = _numpy(grads[place])
      if parameters.is_of_experts(name):
        (piece,) = _whole(self.config, name, self.params[name].shape)
        out = np.empty(self.params[name].shape)
        view = piece.view(out)
        view[...] = grad.reshape(view.shape)
        grad = out
      self.grads[name] = grad


def _family(name: str) -> families.Family:
  """Returns the family that a configuration's files are of."""
  fields = families.unwrap(golden.CONFIGS[name])
  return families.FAMILIES[fields['model_type']]


def scales(grads: dict[str, np.ndarray], params: dict) -> np.ndarray:
  """Returns the root mean square of each gradient, `[parameters]`."""
  squares = [np.mean(np.square(grads[n])) for n in golden.list_trained(params)]
  return np.sqrt(np.asarray(squares))


def pack(array: np.ndarray, dtype: str) -> np.ndarray:
  """Returns float64 values that are exact in `dtype` as a file holds them."""
  values = array.astype(np.dtype(getattr(ml_dtypes, dtype, dtype)))
  return values.view(np.uint16) if dtype == 'bfloat16' else values


def _model_class(architecture: str):
  if architecture == 'KimiK25ForConditionalGeneration':
    architecture = 'Kimi_K25ForConditionalGeneration'
  return getattr(transformers, architecture)


def _owner(run: _Run, place: str) -> str:
  owners = [p for p in run.modules if p and place.startswith(p)]
  return owners[0] if owners else ''


def _of_transformers(
  config: config_lib.ModelConfig, name: str, value: np.ndarray
) -> tuple[str, torch.Tensor]:
  """Returns a parameter's name and value in transformers 5's modules."""
  if parameters.is_of_experts(name):
    (piece,) = _whole(config, name, value.shape)
    name, value = piece.name, piece.view(value).reshape(piece.shape)
  tensor = torch.tensor(value)
  if config.model_type == 'ernie4_5_moe' and parameters.is_router_bias(name):
    tensor = tensor[None]
  if config.model_type not in ('granitemoe', 'gemma4_text'):
    name = name.replace(f'.{config.family.block}.', '.mlp.')
  for layer in parameters.mtp_layers(config):
    prefix = f'model.layers.{layer}.'
    if not name.startswith(prefix):
      continue
    inside = name[len(prefix) :]
    if inside == 'shared_head.norm.weight':
      inside = 'post_norm.weight'
    elif inside.partition('.')[0] not in ('enorm', 'hnorm', 'eh_proj'):
      inside = f'mtp_block.{inside}'
    name = prefix + inside
  return name, tensor


def _rename(family: families.Family, place: str) -> str:
  """Returns a module's name; transformers' own for what files rename."""
  if family.architecture in ('HYV3ForCausalLM', 'MiniMaxM2ForCausalLM'):
    return place.replace('.gate.e_score_corr', '.e_score_corr')
  if family.holder == 'kimi_k25' and place.startswith('model.'):
    return place.replace('model.', 'model.language_model.', 1)
  if family.holder == 'kimi_k25':
    return place
  if family.architecture == 'GraniteMoeForCausalLM':
    return place
  if family.architecture == 'Ernie4_5_MoeForCausalLM':
    return place.replace('.gate.e_score', '.gate.moe_statics.e_score')
  return expert_layout.rename(family, place)


def _whole(config, name: str, shape) -> list[expert_layout.Piece]:
  """Returns a parameter of experts as transformers 5 holds it, by layer."""
  first = expert_layout.stacked_pieces(config, name, shape)[0]
  return [dataclasses.replace(first, expert=None, row=None)]


def _margin(config, router: torch.nn.Module, logits: np.ndarray) -> np.ndarray:
  """Returns `[tokens]`, how far a token's logits may move with no new choice.

  A sigmoid moves by at most a quarter of what its logit does.
  """
  top_k, softmax = config.num_experts_per_tok, config.family.router == 'softmax'
  if config.family.choice_bias:
    return _gap(logits, top_k) / 2
  if config.n_group == 1 and (softmax or not config.router_bias):
    return _gap(logits, top_k) / 2
  choice_scores = logits
  if not softmax:
    choice_scores = 1 / (1 + np.exp(-logits)) + _numpy(router.bias_of_choice)
  groups = choice_scores.reshape(len(logits), config.n_group, -1)
  best = np.sort(groups, axis=-1)[..., -config.family.group_best :]
  sums = best.sum(axis=-1)
  best_groups = np.argsort(-sums, axis=-1)[:, : config.topk_group]
  masked = np.full_like(groups, -np.inf)
  for token, own_groups in enumerate(best_groups):
    masked[token, own_groups] = groups[token, own_groups]
  of_groups = _gap(sums, config.topk_group)
  of_experts = _gap(masked.reshape(choice_scores.shape), top_k)
  # Two logits; or two sums of two sigmoids, then two sigmoids.
  if softmax:
    return np.minimum(of_groups, of_experts) / 2
  return np.minimum(of_groups, 2 * of_experts)


def _gap(values: np.ndarray, count: int) -> np.ndarray:
  """Returns by how much the `count`-th best exceeds the next, `[tokens]`."""
  if count == values.shape[-1]:
    return np.full(len(values), np.inf)
  best = -np.sort(-values, axis=-1)
  return best[:, count - 1] - best[:, count]


def _loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
  logits = logits[:, : targets.shape[1]].float()
  return torch.nn.functional.cross_entropy(
    logits.reshape(-1, logits.shape[-1]), targets.reshape(-1)
  )


def _numpy(tensor: torch.Tensor) -> np.ndarray:
  return tensor.detach().to(torch.float64).numpy()


if __name__ == '__main__':
  app.run(main)
