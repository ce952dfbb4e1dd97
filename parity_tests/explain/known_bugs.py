"""The bugs that kernels are known to have, as changes of one tensor."""

from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses

import numpy as np

from hpmoe.reference.contract import storage
from hpmoe.reference.contract import tensors

# Returns a tensor `[R, ...]` as a kernel with a bug has it; None: it cannot.
Bug = Callable[[np.ndarray], np.ndarray | None]
# By stage and tensor that it reads: the bug in that tensor.
Bugs = Mapping[str, Mapping[str, Bug]]
# Blocks of a sum's depth.
_BLOCKS = (1, 8, 16, 32, 64, 128)


@dataclasses.dataclass(frozen=True)
class Change:
  """What a kernel may do to a tensor by mistake.

  Attributes:
    says: what happened to the tensor, in words.
    axes: axes that the tensor must have; '': any.
    bug: makes the mistake.
    look: where to look in the kernel, or ''.
  """

  says: str
  axes: str
  bug: Bug
  look: str = ''


def _require_even(bug: Bug) -> Bug:
  return lambda a: None if a.shape[-1] % 2 else bug(a)


def _swap_halves(a: np.ndarray) -> np.ndarray:
  return np.concatenate(np.split(a, 2, axis=-1)[::-1], axis=-1)


def _interleave(a: np.ndarray) -> np.ndarray:
  return np.stack(np.split(a, 2, axis=-1), axis=-1).reshape(a.shape)


def _deinterleave(a: np.ndarray) -> np.ndarray:
  return np.concatenate([a[..., ::2], a[..., 1::2]], axis=-1)


def _swap_neighbours(a: np.ndarray) -> np.ndarray:
  return a.reshape(*a.shape[:-1], -1, 2)[..., ::-1].reshape(a.shape)


def _transpose(a: np.ndarray) -> np.ndarray:
  """Returns `[K, N]` from what is stored as `[N, K]`."""
  *batch, rows, columns = a.shape
  return a.reshape(*batch, columns, rows).swapaxes(-1, -2)


def _shift(axis: int, step: int) -> Bug:
  return lambda a: np.roll(a, step, axis) if a.shape[axis] > 1 else None


def _shift_experts(step: int) -> Bug:
  def shifted(a: np.ndarray) -> np.ndarray:
    flat = a.reshape(-1, *a.shape[2:])
    return np.roll(flat, step, 0).reshape(a.shape)

  return shifted


def exchange_experts(first: int, second: int) -> Bug:
  """Returns the bug that a tensor has two global experts exchanged."""

  def exchange(a: np.ndarray) -> np.ndarray:
    flat = a.reshape(-1, *a.shape[2:]).copy()
    flat[[first, second]] = flat[[second, first]]
    return flat.reshape(a.shape)

  return exchange


def _pad_before_split(count: int, multiple: int) -> Bug:
  """Returns gate and up as halves of what was padded at its end.

  Args:
    count: columns that each half has too many; 0: up to a multiple.
    multiple: of what.
  """

  def padded(a: np.ndarray) -> np.ndarray | None:
    half = a.shape[-1] // 2
    extra = count or -half % multiple
    if not 0 < extra < half:
      return None
    gate, up = np.split(a, 2, axis=-1)
    zeros = np.zeros_like(up[..., :extra])
    return np.concatenate([gate, up[..., extra:], zeros], axis=-1)

  return padded


def _drop_half(is_up: bool) -> Bug:
  def drop(a: np.ndarray) -> np.ndarray:
    halves = np.split(a, 2, axis=-1)
    halves[is_up] = np.zeros_like(halves[is_up])
    return np.concatenate(halves, axis=-1)

  return drop


def _clamp(is_up: bool, limit: float) -> Bug:
  """Returns gate or up that is no larger than a limit, or up in size."""

  def clamp(a: np.ndarray) -> np.ndarray | None:
    halves = np.split(a, 2, axis=-1)
    half, ceiling = halves[is_up], a.dtype.type(limit)
    if not np.isfinite(ceiling) or not (np.abs(half) > ceiling).any():
      return None
    halves[is_up] = np.clip(half, -ceiling if is_up else None, ceiling)
    return np.concatenate(halves, axis=-1)

  return clamp


def _clamp_all(limit: float) -> Bug:
  def clamp(a: np.ndarray) -> np.ndarray | None:
    ceiling = a.dtype.type(limit)
    is_changed = np.isfinite(ceiling) and (np.abs(a) > ceiling).any()
    return np.clip(a, -ceiling, ceiling) if is_changed else None

  return clamp


def _round_weights(a: np.ndarray) -> np.ndarray:
  narrow = storage.FORMATS['bfloat16'].numpy
  return a.astype(narrow).astype(a.dtype)


def _scale_depth(block: int, last: bool, factor: int) -> Bug:
  block_slice = slice(-block, None) if last else slice(block)

  def cut(a: np.ndarray) -> np.ndarray | None:
    if a.shape[-1] <= block:
      return None
    scaled = a.copy()
    scaled[..., block_slice] *= factor
    return scaled

  return cut


