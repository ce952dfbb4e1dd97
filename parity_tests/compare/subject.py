"""The common inputs of both sides: weights, tokens, ranks."""

from collections.abc import Mapping
import dataclasses
import pathlib

import numpy as np

from hpmoe.models import config as config_lib
from hpmoe.models import init
from hpmoe.models import parameters
from hpmoe.models import routed as routed_lib
from hpmoe.models.checkpoint import convert
from hpmoe.models.train import text as text_lib
from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import precision


@dataclasses.dataclass(frozen=True)
class Subject:
  """A model with its weights and tokens.

  Attributes:
    name: the user's name for the model.
    config: sizes and options.
    params: by the names of `parameters.parameter_shapes`, in their dtypes.
    tokens: `[B, S]` int32.
    ranks: R, among which a layer's tokens and experts are divided.
    text: `[N]` tokens of later batches; None: there are none.
    seed: of the position in the text.
  """

  name: str
  config: config_lib.ModelConfig
  params: Mapping[str, np.ndarray]
  tokens: at.Int32[np.ndarray, 'B S']
  ranks: int = 1
  text: at.Int32[np.ndarray, 'N'] | None = None
  seed: int = 0

  def at_step(self, step: int) -> 'Subject':
    """Returns the subject with the batch of a training step."""
    assert self.text is not None
    batch, sequence = self.tokens.shape
    read = text_lib.batch(self.text, sequence, batch, self.seed, step)
    return dataclasses.replace(self, tokens=read[:, :-1])

  @property
  def mtp(self) -> bool:
    """Whether the model has a head that predicts one token further."""
    return bool(self.config.num_nextn_predict_layers)

  @property
  def moe_layers(self) -> tuple[int, ...]:
    """Layers with routed experts in the order in which they run."""
    heads = parameters.mtp_layers(self.config)
    return (*self.config.moe_layers(), *heads)

  @property
  def trainable(self) -> tuple[str, ...]:
    """Parameters that have a gradient."""
    return tuple(n for n in self.params if parameters.has_gradient(n))

  def experts(self, layer: int) -> dict[str, str]:
    """Returns the parameters of a layer's experts, by their names there."""
    prefix = parameters.experts_prefix(self.config, layer)
    names = {name: f'{prefix}{name}' for name in parameters.OF_EXPERTS}
    return {name: full for name, full in names.items() if full in self.params}

  @property
  def activation(self) -> str:
    """The activation of its experts, as `precision.activation_of` reads it."""
    plain = precision.PrecisionPolicy()
    return routed_lib.policy_of_model(plain, self.config).form

  def tap_shapes(self, layer: int) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of a layer's recorded gradients, `dy` among them."""
    batch, count = self.tokens.shape
    count -= layer >= self.config.num_hidden_layers
    tokens = batch * count // self.ranks
    rows = (self.ranks, tokens, self.config.hidden_size)
    weights = (self.ranks, tokens, self.config.num_experts_per_tok)
    return dict(dx=rows, d_topk_weights=weights, dy=rows)

  def flow_shapes(self) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of modules' outputs, by module."""
    batch, count = self.tokens.shape
    width, last = self.config.hidden_size, self.config.num_hidden_layers
    names = [f'model.layers.{layer}' for layer in range(last)]
    names = ['model.embed_tokens', *names, 'model.norm']
    further = [f'model.layers.{last}.eh_proj', f'model.layers.{last}']
    shapes: dict[str, tuple[int, ...]]
    shapes = dict.fromkeys(names, (batch, count, width))
    if self.mtp:
      shapes |= dict.fromkeys(further, (batch, count - 1, width))
    return shapes


def load(
  model: str,
  text: str | None = None,
  seed: int = 0,
  batch: int = 2,
  sequence: int = 32,
  ranks: int = 1,
  dtype: str | None = None,
) -> Subject:
  """Returns a model and a batch of text in its tokens, or bytes.

  Args:
    model: name of a configuration or path of a config.json, which gets weights
      of `seed`; or a folder with weights, see `convert.read`.
    text: file or folder of text, see `text.documents`; None: the text in this
      package.
    seed: of the weights, and of the position in the text.
    batch: B.
    sequence: S, tokens.
    ranks: R.
    dtype: of the weights; None for that of the configuration.

  Raises:
    OSError: a file cannot be read.
    ValueError: an argument or a file is wrong; names it.
  """
  for name, value, minimum in (('batch', batch, 1), ('sequence', sequence, 3)):
    if value < minimum:
      raise ValueError(f'{name}: expected at least {minimum}, got {value}')
  if pathlib.Path(model).is_dir():
    weights = convert.read(model, dtype)
    config, params = weights.config, weights.load()
  else:
    config = config_lib.load(model)
    params = init.init(config, seed, dtype)
  if not config.moe_layers():
    raise ValueError('model: expected one with routed experts, got none')
  encoding = text_lib.encoding_of(model, config)
  tokens = text_lib.read(text, encoding).tokens
  read = text_lib.batch(tokens, sequence, batch, seed, 0)
  subject = Subject(model, config, params, read[:, :-1], ranks, tokens, seed)
  counts = [batch * sequence, config.num_experts]
  counts += [batch * (sequence - 1)] * subject.mtp
  if ranks < 1 or any(count % ranks for count in counts):
    raise ValueError(
      f'ranks: expected a divisor of {counts} tokens and experts, got {ranks}'
    )
  return subject
