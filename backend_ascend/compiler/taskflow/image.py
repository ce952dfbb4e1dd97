"""Task image: serialises a placed flow to one blob, and reads one back."""

import functools
from typing import TYPE_CHECKING, Any
import zlib

import numpy as np

from hpmoe.backend_ascend import _native
from hpmoe.backend_ascend.compiler.taskflow import flow as flow_lib
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import precision

_CRC_OFFSET = layout.HEADER.fields['crc32'][1]


_CONFIG = ('num_ranks', 'num_tokens', 'num_experts', 'top_k', 'd_model', 'd_ff')
_OPTIONS = (
  *('expert_capacity', 'row_block', 'col_block', 'put_rows', 'token_block'),
  *('num_aic', 'num_aiv', 'chain_rows'),
)
# Fields of the header that number names of the policy.
_POLICY = (
  ('dtype', 'storage', layout.DTYPES),
  ('placement', 'placement', precision.PLACEMENTS),
  ('activation', 'activation', precision.LAUNCHED_ACTIVATIONS),
  ('accumulation_order', 'accumulation_order', precision.ACCUMULATION_ORDERS),
)


def _align(offset: int) -> int:
  return -(-offset // layout.TABLE_ALIGN) * layout.TABLE_ALIGN


def checksum(blob) -> int:
  """Returns the CRC-32 of an image, its own field taken as zero."""
  view = memoryview(blob)
  crc = zlib.crc32(view[:_CRC_OFFSET])
  crc = zlib.crc32(bytes(4), crc)
  return zlib.crc32(view[_CRC_OFFSET + 4 :], crc)


def _header(flow: flow_lib.Flow) -> np.ndarray:
  config, policy, options = flow.config, flow.policy, flow.options
  header = np.zeros(1, layout.HEADER)
  for name in (*_CONFIG, 'num_rows'):
    header[name] = getattr(config, name)
  for name in _OPTIONS:
    header[name] = getattr(options, name)
  header['relay'] = options.relay
  header['magic'] = layout.MAGIC
  header['version'] = layout.VERSION
  header['direction'] = flow.direction
  header['span'] = config.sublayer
  if config.sublayer:
    header['epsilon'] = precision.EPSILONS.index(policy.epsilon)
  header['header_bytes'] = layout.HEADER.itemsize
  for field, name, names in _POLICY:
    header[field] = names.index(getattr(policy, name))
  forms = policy.quantised, policy.rows
  header['quantised'] = layout.QUANTISED.index(forms) + bool(policy.points)
  header['event_grain'] = granularity.EVENT_GRAINS.index(options.event_grain)
  return header


def serialize(flow: flow_lib.Flow) -> bytearray:
  """Returns the image of a placed flow.

  Raises:
    ValueError: the flow has tasks but no queues (it was not placed).
  """
  if len(flow.queue_tasks) != len(flow.tasks):
    raise ValueError(
      f'flow: expected a placed flow with {len(flow.tasks)} queued tasks, '
      f'got {len(flow.queue_tasks)}'
    )
  header = _header(flow)
  end = layout.HEADER.itemsize
  for name in layout.TABLES:
    table = getattr(flow, name)
    offset = _align(end)
    header[name]['offset'], header[name]['count'] = offset, len(table)
    end = offset + table.nbytes
  header['total_bytes'] = end
  blob = bytearray(end)
  for name, dtype in layout.TABLES.items():
    table = getattr(flow, name)
    offset = int(header[name]['offset'][0])
    np.frombuffer(blob, dtype, len(table), offset)[:] = table
  blob[: layout.HEADER.itemsize] = header.tobytes()
  return seal(blob)


def seal(blob: bytearray) -> bytearray:
  """Writes the checksum into the blob and returns it."""
  crc = checksum(blob)
  blob[_CRC_OFFSET : _CRC_OFFSET + 4] = crc.to_bytes(4, 'little')
  return blob


def header(blob) -> np.void:
  """Returns the header of an image's bytes, as a view of them."""
  return np.frombuffer(blob, layout.HEADER, 1)[0]


def tables(blob) -> dict[str, np.ndarray]:
  """Returns the tables of an image's bytes, by name, as views of them."""
  places = header(blob)
  return {
    name: np.frombuffer(
      blob, dtype, int(places[name]['count']), int(places[name]['offset'])
    )
    for name, dtype in layout.TABLES.items()
  }


class Image(_native.Image):
  """A loaded image: its bytes, checked once, and what they say.

  A buffer of its bytes, which nothing changes; processes exchange it as such.

  Attributes:
    header: scalar of layout.HEADER.
    direction: which pass it computes.
    config: sizes of the layer.
    policy: precision policy.
    options: granularity, resolved.
    tables: name to table, names of layout.TABLES.
  """

  if TYPE_CHECKING:

    def __buffer__(self, flags: int, /) -> memoryview: ...

  def __reduce__(self):
    return type(self), (bytes(self),)

  # Views of this object that it held would keep it forever: an array is unknown
  # to the garbage collector.
  @property
  def tables(self) -> dict[str, np.ndarray]:
    return tables(self)

  @functools.cached_property
  def header(self) -> np.void:
    return header(self).copy()

  @functools.cached_property
  def direction(self) -> layout.Direction:
    return layout.Direction(int(self.header['direction']))

  @functools.cached_property
  def config(self) -> config_lib.MoEConfig:
    return config_lib.MoEConfig(
      **self._sizes(_CONFIG),
      capacity=int(self.header['num_rows']),
      sublayer=bool(self.header['span']),
    )

  @functools.cached_property
  def policy(self) -> precision.PrecisionPolicy:
    number = int(self.header['quantised'])
    is_wide = number == len(layout.QUANTISED)
    quantised, rows = layout.QUANTISED[number - is_wide]
    return precision.PrecisionPolicy(
      **{name: names[self.header[field]] for field, name, names in _POLICY},
      epsilon=precision.EPSILONS[self.header['epsilon']],
      quantised=quantised,
      rows=rows,
      points=layout.WIDE_POINTS if is_wide else (),
    )

  @functools.cached_property
  def options(self) -> granularity.Options:
    return granularity.Options(
      event_grain=granularity.EVENT_GRAINS[self.header['event_grain']],
      relay=bool(self.header['relay']),
      **self._sizes(_OPTIONS),
    )

  def _sizes(self, names) -> dict[str, Any]:
    return {name: int(self.header[name]) for name in names}


def load(image) -> Image:
  """Returns an image, or what a contiguous buffer of its bytes holds.

  Raises:
    TypeError: it is neither.
    ValueError: the image is truncated, corrupt or inconsistent.
  """
  if isinstance(image, Image):
    return image
  try:
    memoryview(image)
  except TypeError:
    raise TypeError(
      'image: expected an image or its bytes, such as '
      f'`compile_forward(...).image`, got {type(image).__name__}'
    ) from None
  return Image(image)
