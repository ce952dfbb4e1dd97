"""The same layer dealt in another way: what must give a token the same bits.

A variant says of each token, slot and expert which one of the base layer it is.
All else follows: its inputs, and where a result of the base must stand in it.
"""

from collections.abc import Callable, Iterator, Mapping
import dataclasses
import functools

import numpy as np

from hpmoe.parity_tests.case import inputs as inputs_lib
from hpmoe.parity_tests.judge import oracle as oracle_lib
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import stable_random
from hpmoe.reference.contract import tensors

Arrays = Mapping[str, np.ndarray]

# What strangers hold: near the largest float16, so that a sum with one of them
# shows in any dtype.
_HUGE = 2.0**15
# Rows that a rank has room for, beyond those of the base.
_MORE_ROWS = 80


# First axis of a rank's weights of shared experts.
_OF_SHARED = ('D', 'S')


@dataclasses.dataclass(frozen=True)
class Variant:
  """A layer whose parts are those of another.

  Attributes:
    says: what is different, in words.
    tokens: `[R', T']` int, the flat token (rank * T + token) of the base.
    slots: `[K]`, or of each token `[R' T', K]`, int, the slot of the base.
    experts: `[E]` int, the expert of the base.
    strangers: `[R', T']` bool, tokens that share a base token's routing alone:
      x and dy are another's, and nobody compares what becomes of them.
    more_rows: how much larger the capacity is than it need be.
    threads: how many the candidate may use; None: as it likes.
  """

  says: str
  tokens: np.ndarray
  slots: np.ndarray
  experts: np.ndarray
  strangers: np.ndarray
  more_rows: int = 0
  threads: int | None = None

  def gather(self, base: np.ndarray) -> np.ndarray:
    """Returns `[R' T', K, ...]`, of `[R T, K, ...]` of the base."""
    tokens = self.tokens.reshape(-1, 1)
    return base[tokens, self.slots]


@dataclasses.dataclass(frozen=True)
class RoutedLayer:
  """A layer's tensors by token, slot, row and expert.

  Attributes:
    config: sizes.
    ids: `[R, T, K]` int32.
  """

  config: config_lib.MoEConfig
  ids: np.ndarray

  @functools.cached_property
  def plan(self) -> dict[str, np.ndarray]:
    """The oracle's."""
    policy = precision.PrecisionPolicy()
    return oracle_lib.Oracle(self.config, policy, dict(topk_ids=self.ids)).plan

  @property
  def rows(self) -> tuple[np.ndarray, np.ndarray]:
    """`[R T, K]` twice: rank and packed row of each slot, or -1."""
    owner = self.ids // self.config.experts_per_rank
    flat = (-1, self.config.top_k)
    return owner.reshape(flat), self.plan['row_of_slot'].reshape(flat)


@dataclasses.dataclass(frozen=True)
class Pair:
  """A base layer and a variant of it.

  Attributes:
    base: the layer.
    other: the variant's.
    variant: how they are related.
  """

  base: RoutedLayer
  other: RoutedLayer
  variant: Variant

  @property
  def is_whole(self) -> bool:
    """Whether each token is there once: sums over tokens are the same."""
    base, variant = self.base.config, self.variant
    everyone = np.arange(base.num_ranks * base.num_tokens)
    tokens = np.sort(variant.tokens, axis=None)
    return not variant.strangers.any() and np.array_equal(tokens, everyone)

  @property
  def keeps_ranks(self) -> bool:
    """Whether each rank has its tokens, and no others."""
    base, tokens = self.base.config, self.variant.tokens
    everyone = np.arange(base.num_ranks * base.num_tokens)
    everyone = everyone.reshape(base.num_ranks, base.num_tokens)
    return self.is_whole and np.array_equal(np.sort(tokens, axis=1), everyone)

  def map_tensor(self, name: str, array: np.ndarray) -> np.ndarray:
    """Returns a tensor of the base, rearranged as in the variant.

    Args:
      name: in `tensors.SPECS`, but no plan, or of codes; a sum over tokens is
        returned unchanged.
      array: the base's.

    Raises:
      ValueError: tokens change ranks whose weights are not the same.
    """
    config, other, variant = self.base.config, self.other.config, self.variant
    tokens = variant.tokens.reshape(-1)
    spec = tensors.SPECS.get(name)
    if spec in tensors.TOKEN_CODES:
      flat = array.reshape(-1, *array.shape[2:])
      return flat[tokens].reshape(*variant.tokens.shape, *array.shape[2:])
    if spec is None:  # codes, expert by expert
      flat = array.reshape(config.num_experts, *array.shape[2:])
      home = other.num_ranks, other.experts_per_rank
      return flat[variant.experts].reshape(*home, *array.shape[2:])
    axes, shape = spec.shape.split(), spec.dims(**other.dims())
    if axes[1] == 'L':
      flat = array.reshape(config.num_experts, *array.shape[2:])
      return flat[variant.experts].reshape(shape)
    if axes[1] in _OF_SHARED:
      if self.keeps_ranks:
        return array
      if (array != array[:1]).any():
        raise ValueError(
          f'{name}: expected the same on each rank, where tokens change ranks'
        )
      return np.broadcast_to(array[:1], shape)
    if axes[1] == 'T':
      flat = array.reshape(-1, *array.shape[2:])
      by_slot = axes[2:3] == ['K']
      return (variant.gather(flat) if by_slot else flat[tokens]).reshape(shape)
    out = np.zeros(shape, array.dtype)
    rank, row = map(variant.gather, self.base.rows)
    is_used = row >= 0
    places = tuple(a[is_used] for a in self.other.rows)
    out[places] = array[rank[is_used], row[is_used]]
    return out

  def compare_mask(self, name: str) -> np.ndarray | None:
    """Returns `[R', ...]` bool, the elements that must equal the base's.

    Returns None if there are none: sums over other tokens.
    """
    axes = tensors.SPECS[name].shape.split()
    shape = tensors.SPECS[name].dims(**self.other.config.dims())
    is_known = ~self.variant.strangers
    if axes[1] == 'L':
      return np.ones(shape, bool) if self.is_whole else None
    if axes[1] in _OF_SHARED:
      return np.ones(shape, bool) if self.keeps_ranks else None
    mask = np.zeros(shape, bool)
    if axes[1] == 'T':
      mask[is_known] = True
    else:
      rank, row = (a[is_known.reshape(-1)] for a in self.other.rows)
      mask[rank[row >= 0], row[row >= 0]] = True
    return mask


