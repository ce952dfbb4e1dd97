"""A corrupt image is an error, never undefined behaviour."""

import zlib

import numpy as np
import pytest

from hpmoe.backend_ascend import _native
from hpmoe.backend_ascend.compiler import compiler
from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import precision

Kind, Buffer = layout.Kind, layout.Buffer


def small_image(
  compile_layer, grain: str, placement: str, relay: bool = False
) -> image_lib.Image:
  return compile_layer(
    config_testing.make_config(r=2, t=2, e=2, k=1, d=2, f=1),
    precision.PrecisionPolicy(placement=placement),
    granularity.Options(
      grain, 2, 2, num_aic=1, num_aiv=2, chain_rows=2, relay=relay
    ),
  ).image


FORWARD, BACKWARD = compiler.compile_forward, compiler.compile_backward
IMAGES = {
  'expert': small_image(FORWARD, 'expert', 'combine'),
  'row_block': small_image(FORWARD, 'row_block', 'combine'),
  'backward_expert': small_image(BACKWARD, 'expert', 'combine'),
  'backward': small_image(BACKWARD, 'row_block', 'before_down'),
  'relay': small_image(FORWARD, 'row_block', 'combine', relay=True),
  'relay_backward': small_image(
    BACKWARD, 'row_block', 'before_down', relay=True
  ),
}
every_image = pytest.mark.parametrize('name', IMAGES)
# One of each form of task; bit by bit.
some_images = pytest.mark.parametrize(
  'name', ['row_block', 'backward_expert', 'relay_backward']
)


def refusal(blob) -> str | None:
  """Returns the loader's message, or None; proves what it accepts."""
  try:
    image = _native.Image(blob)
  except ValueError as error:
    assert '\n' not in str(error) and str(error)
    return str(error)
  _native.prove(image)
  return None


def set_field(blob: bytearray, table: str, index: int, field: str, value):
  """Returns a sealed copy with one field changed; 'header' is a table."""
  blob = bytearray(blob)
  header = np.frombuffer(blob, layout.HEADER, 1)
  rows = header
  if table != 'header':
    place = header[table][0]
    rows = np.frombuffer(
      blob, layout.TABLES[table], int(place['count']), int(place['offset'])
    )
  if table == 'queue_tasks':
    rows[index] = value
  else:
    name, _, part = field.partition('.')
    target = rows[name][part] if part else rows[name]
    target[index] = value
  return image_lib.seal(blob)


@every_image
def test_what_the_compiler_makes_is_accepted(name):
  for kind in (bytes, bytearray, memoryview):
    assert refusal(kind(IMAGES[name])) is None


