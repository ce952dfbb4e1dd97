"""What a rank computes, keeps and sends for a unit of a decoder.

A unit is an embedding, a layer, an MTP head or the head, of one micro-batch.
Heads, dense blocks and vocabulary are split over the TP ranks; what a token
alone decides (norms, router, experts, down-projections of MLA) runs on each
rank's share of the tokens, so that experts are whole (TP ranks join EP).
"""

from collections.abc import Iterator
import dataclasses
from typing import Any

from hpmoe.backend_ascend.simulator import simulate
from hpmoe.backend_ascend.simulator.machines import machine as machine_lib
from hpmoe.backend_ascend.simulator.plan import decoder_sizes
from hpmoe.backend_ascend.simulator.plan import moe_layer

_B = 2  # bytes of bfloat16
# Flash attention: five products backward, where forward has two.
_CORE_BACKWARD = 2.5


@dataclasses.dataclass(frozen=True)
class Operator:
  """One operator, forward, of one rank.

  Attributes:
    name: of the operator.
    flops: of matrix products.
    bytes_moved: B between HBM and the cores.
    saved_bytes: B of its result that the backward pass reads.
    cheap: whether recomputation of cheap operators recomputes its result.
    backward: work of the backward pass divided by that of the forward pass.
    linear: whether its products may run in another element.
    routed: whether it is a part of the layer that the engine times.
  """

  name: str
  flops: float = 0.0
  bytes_moved: float = 0.0
  saved_bytes: float = 0.0
  cheap: bool = False
  backward: float = 2.0
  linear: bool = True
  routed: bool = False

  def to_json(self) -> dict[str, Any]:
    """Returns the fields under their names in reports."""
    names = dict(bytes_moved='moved', saved_bytes='kept')
    fields = dataclasses.asdict(self)
    return {names.get(n, n): value for n, value in fields.items()}

  def seconds(
    self, machine: machine_lib.Machine, element: str = 'bfloat16'
  ) -> float:
    """Returns s of the forward pass: at a peak, and its start."""
    if not (self.flops or self.bytes_moved):
      return 0.0
    return self._runs(machine, element) + machine['launch']

  def back(
    self, machine: machine_lib.Machine, element: str = 'bfloat16'
  ) -> float:
    """Returns s of the backward pass: a product has two, and two starts."""
    if self.routed or not (self.flops or self.bytes_moved):
      return 0.0
    starts = (2 if self.flops else 1) * machine['launch']
    return self.backward * self._runs(machine, element) + starts

  def _runs(self, machine, element: str) -> float:
    cube = simulate.ELEMENTS[element if self.linear else 'bfloat16'][1]
    rate = machine['aic'] * machine[cube] * machine['operator_efficiency']
    return max(self.flops / rate, self.bytes_moved / machine['hbm'])


@dataclasses.dataclass(frozen=True)
class Unit:
  """What one rank does for one micro-batch.

  Attributes:
    operators: in order, without those of routed experts.
    input: B that recomputation of all starts from.
    gathered: B that TP ranks have after each all-gather.
    scattered: B that they had before each reduce-scatter.
    routed: the layer of routed experts, or None.
    shared: parameters that each data-parallel rank has.
    experts: parameters of routed experts on this rank.
  """

  operators: tuple[Operator, ...]
  input: float
  gathered: tuple[float, ...] = ()
  scattered: tuple[float, ...] = ()
  routed: moe_layer.Layer | None = None
  shared: float = 0.0
  experts: float = 0.0


@dataclasses.dataclass(frozen=True)
class Share:
  """What of a model one rank has of a micro-batch.

  Attributes:
    model: sizes.
    sequence: tokens of a sequence.
    micro_batch: sequences.
    tp: tensor-parallel ranks.
    ep: data-parallel ranks that share experts.
    fused, exchange, nodes, element: as of `moe_layer.Layer`.
  """

  model: decoder_sizes.Model
  sequence: int
  micro_batch: int
  tp: int
  ep: int
  fused: bool = True
  exchange: str = 'flat'
  nodes: int = 0
  element: str = 'bfloat16'

  @property
  def tokens(self) -> int:
    """Of all TP ranks."""
    return self.sequence * self.micro_batch

  @property
  def own(self) -> int:
    """Of one TP rank."""
    return self.tokens // self.tp

  def unit(self, kind: str) -> Unit:
    """Returns a unit of `sizes`: embedding, dense, moe, mtp or head."""
    return _UNITS[kind](self)


