"""Families of decoders: a table each in families.toml; nothing else names them.

A table says which parts a family is built of, what its config.json calls each
field, and what the family's reference implementation takes where the file is
silent: transformers 5.23 (from Qwen3-Next on 5.24), and for Pangu the
configuration published with openPangu-Ultra-MoE-718B.
"""

from collections.abc import Mapping
import dataclasses
import pathlib
import tomllib
from typing import Any

from hpmoe.reference.contract import messages

_FILE = pathlib.Path(__file__).resolve().with_name('families.toml')


@dataclasses.dataclass(frozen=True)
class Family:
  """What the models of one family have in common.

  Attributes:
    architecture: the class in `architectures` of config.json.
    other_architectures: other names of the class in files.
    attention: 'mla' (compressed keys and values) or 'gqa'.
    router: 'sigmoid_group' or 'softmax', as in `reference/routing.py`.
    defaults: the fields of `ModelConfig` that config.json of this family has ->
      what its absence means; None for a field that must be there, or null.  Of
      `layer_types`, () means `layer_pattern`.
    group_best: so many best experts speak for a group.
    normalizes_one: whether a token's only weight is divided by itself too.
    up_offset: what an expert adds to its up projection.
    sinks: whether each head's softmax has one score more, with no value.
    qk_norm: how queries and keys are normalised: each 'head', the 'whole'
      width at once, or ''.
    latent_eps: of the norms of compressed vectors, which the reference gives
      the default of its norm class whatever `rms_norm_eps` says.
    block: name of the feed-forward block with experts.
    gate: name of the router in it.
    experts: Hugging Face's names of gate, up and down of one expert.
    by_turns: whether files hold the experts of a layer as one tensor
      `[E, in, out]`, gates and ups by turns, with biases, and maybe in MXFP4:
      see `checkpoint/expert_layout.py`.
    shared: name of the experts that see every token.
    shared_gate: name of what weighs them for each token; '' for nothing.
    renamed: our name of a field -> the family's.
    also_named: our name of a field -> others under which files have it.
    fixed: keys of config.json that no model here computes another value of ->
      that value; it may be in `defaults` too.
    unused: keys that the family's reference does not compute with.
    rotary_width: a key for the width of a head that rotates, in place of its
      part; '' for none.
    entries: lists of config.json -> what each of their entries must be.
    rope_unused: keys in a form of rope that change nothing for text.
    holder: `model_type` of a config.json that holds this family's as
      `text_config`; '' for none.
    read_as: the family that its configurations and weights become once read;
      '' for itself.
    file_names: part of a tensor's name here -> that in the family's files.
    saved_names: part of a tensor's name in the family's files -> that in files
      which transformers saved; no files are written so.
    stacked_in_out: whether files may stack experts as `[E, in, out]`, gates
      first; where that is ambiguous it is `[E, out, in]`, as in transformers.
    ignored: what names of tensors begin with that are not read, as of towers
      for pictures.
    layer_pattern: kinds of layers (`layer_types`) by turns, unless a file
      lists them.
    window_layers: which layers have the window where a file lists none: 'from'
      max_window_layers on, or 'by_turns_below' it, the first with it; '' for a
      family that takes `layer_pattern` by turns.
    layer_interval: a key for a number of which each multiple is the last kind
      of the pattern, the others the first; '' for none.
    linear_attention: how projections of a layer of linear attention lie: in
      one for each head of keys ('by_head') or one for each purpose
      ('by_purpose'); '' for a family without such layers.
    attention_gate: whether a sigmoid of what `q_proj` returns beside queries
      is a factor on each head's result.
    norm_offset: what a norm adds to its weight.
    choice_bias: whether a softmax router has a bias that corrects the load.
    norm_after_rope: whether queries and keys are normalised after they rotate.
    constants: fields of `ModelConfig` -> what they are in every model.
    files_stack: whether files hold the experts of a layer as one tensor.
    file_axes: end of a tensor's name here -> axes of one element that it has
      in files before its own.
    rope_alpha: whether dynamic rope with an `alpha` has a base that is fixed.
    activation: of gates, as `PrecisionPolicy.activation` names it.
    separate_norms: whether shared experts and routed ones have norms each of
      what they read and return, and the router one of its own.
    scaled_embeddings: whether the root of `hidden_size` is a factor on them.
    stated: keys that a config.json must have -> the value computed here.
    unstated: the same keys -> what their absence means, which is not computed.
    holder_ties: whether a holder that is silent ties head and embeddings.
    ends_full: whether the last layer is the last kind of the pattern always.
    rope_by_kind: whether `rope_parameters` has a form for each kind of layer.
    indexer_interleave: whether pairs that rotate in an indexer are neighbours.
    per_layer: keys that may list a number for each layer, all the same.
  """

  architecture: str
  attention: str
  router: str
  defaults: Mapping[str, Any]
  other_architectures: tuple[str, ...] = ()
  up_offset: float = 0.0
  sinks: bool = False
  group_best: int = 2
  normalizes_one: bool = True
  qk_norm: str = ''
  latent_eps: float = 1e-6
  block: str = 'mlp'
  gate: str = 'gate'
  by_turns: bool = False
  experts: tuple[str, str, str] = ('gate_proj', 'up_proj', 'down_proj')
  shared: str = 'shared_experts'
  shared_gate: str = ''
  renamed: Mapping[str, str] = dataclasses.field(default_factory=dict)
  also_named: Mapping[str, tuple[str, ...]] = dataclasses.field(
    default_factory=dict
  )
  fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  unused: tuple[str, ...] = ()
  rotary_width: str = ''
  entries: Mapping[str, Any] = dataclasses.field(
    default_factory=lambda: {'layer_types': 'full_attention'}
  )
  rope_unused: tuple[str, ...] = ()
  holder: str = ''
  read_as: str = ''
  file_names: Mapping[str, str] = dataclasses.field(default_factory=dict)
  saved_names: Mapping[str, str] = dataclasses.field(default_factory=dict)
  stacked_in_out: bool = False
  ignored: tuple[str, ...] = ()
  layer_pattern: tuple[str, ...] = ()
  window_layers: str = ''
  layer_interval: str = ''
  linear_attention: str = ''
  attention_gate: bool = False
  norm_offset: float = 0.0
  choice_bias: bool = False
  norm_after_rope: bool = False
  constants: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  files_stack: bool = False
  file_axes: Mapping[str, int] = dataclasses.field(default_factory=dict)
  rope_alpha: bool = False
  activation: str = 'swiglu'
  separate_norms: bool = False
  scaled_embeddings: bool = False
  stated: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  unstated: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  holder_ties: bool = False
  ends_full: bool = False
  rope_by_kind: bool = False
  indexer_interleave: bool = False
  per_layer: tuple[str, ...] = ()

  @property
  def is_launched(self) -> bool:
    """Whether the megakernel has all that its experts compute."""
    return not self.by_turns and self.activation == 'swiglu'


