"""Shape of one expert-parallel MoE layer, as data."""

import dataclasses
import operator

_MAX_INT32 = 2**31 - 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class MoEConfig:
  """Sizes of one MoE layer under expert parallelism.

  Attributes:
    num_ranks: R, expert-parallel ranks.
    num_tokens: T, tokens of ONE rank.
    num_experts: E, experts of the whole layer; a multiple of R.
    top_k: K, experts per token.
    d_model: D, model width.
    d_ff: F, expert hidden width.
    capacity: N, routed rows one rank can hold; None means lossless, that is
      R * T * min(K, L) rows.
    bias: whether both expert GEMMs add a bias, `b_gate_up` and `b_down`.
    d_shared: S, hidden width of the shared experts, which every token goes to,
      as one MLP (n of width S / n are one of width S); 0: there are none.
    sublayer: whether it is the part between two activations instead of the
      layer: `activation` is the input; then come the second GEMM, the sum y, an
      RMS norm from y to x, and the first GEMM, which returns `gate_up`.  With
      E = K = R that is GEMM + reduce-scatter, norm, all-gather + GEMM.

  Raises:
    ValueError: a size is not positive, R does not divide E, K > E, or slots,
      rows or columns are more than int32 can count.
  """

  num_ranks: int
  num_tokens: int
  num_experts: int
  top_k: int
  d_model: int
  d_ff: int
  capacity: int | None = None
  bias: bool = False
  d_shared: int = 0
  sublayer: bool = False

  def __post_init__(self):
    self._check_sizes()
    self._check_addresses()

  def _check_sizes(self):
    for name in ('bias', 'sublayer'):
      value = getattr(self, name)
      if not isinstance(value, bool):
        raise ValueError(f'{name}: expected True or False, got {value!r}')
    if self.sublayer and (self.bias or self.d_shared):
      raise ValueError('sublayer: expected one without biases, shared experts')
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if field.name in ('bias', 'sublayer'):
        continue
      if field.name == 'capacity' and value is None:
        continue
      minimum = int(field.name != 'd_shared')
      if not hasattr(value, '__index__') or value < minimum:
        kind = 'a positive integer' if minimum else 'an integer, 0 for none'
        raise ValueError(f'{field.name}: expected {kind}, got {value!r}')
      # A numpy integer would wrap where sizes are multiplied.
      object.__setattr__(self, field.name, operator.index(value))
    if self.num_experts % self.num_ranks:
      raise ValueError(
        'num_ranks: expected a divisor of num_experts='
        f'{self.num_experts}, got {self.num_ranks}'
      )
    if self.top_k > self.num_experts:
      raise ValueError(
        f'top_k: expected at most num_experts={self.num_experts}, '
        f'got {self.top_k}'
      )

  def _check_addresses(self):
    # Slots, rows and columns are counted in int32, in arrays and in images.
    r, t, e, k = self.num_ranks, self.num_tokens, self.num_experts, self.top_k
    for name, formula, size in (
      ('num_tokens', 'R * T * K', r * t * k),
      ('num_experts', 'R * E', r * e),
      ('d_model', 'D', self.d_model),
      ('d_ff', '2 * F', 2 * self.d_ff),
      ('d_shared', '2 * S', 2 * self.d_shared),
      ('capacity', 'N', self.num_rows),
    ):
      if size > _MAX_INT32:
        raise ValueError(
          f'{name}: expected {formula} of at most {_MAX_INT32}, which int32 '
          f'can address, got {size}'
        )

  @property
  def experts_per_rank(self) -> int:
    """L = E / R."""
    return self.num_experts // self.num_ranks

  @property
  def num_rows(self) -> int:
    """N, routed rows one rank can hold."""
    if self.capacity is not None:
      return self.capacity
    return (
      self.num_ranks * self.num_tokens * min(self.top_k, self.experts_per_rank)
    )

  def dims(self) -> dict[str, int]:
    """Returns the letters of the notation table with their sizes."""
    return dict(
      R=self.num_ranks,
      T=self.num_tokens,
      E=self.num_experts,
      L=self.experts_per_rank,
      K=self.top_k,
      D=self.d_model,
      F=self.d_ff,
      N=self.num_rows,
      S=self.d_shared,
    )

  def shared(self) -> 'MoEConfig':
    """Returns the layer that the shared experts are, see `tensors.as_routed`.

    It has one expert on each rank, to which all tokens of the rank go.
    """
    return MoEConfig(
      num_ranks=self.num_ranks,
      num_tokens=self.num_tokens,
      num_experts=self.num_ranks,
      top_k=1,
      d_model=self.d_model,
      d_ff=self.d_shared,
      capacity=self.num_tokens,
    )