def flips(blob: bytearray):
  """Yields each bit's number while the bit is flipped."""
  for bit in range(8 * len(blob)):
    blob[bit // 8] ^= 1 << bit % 8
    yield bit
    blob[bit // 8] ^= 1 << bit % 8


def test_every_single_bit_flip_and_truncation_is_refused():
  blob = bytearray(IMAGES['relay_backward'])
  for bit in flips(blob):
    assert refusal(blob) is not None, bit
  assert 'crc32' in refusal(blob[:-1] + bytes([blob[-1] ^ 1]))
  assert refusal(blob) is None
  for size in range(len(blob)):
    assert refusal(blob[:size]) is not None, size
  assert refusal(blob + b'\0') is not None


@some_images
@pytest.mark.few(1)
def test_every_single_bit_flip_with_a_right_checksum_is_survived(name):
  # Given flips that the checksum cannot see, when each is loaded and proved,
  # then most are refused and none crashes.
  blob = bytearray(IMAGES[name])
  accepted = sum(refusal(image_lib.seal(blob)) is None for _ in flips(blob))
  assert 0 < accepted < 4 * len(blob)


@every_image
@pytest.mark.few(4)
def test_extreme_words_with_a_right_checksum_are_survived(name):
  blob = bytearray(IMAGES[name])
  words = np.frombuffer(blob, '<u4', len(blob) // 4)
  for index in range(len(words)):
    before = words[index]
    for value in (0, 1, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF):
      words[index] = value
      refusal(image_lib.seal(blob))
    words[index] = before
  assert refusal(image_lib.seal(blob)) is None


@every_image
@pytest.mark.few(2)
def test_random_damage_with_a_right_checksum_is_survived(name, request):
  rng = np.random.default_rng(zlib.crc32(request.node.name.encode()))
  num_refused = 0
  for _ in range(4000):
    blob = bytearray(IMAGES[name])
    for _ in range(rng.integers(1, 8)):
      # Small values stay in range often enough to reach the proofs.
      blob[rng.integers(len(blob))] = rng.choice([rng.integers(256), 0, 1, 2])
    num_refused += refusal(image_lib.seal(blob)) is not None
  assert num_refused > 0


# (image, table, row or the first of a kind or buffer, field, value, message); a
# row of several fields has several values.
REFUSALS = (
  *(
    ('row_block', *row)
    for row in (
      ('header', 0, 'magic', 7, r'header\.magic: expected 31474d49'),
      ('header', 0, 'version', 1, r'header\.version: expected 3, got 1'),
      ('header', 0, 'header_bytes', 8, r'header_bytes: expected 240, got 8'),
      ('header', 0, 'total_bytes', 9, r'total_bytes: expected \d+ .*got 9'),
      ('header', 0, 'num_ranks', 0, r'num_ranks: expected 1\.\.\d+, got 0'),
      ('header', 0, 'num_ranks', 3, r'num_experts: .* num_ranks=3, got 2'),
      ('header', 0, 'top_k', 3, r'header\.top_k: expected 1\.\.2, got 3'),
      ('header', 0, 'd_ff', -1, r'header\.d_ff: expected 1\.\.\d+, got -1'),
      ('header', 0, 'row_block', 3, r'expert_capacity: .*row_block=3, got 4'),
      ('header', 0, 'direction', 2, r'direction: expected 0\.\.1, got 2'),
      ('header', 0, 'direction', 1, 'kind: .* the backward layer, got 0'),
      ('header', 0, 'chain_rows', 0, r'chain_rows: expected 1\.\.4, got 0'),
      ('header', 0, 'chain_rows', 5, r'chain_rows: expected 1\.\.4, got 5'),
      ('header', 0, 'chain_rows', 3, r'chain_rows: .*row_block=2, got 3'),
      ('header', 0, 'relay', 2, r'relay: expected 0\.\.1, got 2'),
      ('header', 0, 'relay', 1, r'forward layer with relay, got 0 \(dispatch'),
      ('header', 0, 'quantised', 3, r'quantised: expected 0\.\.2, got 3'),
      ('header', 0, 'dtype', 3, r'header\.dtype: expected 0\.\.2, got 3'),
      ('header', 0, 'tasks.offset', 257, r'tasks\.offset: .*64, got 257'),
      ('header', 0, 'waits.offset', 2**63, r'waits\.offset: expected'),
      ('header', 0, 'waits.offset', 256, r'waits\.offset: expected'),
      ('header', 0, 'queue_tasks.count', 2**62, r'queue_tasks\.count:'),
      ('tasks', 3, 'kind', 8, r'tasks\[3\]\.kind: .*forward layer, got 8'),
      ('tasks', 3, 'unit', 2, r'tasks\[3\]\.unit: expected 0\.\.1, got 2'),
      ('tasks', 3, 'rank', 2, r'tasks\[3\]\.rank: expected 0\.\.1, got 2'),
      ('tasks', 3, 'expert', 2, r'tasks\[3\]\.expert: expected 0\.\.1'),
      ('tasks', 0, 'peer', 1, r'tasks\[0\]\.peer: expected 0, got 1'),
      ('tasks', 0, 'row_end', 99, r'tasks\[0\]\.row_end: expected 0\.\.2'),
      ('tasks', 5, 'wait_begin', 999, r'wait_begin: expected 0\.\.\d+, got'),
      ('tasks', 5, 'signal_count', 999, r'signal_count: expected 0\.\.'),
      ('tasks', 5, 'region_begin', 9999, r'region_begin: expected 0\.\.'),
      ('tasks', 5, 'core', 1, r'tasks\[5\]\.core: expected 0, got 1'),
      ('waits', 0, 'event', -1, r'waits\[0\]\.event: expected 0\.\.\d+'),
      ('waits', 0, 'threshold', 0, r'waits\[0\]\.threshold: expected 1\.\.'),
      ('signals', 0, 'event', 99, r'signals\[0\]\.event: expected 0\.\.'),
      ('signals', 0, 'amount', 0, r'amount: expected 1\.\.\d+, got 0'),
      ('signals', 0, 'span', 2**30, r'signals\[0\]\.span: expected'),
      ('signals', 1, 'span', 17, r'span: expected 1\.\.1\d, got 17'),
      ('signals', 0, 'rank', 2, r'signals\[0\]\.rank: expected 0\.\.1'),
      ('tasks', 3, 'reserved', 1, r'tasks\[3\]\.reserved: expected 0'),
      ('regions', 0, 'buffer', len(Buffer), r'\[0\]\.buffer: expected 0\.\.'),
      ('regions', 0, 'buffer', int(Buffer.DY), 'forward layer touches, got dy'),
      ('spaces', 0, 'buffer', int(Buffer.DX), 'forward layer writes, got dx'),
      ('events', 0, 'buffer', 2, 'forward layer writes, got w_down'),
      ('spaces', 0, 'buffer', 0, 'forward layer writes, got x'),
      ('regions', 0, 'view', 1, r'view: expected 0 for buffer x, got 1'),
      ('regions', 0, 'rank', -1, r'regions\[0\]\.rank: expected 0\.\.1'),
      ('regions', 0, 'group', 1, r'regions\[0\]\.group: expected 0, got 1'),
      ('regions', 0, 'row_end', 3, r'row_end: expected 0\.\.2, got 3'),
      ('regions', 0, 'col_begin', 3, r'col_begin: expected 0\.\.2, got 3'),
      ('events', 0, 'mode', 2, r'events\[0\]\.mode: expected 0\.\.1, got 2'),
      ('events', 0, 'part', 9, r'events\[0\]\.part: expected 0'),
      ('events', 0, 'part_rows', 0, r'part_rows: expected 1\.\.\d+, got 0'),
      ('spaces', 0, 'rows', 1, r'spaces\[0\]\.rows: expected 2, got 1'),
      ('queues', 0, 'core', 1, r'queues\[0\]\.core: expected 0, got 1'),
      ('queues', 0, 'count', 10**6, r'queues\[0\]\.count: expected 0\.\.'),
      ('queues', 3, 'rank', 0, r'queues\[3\]: expected ascending'),
      ('queue_tasks', 0, '', 10**6, r'queue_tasks\[0\]: expected 0\.\.'),
      ('regions', 0, 'buffer', int(Buffer.X_RELAYED), 'es, got x_relayed$'),
    )
  ),
  *(
    ('backward', 'tasks', *row)
    for row in (
      # Forward tasks do not run in a backward image, nor what is no task.
      (Kind.DOWN_GRAD, 'kind', 3, r'.* backward layer, got 3'),
      (Kind.DOWN_GRAD, 'kind', len(Kind), r'.* backward layer, got'),
      # R=2, T=2, E=2, K=1, D=2, F=1; C=4 in two links; weights before down.
      (Kind.DISPATCH_GRAD, 'peer', 1, r'expected 0, got 1'),
      (Kind.DISPATCH_GRAD, 'row_end', 3, r'expected 0\.\.2, got 3'),
      (Kind.DISPATCH_GRAD, 'col_end', 4, r'expected 0\.\.3, got 4'),
      (Kind.DOWN_GRAD, 'expert', 1, r'expected 0, got 1'),
      (Kind.DOWN_GRAD, 'peer', 0, r'expected -1, got 0'),
      (Kind.DOWN_GRAD, 'row_end', 5, r'expected 0\.\.4, got 5'),
      (Kind.DOWN_GRAD, 'col_end', 2, r'expected 0\.\.1, got 2'),
      (Kind.DOWN_WEIGHT_GRAD, 'expert', 1, r'expected 0, got 1'),
      (Kind.DOWN_WEIGHT_GRAD, 'peer', -1, r'expected 0\.\.1, got -1'),
      (Kind.DOWN_WEIGHT_GRAD, 'peer', 2, r'expected 0\.\.1, got 2'),
      (Kind.DOWN_WEIGHT_GRAD, 'row_end', 2, r'expected 0\.\.1'),
      (Kind.DOWN_WEIGHT_GRAD, 'col_end', 3, r'expected 0\.\.2'),
      (Kind.RETURN_GRAD, 'peer', 0, r'expected -1, got 0'),
      (Kind.RETURN_GRAD, 'row_end', 5, r'expected 0\.\.4, got 5'),
      (Kind.RETURN_GRAD, 'col_end', 4, r'expected 0\.\.3, got 4'),
      (Kind.COMBINE_GRAD, 'expert', 0, r'expected -1, got 0'),
      (Kind.COMBINE_GRAD, 'row_end', 3, r'expected 0\.\.2, got 3'),
      (Kind.TOPK_WEIGHT_GRAD, 'col_end', 2, r'expected 0\.\.1'),
    )
  ),
  ('backward', 'regions', 0, 'buffer', 0, 'backward layer touches, got x$'),
  ('backward', 'regions', 0, 'buffer', 7, 'layer touches, got expert_out$'),
  ('backward', 'regions', 0, 'buffer', 9, 'backward layer touches, got y$'),
  ('backward', 'events', 0, 'buffer', 4, 'layer writes, got expert_in$'),
  ('backward', 'spaces', 0, 'buffer', 8, 'layer writes, got returned$'),
  ('backward', 'regions', 0, 'view', 1, 'expected 0 for buffer dy, got 1'),
  ('backward', 'header', 0, 'placement', 0, 'col_end: expected 0..2, got 3'),
  ('backward_expert', 'header', 0, 'placement', 1, r'cols: expected 3, got'),
  ('backward', 'header', 0, 'chain_rows', 4, r'peer: expected 0, got 1'),
  ('backward', 'header', 0, 'direction', 0, 'one of the forward layer, got 8'),
  ('backward', 'regions', Buffer.EXPERT_IN, 'view', 1, 'for buffer expert_in'),
  *(
    ('relay', 'tasks', *row)
    for row in (
      (Kind.RELAY, 'kind', Kind.DISPATCH, '.*with relay, got 0 .dispatch.$'),
      (Kind.RELAY_PUT, 'expert', 2, r'expected 0\.\.1, got 2'),
      (Kind.RELAY_PUT, 'peer', 1, r'expected 0, got 1'),
      (Kind.RELAY_PUT, 'row_begin', -1, r'expected 0\.\.2, got -1'),
      (Kind.RELAY_PUT, 'row_end', 3, r'expected 0\.\.2, got 3'),
      (Kind.RELAY_PUT, 'col_end', 4, r'expected 0\.\.3, got 4'),
      (Kind.RELAY, 'expert', 1, r'expected 0, got 1'),
      (Kind.RELAY, 'peer', 0, r'expected -1, got 0'),
      (Kind.RELAY, 'row_begin', -1, r'expected 0\.\.4, got -1'),
      (Kind.RELAY, 'row_end', 5, r'expected 0\.\.4, got 5'),
      (Kind.RELAY, 'col_end', 4, r'expected 0\.\.3, got 4'),
    )
  ),
  (
    *('relay_backward', 'tasks', Kind.RELAY_GRAD, 'kind', Kind.DISPATCH_GRAD),
    '.*with relay, got 8 .dispatch_grad.$',
  ),
  *(
    ('backward', 'header', 0, *row)
    for row in (
      # float32 but for the dtype, and two links of two rows.
      ('accumulation_order', 1, r'accumulation_order: expected 0\.\.0, got 1'),
      (
        *(('dtype', 'accumulation_order'), (1, 2)),
        r'accumulation_order: expected 0\.\.1, got 2',
      ),
      (
        *(('dtype', 'accumulation_order'), (1, 1)),
        r'chain_rows: expected a multiple of 32 for accumulation_order '
        r'even_odd_32, got 2$',
      ),
      # Each of 2**30 experts on one rank a chain of four links: the groups of
      # a weight gradient would not fit int32.
      (
        ('num_ranks', 'num_experts', 'row_block', 'chain_rows'),
        (1, 2**30, 1, 1),
        r'links: expected 1\.\.2147483647, got',
      ),
    )
  ),
)


@pytest.mark.parametrize('name, table, row, field, value, message', REFUSALS)
def test_refusals_name_table_index_field_expected_and_got(
  name, table, row, field, value, message
):
  blob, index = IMAGES[name], row
  column = {Kind: 'kind', Buffer: 'buffer'}.get(type(row))
  if column:
    kinds = image_lib.load(blob).tables[table][column]
    index = int(np.flatnonzero(kinds == row)[0])
  if column == 'kind':
    message = rf'tasks\[{index}\]\.{field}: {message}'
  several = isinstance(field, tuple)
  for entry in zip(field, value) if several else [(field, value)]:
    blob = set_field(blob, table, index, *entry)
  with pytest.raises(ValueError, match=message):
    _native.Image(blob)


COUNTING = ('row_block', 'backward', 'relay', 'relay_backward')
PUT_BUFFERS = {
  Buffer.X_RELAYED,
  Buffer.EXPERT_IN,
  Buffer.RETURNED,
  Buffer.DY_RELAYED,
  Buffer.D_EXPERT_OUT,
  Buffer.D_RETURNED,
}


@pytest.mark.parametrize('name', COUNTING)
def test_rows_are_counted_only_into_events_of_puts(name):
  # Given signals of every task that counts rows, turned to each event of the
  # image, when loaded, then only those of rows that puts bring are accepted:
  # a relay takes the event's group for an expert of its rank, and a chain of a
  # weight's gradient has more groups than that.
  tables = image_lib.load(IMAGES[name]).tables
  counting = np.flatnonzero(tables['signals']['amount'] == layout.PER_ROW)
  fates = set()
  for signal in counting:
    blob = set_field(IMAGES[name], 'signals', signal, 'span', 1)
    for index, event in enumerate(tables['events']):
      buffer = Buffer(event['buffer'])
      message = refusal(set_field(blob, 'signals', signal, 'event', index))
      fates.add(buffer in PUT_BUFFERS)
      if buffer in PUT_BUFFERS:
        assert message is None, (signal, index)
      else:
        assert message == (
          f'signals[{signal}].event: expected one of rows that puts send, got '
          f'one of {buffer.name.lower()}'
        )
  assert fates == {False, True}


def huge(name: str, **sizes) -> bytearray:
  """Returns an image without spaces, which would repeat its sizes."""
  blob = bytearray(IMAGES[name])
  header = np.frombuffer(blob, layout.HEADER, 1)
  header['spaces']['count'] = 0
  for field, value in sizes.items():
    header[field] = value
  return image_lib.seal(blob)


@pytest.mark.parametrize(
  'name, tensor, sizes',
  [
    ('expert', 'w_gate_up', dict(d_model=2**30, d_ff=2**30 - 1)),
    ('expert', 'expert_in', dict(d_model=2**31 - 2, num_rows=2**31 - 1)),
    ('backward', 'returned', dict(d_model=2**31 - 2, num_tokens=2**31 - 1)),
    ('backward', 'gate_up', dict(d_ff=2**30 - 1, num_rows=2**31 - 1)),
  ],
)
def test_tensors_whose_bytes_no_integer_counts_are_refused(name, tensor, sizes):
  # A product of sizes that wraps would let arrays of fewer bytes pass.
  message = refusal(huge(name, **sizes))
  assert message == (
    f'header: expected at most {2**60} bytes of {tensor}, got more'
  )


def test_a_task_in_two_queues_or_in_none_is_refused():
  tasks = image_lib.load(IMAGES['expert']).tables['queue_tasks']
  twice = set_field(IMAGES['expert'], 'queue_tasks', 1, '', tasks[0])
  with pytest.raises(ValueError, match=rf'got task {tasks[0]} again'):
    _native.Image(twice)
  last = len(image_lib.load(IMAGES['expert']).tables['queues']) - 1
  empty_queue = set_field(IMAGES['expert'], 'queues', last, 'count', 0)
  with pytest.raises(ValueError, match='expected in one queue, got none'):
    _native.Image(empty_queue)


def test_bytes_may_lie_anywhere_and_change_later():
  shifted = bytearray(b'\0' + bytes(IMAGES['expert']))
  image = _native.Image(memoryview(shifted)[1:])
  shifted[:] = bytes(len(shifted))
  assert bytes(image) == bytes(IMAGES['expert'])
  with pytest.raises(TypeError):
    memoryview(image)[0] = 0


def test_what_is_not_bytes_is_a_type_error():
  with pytest.raises(TypeError):
    _native.Image('image')