def _tuples(value: Any) -> Any:
  return tuple(value) if isinstance(value, list) else value


def _family(
  row: dict[str, Any], common: Mapping[str, Any], families: Mapping[str, Family]
) -> Family:
  """Returns the family of one table; `families` are those of earlier tables."""
  if like := row.pop('like', ''):
    changes = {name: _tuples(value) for name, value in row.items()}
    base_names = dict(families[like].file_names)
    changes['file_names'] = base_names | row.get('file_names', {})
    return dataclasses.replace(families[like], **changes)
  base = row.pop('defaults_of', '')
  start = families[base].defaults if base else common
  removed_names = row.pop('without', ())
  defaults_and_null = {**start, **row.pop('defaults')}
  defaults = {
    name: None if value == 'null' else _tuples(value)
    for name, value in defaults_and_null.items()
    if name not in removed_names
  }
  aliases = row.pop('also_named', {})
  return Family(
    **{name: _tuples(value) for name, value in row.items()},
    defaults=defaults,
    also_named={name: tuple(names) for name, names in aliases.items()},
  )


def _read() -> dict[str, Family]:
  rows = dict(_TABLES)
  common = rows.pop('common')
  del rows['without_effect']
  families: dict[str, Family] = {}
  for name, row in rows.items():
    families[name] = _family(row, common, families)
  return families


_TABLES = tomllib.loads(_FILE.read_text())
FAMILIES = _read()
# Keys of any family that change no number: with any value; with one.
UNUSED: tuple[str, ...] = tuple(_TABLES['without_effect']['any_value'])
FIXED: Mapping[str, Any] = _TABLES['without_effect']['values']


def check_type(model_type: Any) -> str:
  """Returns a key of `FAMILIES`.

  Raises:
    ValueError: it is none.
  """
  if model_type not in FAMILIES:
    raise ValueError(
      f'model_type: {messages.refuse_choice(FAMILIES, model_type)}'
    )
  return model_type


def unwrap(fields: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the contents of config.json, or of the text's in it."""
  families = {f.holder: name for name, f in FAMILIES.items() if f.holder}
  if fields.get('model_type') not in families:
    return dict(fields)
  text = fields.get('text_config')
  if not isinstance(text, Mapping):
    raise ValueError(f'text_config: expected an object, got {text!r}')
  # The head is the whole model's, and names of tensors are.
  model_type = families[fields['model_type']]
  ties = FAMILIES[model_type].holder_ties
  changes = dict(tie_word_embeddings=fields.get('tie_word_embeddings', ties))
  outer = ('dtype', 'torch_dtype', 'quantization_config', 'architectures')
  changes['model_type'] = model_type
  return {n: fields[n] for n in outer if n in fields} | dict(text) | changes