def _product(name, rows, inputs, outputs, **options) -> Operator:
  return Operator(
    name,
    2.0 * rows * inputs * outputs,
    _B * (rows * inputs + inputs * outputs + rows * outputs),
    **{'saved_bytes': _B * rows * outputs} | options,
  )


def _rowwise(name: str, rows, width, rows_touched: int, **options) -> Operator:
  """Returns an operator that reads and writes `rows_touched` rows for a row."""
  return Operator(name, 0.0, _B * rows_touched * rows * width, **options)


def _norm(share: Share, name: str) -> Operator:
  size = _B * share.own * share.model.hidden
  return _rowwise(
    name, share.own, share.model.hidden, 2, saved_bytes=size, cheap=True
  )


def _finish_block(share: Share) -> list[Operator]:
  """Returns the operators that end a block with the next block's input."""
  width = share.model.hidden
  size = _B * share.own * width
  out = [_rowwise('residual', share.own, width, 3, saved_bytes=size)]
  if share.model.sandwich:
    out.insert(0, _norm(share, 'norm after'))
  return out


def _core(share: Share) -> Operator:
  model, heads = share.model, share.model.heads / share.tp
  wide = model.qk_dim + model.v_dim
  return Operator(
    'attention',
    2.0 * share.tokens * share.sequence / 2 * heads * wide,
    _B * share.tokens * heads * 2 * wide,
    saved_bytes=_B * share.tokens * heads * model.v_dim,
    backward=_CORE_BACKWARD,
    linear=False,
  )


def _mla(share: Share) -> Iterator[Operator]:
  model, all_tokens = share.model, share.tokens
  heads = model.heads // share.tp
  nope = model.qk_dim - model.rope_dim
  if model.q_rank:
    yield _product('query down', share.own, model.hidden, model.q_rank)
  latent = model.kv_rank + model.rope_dim
  yield _product('key value down', share.own, model.hidden, latent)
  yield _product(
    'query up',
    all_tokens,
    model.q_rank or model.hidden,
    heads * model.qk_dim,
    cheap=True,
  )
  yield _product(
    'key value up',
    all_tokens,
    model.kv_rank,
    heads * (nope + model.v_dim),
    saved_bytes=_B * all_tokens * heads * (model.qk_dim + model.v_dim),
    cheap=True,
  )
  yield _rowwise('rotate', all_tokens, heads * model.rope_dim, 4)


