"""What tasks access tiles every tensor, and is what the image declares."""

import numpy as np
import pytest

from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.host.launch import runtime
from hpmoe.backend_ascend.host.launch import runtime_testing as testing
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import halved_testing
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import presets
from hpmoe.reference.contract import tensors

Buffer = layout.Buffer
Direction = layout.Direction
Kind = layout.Kind
CONFIG = config_testing.make_config(r=4, t=13, e=8, k=3, d=10, f=6)
BLOCKS = dict(
  row_block=8, col_block=5, put_rows=3, token_block=4, num_aic=2, num_aiv=3
)
HEADED = {Direction.FORWARD: 'expert_in', Direction.BACKWARD: 'd_expert_out'}
SLICES = (Buffer.EXPERT_IN, Buffer.D_EXPERT_OUT)
HOMES = (Buffer.RETURNED, Buffer.D_RETURNED)
GRADS = (Buffer.D_W_DOWN, Buffer.D_W_GATE_UP)
WEIGHTS = (Buffer.W_GATE_UP, Buffer.W_DOWN, *GRADS)


every_case = pytest.mark.parametrize(
  'direction, routing, grain, placement, chain',
  halved_testing.covering(
    Direction,
    testing.ROUTINGS,
    ('expert', 'row_block'),
    precision.LAUNCHED_PLACEMENTS,
    (None, 8),
  ),
)


def make(direction, routing, grain, placement, chain) -> testing.Case:
  policy = precision.PrecisionPolicy(placement=placement)
  options = dict(event_grain=grain, chain_rows=chain, **BLOCKS)
  return testing.make_case(direction, CONFIG, policy, routing, **options)


def flat(layer: testing.Case, name: str) -> np.ndarray:
  """Returns how often each element is written, `[slabs, rows, columns]`.

  With as many columns again for what lies beside them.
  """
  shape = layer.right[name].shape
  slabs = shape[0] * (shape[1] if name.startswith('d_w_') else 1)
  rows = int(np.prod(shape[:-1])) // slabs
  return np.zeros((slabs, rows, 2 * shape[-1]), int)


def count_writes(layer: testing.Case) -> dict[str, np.ndarray]:
  boxes, _ = runtime.inspect(layer.image, layer.routing)
  counts = {
    name: flat(layer, name)
    for name in runtime.list_written_tensors(layer.image)
  }
  for box in boxes[boxes['write'] == 1]:
    counts[Buffer(box['buffer']).name.lower()][
      box['slab'],
      box['row_begin'] : box['row_end'],
      box['col_begin'] : box['col_end'],
    ] += 1
  return counts


@every_case
def test_every_element_is_written_once(
  direction, routing, grain, placement, chain
):
  # Given any routing, when writes are counted, then each element of a row that
  # exists has one, all others none; so has what travels beside rows.
  layer = make(direction, routing, grain, placement, chain)
  plan = runtime.route(layer.image, layer.inputs['topk_ids'])
  num_rows = plan.counts.sum(axis=0).reshape(CONFIG.num_ranks, -1).sum(axis=1)
  beside = {HEADED[direction]}
  if placement in tensors.EARLY and direction:
    beside |= {'d_gate_up', 'd_returned'}
  for name, writes in count_writes(layer).items():
    width = writes.shape[2] // 2
    exists = np.ones(writes.shape[:2], bool)
    if layer.right[name].shape[1] == CONFIG.dims()['N']:
      exists = np.arange(writes.shape[1])[None, :] < num_rows[:, None]
    assert (writes[..., :width] == exists[..., None]).all(), name
    if name.startswith('d_w_'):
      continue  # sums: the next test
    assert (writes[..., width] == exists * (name in beside)).all(), name
    assert not writes[..., width + 1 :].any(), name