def pair(base: inputs_lib.LayerInputs, variant: Variant) -> Pair:
  """Returns a layer and its variant, whose capacity fits its rows.

  Args:
    base: inputs of the layer.
    variant: the change.
  """
  config, ids = base.config, base.arrays['topk_ids']
  flat = variant.gather(ids.reshape(-1, config.top_k))
  labels = np.argsort(variant.experts).astype(np.int32)
  variant_ids = np.where(flat < 0, flat, labels[flat])
  variant_ids = variant_ids.reshape(*variant.tokens.shape, -1)
  ranks, num_tokens = variant.tokens.shape
  local = config.num_experts // ranks
  owner = variant_ids[variant_ids >= 0] // local
  most_rows = int(np.bincount(owner, minlength=ranks).max())
  other = dataclasses.replace(
    config,
    num_ranks=ranks,
    num_tokens=num_tokens,
    # At least one row more than it needs, as cases have.
    capacity=(most_rows // 16 + 1) * 16 + variant.more_rows,
  )
  return Pair(
    RoutedLayer(config, ids), RoutedLayer(other, variant_ids), variant
  )


def inputs(base: inputs_lib.LayerInputs, pair: Pair) -> inputs_lib.LayerInputs:
  """Returns the inputs of the variant of a pair, from those of the base."""
  arrays = {}
  for name, array in base.arrays.items():
    if name == 'topk_ids':
      arrays[name] = pair.other.ids
    elif name in tensors.PLAN:
      arrays[name] = pair.other.plan[name]
    else:
      arrays[name] = pair.map_tensor(name, array)
  strange = pair.variant.strangers
  for name in {'x', 'dy'} & {*arrays} if strange.any() else ():
    huge = np.resize([_HUGE, -_HUGE / 2], arrays[name].shape[-1])
    arrays[name] = np.where(strange[..., None], huge, arrays[name]).astype(
      arrays[name].dtype
    )
  return dataclasses.replace(base, config=pair.other.config, arrays=arrays)


def as_it_is(config: config_lib.MoEConfig, says: str) -> Variant:
  """Returns the layer itself."""
  ranks, num = config.num_ranks, config.num_tokens
  return Variant(
    says,
    np.arange(ranks * num).reshape(ranks, num),
    np.arange(config.top_k),
    np.arange(config.num_experts),
    np.zeros((ranks, num), bool),
  )


def _select_tokens(
  base: Variant, says: str, columns: np.ndarray | slice
) -> Variant:
  """Returns the variant with some tokens of each rank."""
  tokens = base.tokens[:, columns]
  return dataclasses.replace(
    base, says=says, tokens=tokens, strangers=np.zeros(tokens.shape, bool)
  )


def _permutation(property_name: str, seed: int, size: int) -> np.ndarray:
  scores = stable_random.normal(
    stable_random.seed_of(property_name, seed), (size,)
  )
  return np.argsort(scores, kind='stable')


def _runs(config: config_lib.MoEConfig, seed: int) -> Iterator[Variant]:
  del seed
  for run in (2, 3):
    yield as_it_is(config, f'run {run}')


def _batches(config: config_lib.MoEConfig, seed: int) -> Iterator[Variant]:
  del seed
  base, num = as_it_is(config, ''), config.num_tokens
  for token in sorted({0, num // 2, num - 1}) if num > 1 else ():
    yield _select_tokens(base, f'token {token} of each rank alone', [token])
  if num > 2:
    yield _select_tokens(base, 'the first half of each rank', slice(num // 2))
    yield _select_tokens(
      base, 'the second half of each rank', slice(num // 2, None)
    )
    yield _select_tokens(base, 'all but the first token', slice(1, None))


def _tokens(config: config_lib.MoEConfig, seed: int) -> Iterator[Variant]:
  base, num = as_it_is(config, ''), config.num_tokens
  if num > 1:
    yield _select_tokens(
      base, 'each rank, last token first', np.roll(range(num), 1)
    )
    yield _select_tokens(base, 'each rank backwards', slice(None, None, -1))
  order = _permutation('tokens', seed, config.num_ranks * num)
  tokens = order.reshape(base.tokens.shape)
  yield dataclasses.replace(base, says='any token on any rank', tokens=tokens)


def _experts(config: config_lib.MoEConfig, seed: int) -> Iterator[Variant]:
  base, num = as_it_is(config, ''), config.num_experts
  for says, order in (
    ('experts backwards', np.arange(num)[::-1]),
    ('any expert on any rank', _permutation('experts', seed, num)),
  ):
    yield dataclasses.replace(base, says=says, experts=order)


def _slots(config: config_lib.MoEConfig, seed: int) -> Iterator[Variant]:
  del seed
  if config.top_k > 1:
    base = as_it_is(config, 'slots backwards')
    yield dataclasses.replace(base, slots=base.slots[::-1])


def _ranks(config: config_lib.MoEConfig, seed: int) -> Iterator[Variant]:
  del seed
  base = as_it_is(config, '')
  everyone = base.tokens.reshape(-1)
  for ranks in (1, 2, 4, 8):
    even = not (config.num_experts % ranks or len(everyone) % ranks)
    if even and ranks != config.num_ranks:
      tokens = everyone.reshape(ranks, -1)
      strange = np.zeros(tokens.shape, bool)
      yield dataclasses.replace(
        base, says=f'R={ranks}', tokens=tokens, strangers=strange
      )


def _make_strangers(
  config: config_lib.MoEConfig, seed: int
) -> Iterator[Variant]:
  del seed
  base, num = as_it_is(config, ''), config.num_tokens
  token_indices = np.arange(num)
  for says, strange in (
    ('every second token is huge', token_indices % 2 == 1),
    ('all tokens but the first are huge', token_indices > 0),
  ):
    if strange.any():
      strangers = np.broadcast_to(strange, base.tokens.shape)
      yield dataclasses.replace(base, says=says, strangers=strangers)


def _padding(config: config_lib.MoEConfig, seed: int) -> Iterator[Variant]:
  del seed
  base, num = as_it_is(config, ''), config.num_tokens
  yield dataclasses.replace(
    base, says=f'{_MORE_ROWS} rows more room', more_rows=_MORE_ROWS
  )
  columns = np.concatenate([np.arange(num), np.arange(num)[:3]])
  padded = _select_tokens(
    base, f'{len(columns) - num} huge tokens at the end', columns
  )
  strange = np.broadcast_to(np.arange(len(columns)) >= num, padded.tokens.shape)
  yield dataclasses.replace(padded, strangers=strange)


def _threads(config: config_lib.MoEConfig, seed: int) -> Iterator[Variant]:
  del seed
  yield dataclasses.replace(as_it_is(config, 'one thread'), threads=1)


# Properties that a kernel may promise, with variants for a layer and a seed.
PROPERTIES: Mapping[
  str, Callable[[config_lib.MoEConfig, int], Iterator[Variant]]
] = {
  'run_to_run': _runs,  # the same call gives the same bits
  'batch': _batches,  # whatever else is in the batch, by number
  'tokens': _tokens,  # wherever a token stands
  'others': _make_strangers,  # whatever the other tokens hold
  'padding': _padding,  # whatever fills the batch or the buffers up
  'experts': _experts,  # whatever the experts are numbered
  'slots': _slots,  # in any order of a token's experts
  'ranks': _ranks,  # on any number of ranks
  'threads': _threads,  # with any number of threads
}