_GATE_UP = 'which columns hold the gate: the first half, or every second one?'
EXPERT = 'which expert a tile reads'
COLUMNS = (
  Change(
    'had its column halves swapped',
    '2F',
    _require_even(_swap_halves),
    _GATE_UP,
  ),
  Change(
    'had its columns interleaved', '2F', _require_even(_interleave), _GATE_UP
  ),
  Change('had its columns read as interleaved', '2F', _deinterleave, _GATE_UP),
  Change(
    'had neighbouring columns swapped', '', _require_even(_swap_neighbours)
  ),
  Change('was shifted by one column', '', _shift(-1, 1)),
  Change('was shifted back by one column', '', _shift(-1, -1)),
)
_PAD = 'whether gate and up are padded each, or their concatenation'
HALVES = (
  Change('lacked its up half', '2F', _drop_half(True)),
  Change('lacked its gate half', '2F', _drop_half(False)),
)
PADDINGS = tuple(
  Change(
    f'was padded at its end{f" by {2 * count} columns" if count else ""} '
    'before it was split into gate and up',
    '2F',
    _pad_before_split(count, multiple),
    _PAD,
  )
  for count, multiple in (
    *((0, multiple) for multiple in (256, 128, 64, 32, 16)),
    *((count, 0) for count in (1, 2, 4, 8, 16, 32, 64, 128)),
  )
)
# Limits that kernels have: GPT-OSS's, of tables, of exp, of narrow dtypes.
_LIMITS = (6, 7, 10, 20, 30, 50, 60, 64, 80, 88, 100, 127, 448, 65504)
_SATURATION = 'a clamp, or a table that ends there: saturation'
CLAMPS = tuple(
  Change(
    f'had {"up" if is_up else "gate"} clamped to {"±" * is_up}{limit}',
    '2F',
    _clamp(is_up, limit),
    _SATURATION,
  )
  for limit in _LIMITS
  for is_up in (True, False)
)
_X_CLAMPS = tuple(
  Change(f'was clamped to ±{limit}', '', _clamp_all(limit), _SATURATION)
  for limit in (4, *_LIMITS)
)
ROUNDED = 'was rounded to bfloat16'
ROWS = (
  Change('was shifted by one row', '', _shift(-2, 1)),
  Change('was shifted back by one row', '', _shift(-2, -1)),
  Change('was that of the previous rank', '', _shift(0, 1)),
  Change('was that of the next rank', '', _shift(0, -1)),
)
WEIGHTS = (
  Change('was transposed', 'L', _transpose, 'its layout: [K, N] or [N, K]?'),
  Change('was that of the previous expert', 'L', _shift_experts(1), EXPERT),
  Change('was that of the next expert', 'L', _shift_experts(-1), EXPERT),
)
SCALES = 'how codes and scales are indexed'
_ADDITIONS = (
  Change('was left out', '', np.zeros_like),
  Change('was added twice', '', lambda a: a + a),
)
_BIASES = (*_ADDITIONS, *WEIGHTS[1:])
_ROUTING = (
  Change('was left out', 'R T K', np.ones_like),
  Change('was applied twice', 'R T K', np.square),
  Change('had its slots in reverse order', 'R T K', lambda a: a[..., ::-1]),
  Change("was the next token's", 'R T K', _shift(1, -1)),
  Change(ROUNDED, 'R T K', _round_weights),
)
DEPTH = tuple(
  Change(
    f'{"lacked" if factor == 0 else "had"} the {"last" if last else "first"} '
    f'{block} terms of its depth{"" if factor == 0 else " twice"}',
    '',
    _scale_depth(block, last, factor),
    'the loop over blocks of depth',
  )
  for block in _BLOCKS
  for last in (True, False)
  for factor in (0, 2)
)
DESTINATION = 'the row that a slot is sent to'
ZERO = Change('was zero', '', np.zeros_like)
GEMMS = {**tensors.GEMMS, **tensors.TRANSPOSED_GEMMS}
GEMMS |= {
  name: (read[0], read[1])
  for name, read in tensors.reads(tensors.EVERY_PART, 'combine').items()
  if tensors.AS_ROUTED.get(name) in GEMMS
}


def is_addend(stage: str, name: str) -> bool:
  """Says whether a stage adds a tensor to the rows of a token's slots."""
  of_others = tensors.SPECS[name].part == 'shared' or name == 'd_router_in'
  return of_others and stage in ('y', 'dx')


def list_read_changes(stage: str, name: str) -> tuple[Change, ...]:
  left, right = GEMMS.get(stage, ('', ''))
  if name == 'topk_weights':
    return _ROUTING
  if tensors.SPECS[name].part == 'bias':
    return _BIASES
  if is_addend(stage, name):
    return _ADDITIONS
  if name == left:
    clamps = _X_CLAMPS if tensors.SPECS[name].role != 'compute' else ()
    return (*COLUMNS, *ROWS, *HALVES, *DEPTH, *clamps)
  if name == right:
    return (*WEIGHTS, *COLUMNS[:3])
  inner = (*PADDINGS, *CLAMPS) if name.endswith('gate_up') else ()
  return (*COLUMNS, *ROWS, *inner)


def select_changes(name: str, changes: Sequence[Change]) -> Iterator[Change]:
  """Yields the changes that a tensor's axes allow."""
  shape = tensors.SPECS[name].shape.replace('2S', '2F')
  for change in changes:
    if not change.axes or f' {change.axes} ' in f' {shape} ':
      yield change