@pytest.mark.parametrize('direction', Direction)
def test_headers_of_a_sublayer_are_read_and_never_written(direction):
  # Given a sub-layer, in which rows go home before rows come, when accesses
  # beside the rows that come are listed, then all of them are reads.
  config = presets.config(presets.get('tp_norm'), ranks=2)
  compilers = testing.compile_layer, testing.compile_grad
  image = compilers[direction](config)
  ids = np.broadcast_to(np.arange(2, dtype=np.int32), (2, config.num_tokens, 2))
  boxes, _ = runtime.inspect(image, runtime.route(image, ids))
  is_headed = boxes['buffer'] == Buffer[HEADED[direction].upper()]
  headers = boxes[is_headed & (boxes['col_begin'] >= config.d_model)]
  assert headers.size and not headers['write'].any()


@pytest.mark.parametrize('routing', testing.ROUTINGS)
def test_sums_are_written_by_every_link_but_the_last(routing):
  layer = make(Direction.BACKWARD, routing, 'row_block', 'combine', 8)
  tasks = layer.image.tables['tasks']
  boxes, _ = runtime.inspect(layer.image, layer.routing)
  links = tasks['peer'][tasks['kind'] == Kind.DOWN_WEIGHT_GRAD].max() + 1
  assert links > 2
  grads = np.isin(boxes['buffer'], GRADS)
  width = np.where(
    boxes['buffer'] == Buffer.D_W_DOWN, CONFIG.d_model, 2 * CONFIG.d_ff
  )
  link = tasks['peer'][boxes['task']]
  sums = boxes['col_begin'] >= width
  assert (sums == (link < links - 1))[grads & (boxes['write'] == 1)].all()
  read = grads & (boxes['write'] == 0)
  assert (sums & (link > 0))[read].all()
  of_links = np.isin(
    tasks['kind'], (Kind.DOWN_WEIGHT_GRAD, Kind.GATE_UP_WEIGHT_GRAD)
  )
  assert read.sum() == (of_links & (tasks['peer'] > 0)).sum()
  for name, writes in count_writes(layer).items():
    if name.startswith('d_w_'):
      assert (writes[..., writes.shape[2] // 2 :] == links - 1).all()


class DeclaredRegions:
  """Regions of the image's table as physical elements, through the plan."""

  def __init__(self, layer: testing.Case):
    self.layer = layer
    self.tables = layer.image.tables
    self.ids = layer.inputs['topk_ids']
    plan = runtime.route(layer.image, self.ids)
    self.counts, self.row_base = plan.counts, plan.row_base
    self.local = CONFIG.experts_per_rank
    self.links = max(
      1,
      -(-layer.image.options.expert_capacity // layer.image.options.chain_rows),
    )

  def rows_of(self, region) -> set[tuple[int, int]]:
    """Returns (slab, physical row) of a region that exist."""
    buffer, rank = Buffer(region['buffer']), int(region['rank'])
    group = int(region['group'])
    rows = range(int(region['row_begin']), int(region['row_end']))
    if buffer in WEIGHTS:
      links = self.links if buffer in GRADS else 1
      return {(rank * self.local + group // links, row) for row in rows}
    if region['view'] == layout.View.SENDER:
      if buffer in SLICES:
        return self.slice(rank, *divmod(group, CONFIG.num_ranks), rows)
      return self.home(rank, group, rows)
    if self.is_packed(buffer):
      expert = rank * self.local + group
      total = int(self.counts[:, expert].sum())
      first = int(self.row_base[0, expert])
      return {(rank, first + row) for row in rows if row < total}
    return {(rank, row) for row in rows}

  def is_packed(self, buffer) -> bool:
    return buffer not in (
      Buffer.X,
      Buffer.Y,
      Buffer.DY,
      Buffer.DX,
      Buffer.D_TOPK_WEIGHTS,
      *HOMES,
    )

  def slice(self, owner, local_expert, source, rows):
    expert = owner * self.local + local_expert
    first = int(self.row_base[source, expert])
    count = int(self.counts[source, expert])
    return {(owner, first + row) for row in rows if row < count}

  def sent_rows(self, desc) -> set[int] | None:
    """Returns the rows that a put reads, of any buffer; None for no put."""
    expert = int(desc['expert'])
    rows = slice(desc['row_begin'], desc['row_end'])
    if desc['kind'] in (Kind.DISPATCH, Kind.DISPATCH_GRAD):
      tokens, _ = np.nonzero(self.ids[desc['rank']] == expert)
      return set(tokens[rows].tolist())
    if desc['kind'] not in (Kind.RETURN, Kind.RETURN_GRAD):
      return None
    sources = [int(desc['peer'])] if desc['peer'] >= 0 else range(len(self.ids))
    count = int(self.counts[list(sources), expert].sum())
    first = int(self.row_base[sources[0], expert])
    return set(range(first, first + count)[rows])

  def home(self, rank, expert, rows):
    """Returns (rank, slot) of rows of an expert, or of one rank's slice."""
    slots = [
      (source, token * CONFIG.top_k + slot)
      for source in range(CONFIG.num_ranks)
      for token, slot in np.argwhere(self.ids[source] == expert)
      if rank in (layout.ANY_RANK, source)
    ]
    return {slots[row] for row in rows if row < len(slots)}


@every_case
def test_accesses_are_what_the_image_declares(
  direction, routing, grain, placement, chain
):
  # Given a task of each kind, when its declared regions are mapped through the
  # plan, then it writes just them, and reads just them but for two things: a
  # put declares all rows that it may have to send, and the image counts the
  # float32 sums of a chain as the gradient itself.
  layer = make(direction, routing, grain, placement, chain)
  regions_of_layer, tables = DeclaredRegions(layer), layer.image.tables
  boxes, _ = runtime.inspect(layer.image, layer.routing)
  starts = np.searchsorted(boxes['task'], np.arange(layer.num_tasks + 1))
  for task in range(0, layer.num_tasks, 7):
    own_boxes = boxes[starts[task] : starts[task + 1]]
    if not len(own_boxes):
      continue
    desc = tables['tasks'][task]
    begin, reads = desc['region_begin'], desc['read_count']
    regions = tables['regions'][begin : begin + reads + desc['write_count']]
    name = runtime.task_name(layer.image, task)
    real = elements_of_boxes(layer, own_boxes[own_boxes['write'] == 1])
    assert real == elements_of_regions(regions_of_layer, regions[reads:]), name
    real = elements_of_boxes(layer, own_boxes[own_boxes['write'] == 0])
    declared_elements = elements_of_regions(regions_of_layer, regions[:reads])
    sent_rows = regions_of_layer.sent_rows(desc)
    if sent_rows is not None:
      declared_elements = {e for e in declared_elements if e[2] in sent_rows}
    # Which links read sums: the test above.
    real, declared_elements = (
      {e for e in es if e[0] not in GRADS} for es in (real, declared_elements)
    )
    assert real == declared_elements, name


def elements_of_regions(regions_of_layer, regions) -> set:
  """Returns (buffer, slab, row, column) of regions."""
  return {
    (int(region['buffer']), slab, row, col)
    for region in regions
    for slab, row in regions_of_layer.rows_of(region)
    for col in range(int(region['col_begin']), int(region['col_end']))
  }


def elements_of_boxes(layer, boxes) -> set:
  """Returns (buffer, slab, row, column); sums stand for their gradient."""
  overlaps = set()
  for box in boxes:
    buffer = int(box['buffer'])
    cols = np.arange(int(box['col_begin']), int(box['col_end']))
    if buffer in GRADS:
      cols %= layer.right[Buffer(buffer).name.lower()].shape[-1]
    overlaps |= {
      (buffer, int(box['slab']), row, int(col))
      for row in range(int(box['row_begin']), int(box['row_end']))
      for col in cols
    }
  return overlaps
