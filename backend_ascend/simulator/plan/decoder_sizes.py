"""Sizes of a whole decoder, and its parameters counted part by part."""

from collections.abc import Mapping
import dataclasses

# Units that a pipeline deals out, in the order of a model's.
EMBEDDING, DENSE, MOE, MTP, HEAD = 'embedding', 'dense', 'moe', 'mtp', 'head'
KINDS = (EMBEDDING, DENSE, MOE, MTP, HEAD)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
  """A decoder; sizes in elements.

  Attributes:
    name: as told.
    layers: decoder layers.
    dense: numbers of the layers without experts, from 0.
    hidden: D.
    vocabulary: tokens.
    heads: of queries.
    kv_heads: of keys and values; of MLA as many as `heads`.
    qk_dim: width of a query and of a key.
    v_dim: width of a value.
    q_rank: width of compressed queries; 0: not compressed.
    kv_rank: width of compressed keys and values; 0: grouped queries (GQA).
    rope_dim: of MLA, width of the one key that all heads share.
    dense_width: hidden width of a dense feed-forward block.
    experts: E.
    top_k: K.
    expert_width: F.
    shared_width: of what every token goes to; 0: there is none.
    mtp: heads that predict one token further, a layer and a product each.
    tied: whether embedding and head are one weight.
    sandwich: whether a layer also normalises what it adds.

  Raises:
    ValueError: a size is out of range; names it.
  """

  name: str
  layers: int
  hidden: int
  vocabulary: int
  heads: int
  kv_heads: int
  qk_dim: int
  v_dim: int
  experts: int
  top_k: int
  expert_width: int
  dense: tuple[int, ...] = ()
  dense_width: int = 0
  q_rank: int = 0
  kv_rank: int = 0
  rope_dim: int = 0
  shared_width: int = 0
  mtp: int = 0
  tied: bool = False
  sandwich: bool = False

  def __post_init__(self):
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if field.type not in (int, 'int') or isinstance(value, bool):
        continue
      minimum = 1 if field.default is dataclasses.MISSING else 0
      if not isinstance(value, int) or value < minimum:
        raise ValueError(
          f'{field.name}: expected an integer of at least {minimum}, '
          f'got {value!r}'
        )
    if self.top_k > self.experts:
      raise ValueError(
        f'top_k: expected at most experts={self.experts}, got {self.top_k}'
      )
    if self.dense and (max(self.dense) >= self.layers or not self.dense_width):
      raise ValueError(
        f'dense: expected numbers below layers={self.layers} and dense_width, '
        f'got {self.dense} and {self.dense_width}'
      )

  def units(self) -> tuple[str, ...]:
    """Returns the units that a pipeline divides into chunks, in order."""
    dense = frozenset(self.dense)
    layers = (DENSE if i in dense else MOE for i in range(self.layers))
    return (EMBEDDING, *layers, *(MTP for _ in range(self.mtp)), HEAD)

  def parameters(self) -> Mapping[str, int]:
    """Returns parameters by part, of one layer, block or expert each."""
    width = self.hidden
    gate_up_down = 3 * width
    return dict(
      attention=self._attention(),
      norms=(4 if self.sandwich else 2) * width,
      dense=gate_up_down * self.dense_width,
      router=width * self.experts,
      expert=gate_up_down * self.expert_width,
      shared=gate_up_down * self.shared_width,
      embedding=width * self.vocabulary,
      head=0 if self.tied else width * self.vocabulary,
      mtp=2 * width * width,
    )

  def _attention(self) -> int:
    width, heads = self.hidden, self.heads
    queries, out = heads * self.qk_dim, heads * self.v_dim * width
    asks = width * queries
    if self.q_rank:
      asks = self.q_rank * (width + queries + 1)
    if not self.kv_rank:
      return asks + width * self.kv_heads * (self.qk_dim + self.v_dim) + out
    nope = self.qk_dim - self.rope_dim
    down = width * (self.kv_rank + self.rope_dim) + self.kv_rank
    return asks + down + self.kv_rank * heads * (nope + self.v_dim) + out

  def count(self, experts: int | None = None) -> int:
    """Returns parameters of the model, without MTP heads.

    Args:
      experts: that a layer is counted with; None: all of them.
    """
    part = self.parameters()
    moe = self.layers - len(self.dense)
    experts_counted = self.experts if experts is None else experts
    return (
      self.layers * (part['attention'] + part['norms'])
      + len(self.dense) * part['dense']
      + moe
      * (part['router'] + part['shared'] + experts_counted * part['expert'])
      + part['embedding']
      + part['head']
    )

  def active(self) -> int:
    """Returns parameters that a token is multiplied with: no embedding."""
    part = self.parameters()
    spare = part['head'] and part['embedding']
    return self.count(self.top_k) - spare

  def flops(self, sequence: int) -> float:
    """Returns operations of a token, forward and backward, as MFU counts.

    Six for each active parameter, MTP heads not counted, and causal attention
    over half of the sequence.
    """
    pairs = self.layers * self.heads * (self.qk_dim + self.v_dim)
    return 6.0 * self.active() + 6.0 * pairs * sequence / 2