def _gqa(share: Share) -> Iterator[Operator]:
  model = share.model
  heads = model.heads // share.tp
  keys = max(1, model.kv_heads // share.tp)
  wide = heads * model.qk_dim + keys * (model.qk_dim + model.v_dim)
  yield _product('query key value', share.tokens, model.hidden, wide)
  yield _rowwise('rotate', share.tokens, (heads + keys) * model.qk_dim, 2)


def attention(share: Share) -> tuple[Operator, ...]:
  """Returns norm, projections, core and residual of a rank."""
  model = share.model
  heads = model.heads // share.tp
  projected = _mla(share) if model.kv_rank else _gqa(share)
  return (
    _norm(share, 'norm'),
    *projected,
    _core(share),
    _product(
      'out', share.tokens, heads * model.v_dim, model.hidden, saved_bytes=0.0
    ),
    *_finish_block(share),
  )


def _gathered(share: Share) -> float:
  """Returns B of what TP ranks gather before attention."""
  model = share.model
  width = model.hidden
  if model.kv_rank and model.q_rank:  # Latents are narrower than rows.
    width = model.q_rank + model.kv_rank + model.rope_dim
  return float(_B * share.tokens * width)


def _block(share: Share, rows: int, width: int) -> tuple[Operator, ...]:
  hidden = share.model.hidden
  return (
    _product('gate up', rows, hidden, 2 * width),
    _rowwise(
      'swiglu', rows, width, 3, saved_bytes=_B * rows * width, cheap=True
    ),
    _product('down', rows, width, hidden, saved_bytes=0.0),
  )


def _dense(share: Share) -> Unit:
  model, part = share.model, share.model.parameters()
  whole = float(_B * share.tokens * model.hidden)
  return Unit(
    (
      *attention(share),
      _norm(share, 'norm'),
      *_block(share, share.tokens, model.dense_width // share.tp),
      *_finish_block(share),
    ),
    whole / share.tp,
    (_gathered(share), whole),
    (whole, whole),
    shared=part['attention'] / share.tp
    + part['norms']
    + part['dense'] / share.tp,
  )


def _routed(share: Share) -> Iterator[Operator]:
  """Yields what routed experts keep; the engine says what they cost."""
  model = share.model
  rows = share.own * model.top_k
  size = _B * rows * model.hidden
  yield Operator('expert rows', saved_bytes=size, routed=True)
  yield Operator(
    'expert gate up',
    saved_bytes=_B * rows * 2 * model.expert_width,
    routed=True,
  )
  yield Operator(
    'expert swiglu',
    0.0,
    _B * 3 * rows * model.expert_width,
    _B * rows * model.expert_width,
    cheap=True,
    routed=True,
  )
  yield Operator('returned rows', saved_bytes=size, routed=True)


def _moe(share: Share) -> Unit:
  model, part = share.model, share.model.parameters()
  whole = float(_B * share.tokens * model.hidden)
  block = _block(share, share.own, model.shared_width)
  return Unit(
    (
      *attention(share),
      _norm(share, 'norm'),
      _product(
        'router', share.own, model.hidden, model.experts, saved_bytes=0.0
      ),
      *(block if model.shared_width else ()),
      *_routed(share),
      *_finish_block(share),
    ),
    whole / share.tp,
    (_gathered(share),),
    (whole,),
    routed=moe_layer.Layer(
      model.experts,
      model.top_k,
      model.hidden,
      model.expert_width,
      share.tp * share.ep,
      share.own,
      share.fused,
      share.exchange,
      share.nodes,
      share.element,
    ),
    shared=part['attention'] / share.tp
    + part['norms']
    + part['router']
    + part['shared'],
    experts=model.experts * part['expert'] / (share.tp * share.ep),
  )


def _embedding(share: Share) -> Unit:
  model, part = share.model, share.model.parameters()
  whole = float(_B * share.tokens * model.hidden)
  look_up = _rowwise('embedding', share.tokens, model.hidden, 2, backward=1.0)
  return Unit(
    (look_up,),
    0.0,
    scattered=(whole,),
    shared=part['embedding'] / share.tp,
  )


def _head(share: Share) -> Unit:
  model, part = share.model, share.model.parameters()
  whole = float(_B * share.tokens * model.hidden)
  logits = share.tokens * model.vocabulary / share.tp
  return Unit(
    (
      _norm(share, 'norm'),
      _product(
        'logits',
        share.tokens,
        model.hidden,
        model.vocabulary / share.tp,
        saved_bytes=0.0,
      ),
      # Read twice in float32 and written once, for the softmax.
      Operator('loss', 0.0, 12.0 * logits, 4.0 * logits, backward=1.0),
    ),
    whole / share.tp,
    gathered=(whole,),
    shared=part['head'] / share.tp,
  )


def _mtp(share: Share) -> Unit:
  model, part = share.model, share.model.parameters()
  layer, head = _moe(share), _head(share)
  join = _product('join', share.own, 2 * model.hidden, model.hidden)
  return dataclasses.replace(
    layer,
    operators=(join, *layer.operators, *head.operators),
    gathered=layer.gathered + head.gathered,
    shared=layer.shared + part['mtp'],
  )


_UNITS = {
  decoder_sizes.EMBEDDING: _embedding,
  decoder_sizes.DENSE: _dense,
  decoder_sizes.MOE: _moe,
  decoder_sizes.MTP: _mtp,
  decoder_sizes.HEAD: _head,
}
