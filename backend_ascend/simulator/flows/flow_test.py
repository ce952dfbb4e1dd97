"""Rules of a fabric that computes: times by hand, conservation of bytes.

On the machine of `flow_testing` a byte takes a second, a packet holds four
bytes behind a header of one, and a hop takes ten seconds.
"""

import numpy as np
import pytest

from hpmoe.backend_ascend.simulator.flows import flow as flow_lib
from hpmoe.backend_ascend.simulator.flows import flow_testing
from hpmoe.backend_ascend.simulator.machines import machine as machine_lib

Op = flow_lib.Op
EXACT = dict(rel=1e-12, abs=1e-12)


def _flow(ranks, sends, thresholds=(), holds=False):
  """Returns a flow in which each send is a task of its rank's one pool.

  Args:
    ranks: how many.
    sends: (rank, own seconds, op, bytes, [(peer, event, ids)]), perhaps more
      of a message.
    thresholds: of events.
    holds: whether tasks do.
  """
  flow = flow_lib.Flow(ranks)
  flow.add_events(np.array(thresholds))
  pools = flow.add_pools(np.ones(ranks))
  for rank, own, op, payload, peers, *rest in sends:
    task = flow.add_tasks(pools[rank], own, holds)
    message = flow.add_messages(task, op, rank, payload, **dict(*rest))
    for peer in peers:
      flow.add_peers(message, *peer)
  return flow


def _run(ranks, sends, thresholds=(), holds=False, **figures):
  """Returns the times of a `_flow` on a machine with other figures."""
  flow = _flow(ranks, sends, thresholds, holds)
  return flow_lib.simulate(flow, flow_testing.machine(**figures))


ALL = [(1,), (2,), (3,)]
PUTS_ONE_BY_ONE = [(0, 0.0, Op.PUT, 4, [peer]) for peer in ALL]


@pytest.mark.parametrize(
  'sends, figures, total, up, down',
  [
    # 8 B are two packets, so 10 flits: up by 2 + 10, there at 10 + 10 + 10.
    ([(0, 2.0, Op.PUT, 8, [(1,)])], {}, 42, [10, 0], [0, 10]),
    # An own copy crosses nothing.
    ([(0, 3.0, Op.PUT, 4, [(0,)])], {}, 3, [0, 0], [0, 0]),
    # One of many goes up once and down once each; three wait for one link up.
    ([(0, 0.0, Op.PUT, 4, ALL)], {}, 30, [5, 0, 0, 0], [0, 5, 5, 5]),
    (PUTS_ONE_BY_ONE, {}, 15 + 10 + 5 + 10, [15, 0, 0, 0], [0, 5, 5, 5]),
    # Two requests of a flit: up 2, hop, down 2, hop; then 10 up, hop, 10, hop.
    ([(0, 0.0, Op.GET, 8, [(1,)])], {}, 64, [2, 10], [10, 2]),
    # Each peer answers up; the switch sends one home when the last is there.
    ([(0, 0.0, Op.REDUCE_GET, 4, ALL)], {}, 52, [1, 5, 5, 5], [5, 1, 1, 1]),
    # 10 targets at 8 a flit: two flits of list.  17 B are 5 packets and, of
    # flits of 2 B, 9: up 5 * (1 + 2) * 2 + 18, down with as much list.
    (
      [(0, 0.0, Op.PUT, 17, [(1, -1, 10)])],
      dict(flit=2.0, target_ids=8.0),
      48 + 10 + 48 + 10,
      [48, 0],
      [0, 48],
    ),
    # 40 B are ten packets; asked for by sixteens they want three requests.
    (
      [(0, 0.0, Op.GET, 40, [(1,)])],
      dict(asked_bytes=16.0),
      13 + 13 + 60 + 60,
      [3, 50],
      [50, 3],
    ),
  ],
)
def test_messages_by_hand(sends, figures, total, up, down):
  timing = _run(len(up), sends, **figures)
  assert timing.total == pytest.approx(total, **EXACT)
  assert [*timing.up_bytes] == up and [*timing.down_bytes] == down


@pytest.mark.parametrize('holds, end', [(False, 2.0), (True, 42.0)])
def test_a_task_that_holds_ends_with_its_arrival(holds, end):
  timing = _run(2, [(0, 2.0, Op.PUT, 8, [(1,)])], holds=holds)
  assert timing.last_arrival == pytest.approx([42.0], **EXACT)
  assert timing.end == pytest.approx([end], **EXACT)


def test_a_part_of_a_sum_is_let_go_by_the_switch():
  # Given two parts, when both hold, then each ends when the switch has it,
  # though the sum is at its owner 15 after the last.
  timing = _run(4, _sum([0.0, 7.0], expected=2), [1], holds=True)
  assert timing.end == pytest.approx([15.0, 22.0], **EXACT)
  assert timing.total == pytest.approx(37.0, **EXACT)


@pytest.mark.parametrize(
  'channels, arrivals',
  [
    # A queue: 50 up, then 5 more; down the second waits for none.
    (1.0, [120.0, 125.0]),
    # Up: 1 alone, then half each: the short one passes by 11, the long by 55.
    # Down alone, each: 11 + 10 + 5 + 10, 55 + 10 + 50 + 10.
    (2.0, [125.0, 36.0]),
  ],
)
def test_channels_share_alike(channels, arrivals):
  last = dict(channel=int(channels) - 1)
  sends = [(0, 0.0, Op.PUT, 40, [(1,)]), (0, 1.0, Op.PUT, 4, [(1,)], last)]
  timing = _run(2, sends, virtual_channels=channels)
  assert timing.last_arrival == pytest.approx(arrivals, **EXACT)


def test_a_long_queue_keeps_its_order():
  # Given 300 packets of 5 flits at once, then one leaves every 5 s.
  sends = [(0, 0.0, Op.PUT, 4, [(1,)])] * 300
  timing = _run(2, sends)
  departures = 5.0 * np.arange(1, 301)
  assert timing.last_arrival == pytest.approx(departures + 10 + 5 + 10, **EXACT)


class TestEvents:
  def test_work_starts_a_release_after_the_last_count(self):
    # Polled by one, released by a counter for the other.
    flow = flow_lib.Flow(2)
    events = flow.add_events(np.ones(2), [3.0, 0.0])
    pools = flow.add_pools(np.ones(3))
    flow.add_peers(
      flow.add_messages(flow.add_tasks(pools[0], 0.0), Op.PUT, 0, 4), 1, 0
    )
    waiters = flow.add_tasks(pools[1:], 7.0)
    flow.add_waits(waiters, events[0])
    flow.add_waits(waiters[1:], events[1])
    flow.add_signals(waiters[0], events[1])
    timing = flow_lib.simulate(flow, flow_testing.machine())
    assert timing.start[1:] == pytest.approx([33.0, 40.0], **EXACT)
    assert timing.total == pytest.approx(47, **EXACT)

  def test_what_waits_for_ever_is_named(self):
    flow = _flow(2, [(0, 0.0, Op.PUT, 4, [(1,)])], [1])
    flow.add_waits(flow.add_tasks(1, 0.0), 0)
    with pytest.raises(ValueError, match='got task 1 of pool 1 that waits'):
      flow_lib.simulate(flow, flow_testing.machine())


def _sum(starts, expected=3, payload=4, owner=3, key=0):
  """Returns parts of one sum, that ranks send at their times."""
  rest = dict(key=key, expected=expected)
  return [
    (rank, start, Op.REDUCE_PUT, payload, [(owner, 0)], rest)
    for rank, start in enumerate(starts)
  ]


class TestSums:
  def test_one_leaves_when_the_last_part_is_there(self):
    timing = _run(4, _sum([0.0, 20.0, 3.0]), [1])
    assert timing.total == pytest.approx(20 + 15 + 15, **EXACT)
    assert timing.down_bytes[3] == 5 and timing.delivered[3] == 4
    assert timing.sessions['residence'] == pytest.approx(20, **EXACT)
    assert (timing.sessions['merged'], timing.sessions['peak']) == (2, 4)

  def test_a_full_table_gives_up_the_oldest(self):
    # Given room for one sum, when another comes between its parts, then three
    # partial sums leave for the first, one for each time it came back.
    rest = dict(key=1, expected=2)
    other = [(r, 10.0, Op.REDUCE_PUT, 4, [(3, -1)], rest) for r in (0, 1)]
    sends = _sum([0.0, 20.0, 40.0]) + other
    timing = _run(4, sends, [1], merge_table=4.0)
    # Comes: key 0 at 15, 1 at 25, 0 at 35, 1 at 45, 0 at 55: each evicts.
    assert timing.sessions['evicted'] == 4
    assert timing.sessions['merged'] == 0
    # The last of each key stays a part for ever, unless a timer lets it out.
    assert timing.delivered[3] == 4 * 4
    late = _run(4, sends, [1], merge_table=4.0, merge_timeout=100.0)
    assert late.sessions['timed_out'] == 1
    assert late.delivered[3] == 5 * 4
    assert late.total == pytest.approx(55 + 100 + 15, **EXACT)

  def test_bytes_may_pass_after_the_last_task(self):
    # A part that waits for a second one takes its link, and ends no task.
    rest = dict(key=0, expected=2)
    part = (0, 0.0, Op.REDUCE_PUT, 400, [(1, -1)], rest)
    assert _run(2, [part], merge_table=1600.0).total == 0
    put = (1, 0.0, Op.PUT, 4, [(0,)])
    timing = _run(2, [put, part], merge_table=1600.0)
    assert timing.total == pytest.approx(30, **EXACT)

  def test_oldest_is_what_was_used_longest_ago(self):
    # Given room for two sums, when a third comes, then not the first to be
    # opened goes, to which a part came since, but the second.
    def part(rank, own, key):
      rest = dict(key=key, expected=3)
      return rank, own, Op.REDUCE_PUT, 4, [(3, -1)], rest

    sends = [part(0, 0.0, 0), part(1, 1.0, 1), part(2, 5.0, 0)]
    sends += [part(0, 30.0, 2), part(1, 40.0, 0)]
    timing = _run(4, sends, merge_table=8.0)
    assert (timing.sessions['evicted'], timing.sessions['merged']) == (1, 2)
    # One of key 1 and the sum of key 0: key 2 is still there.
    assert timing.delivered[3] == 8

  @pytest.mark.parametrize(
    'starts, parts', [([0, 1, 2], 1), ([2, 1, 0], 3), ([1, 0, 2], 2)]
  )
  def test_order_of_ranks_costs_room_and_no_time(self, starts, parts):
    # What comes before its turn is kept beside the sum.
    sends = _sum([float(start) for start in starts])
    timing = [_run(4, sends, [1], rank_order=order) for order in (0.0, 1.0)]
    assert timing[0].total == timing[1].total
    assert [t.sessions['peak'] for t in timing] == [4, 4 * parts]


def _asks(expected):
  rest = dict(key=5, expected=expected)
  starts = enumerate([0.0, 5.0, 40.0])
  return _run(
    4, [(rank, start, Op.GET, 4, [(3,)], rest) for rank, start in starts]
  )


def test_one_answer_serves_who_waits_and_who_comes_later():
  # First asks at 11, its data are at the switch at 11 + 11 + 15 = 37; the
  # second waits, the third is answered from the table at 40 + 11.
  timing = _asks(expected=3)
  assert timing.last_arrival == pytest.approx([52.0, 52.0, 66.0], **EXACT)
  assert timing.up_bytes[3] == 5 and timing.sessions['merged'] == 2
  assert list(timing.delivered) == [4, 4, 4, 0]


def test_the_last_asked_for_frees_the_table():
  # A third after two that were expected opens another.
  timing = _asks(expected=2)
  assert timing.sessions['sessions'] == 2 and timing.up_bytes[3] == 10


def test_more_rows_than_there_is_room_for():
  flow = flow_lib.Flow(2)
  flow.add_regions(flow.add_events([4])[0], 4, 4)
  task = flow.add_tasks(flow.add_pools(1)[0], 0.0)
  flow.add_peers(flow.add_messages(task, Op.PUT, 0, 4, amount=5), 1, region=0)
  with pytest.raises(ValueError, match='at most 4 rows of region 0'):
    flow_lib.simulate(flow, flow_testing.machine())


def _random(rng, ranks=5, sends=60):
  """Returns sends of all kinds, and bytes on each link by hand."""
  sends_made, up, down, received_bytes = (
    [],
    np.zeros(ranks),
    np.zeros(ranks),
    np.zeros(ranks),
  )
  for _ in range(sends):
    rank, payload = int(rng.integers(ranks)), int(rng.integers(1, 30))
    peers_of_rank = [r for r in range(ranks) if r != rank]
    op = Op(int(rng.integers(4)))
    is_multicast = op in (Op.PUT, Op.REDUCE_GET)
    peers = list(
      rng.permutation(peers_of_rank)[
        : rng.integers(1, 4) if is_multicast else 1
      ]
    )
    heads = -(-payload // 4)
    data = heads + payload
    is_request = op in (Op.GET, Op.REDUCE_GET)
    up[rank] += heads if is_request else data
    for peer in peers:
      down[peer] += heads if is_request else data
      up[peer] += data if is_request else 0
      received_bytes[peer] += 0 if is_request else payload
    down[rank] += data if is_request else 0
    received_bytes[rank] += payload if is_request else 0
    receivers = [(int(p),) for p in peers]
    sends_made.append((rank, float(rng.random()), op, payload, receivers))
  return sends_made, up, down, received_bytes


@pytest.mark.parametrize('seed', range(5))
def test_no_byte_is_lost_or_made(seed):
  sends, up, down, payload = _random(np.random.default_rng(seed))
  timing = _run(5, sends, hop_latency=0.5)
  np.testing.assert_array_equal(timing.up_bytes, up)
  np.testing.assert_array_equal(timing.down_bytes, down)
  np.testing.assert_array_equal(timing.delivered, payload)
  # A link carries what it carries at its rate, and no time beats it.
  np.testing.assert_allclose(timing.up_busy, up, rtol=1e-12)
  np.testing.assert_allclose(timing.down_busy, down, rtol=1e-12)
  assert timing.total >= max(up.max(), down.max())
  repetition = _run(5, sends, hop_latency=0.5)
  np.testing.assert_array_equal(timing.last_arrival, repetition.last_arrival)


def _of_each_key(seed, op, event=lambda key: -1):
  """Returns messages of ranks 1 to 5 to 0, one of each of 20 keys."""
  rng = np.random.default_rng(seed)
  return [
    (rank, float(rng.random() * 9), op, 4, [(0, event(key))], rest)
    for key in map(int, rng.permutation(20))
    for rank in range(1, 6)
    for rest in [dict(key=key, expected=5)]
  ]


@pytest.mark.parametrize('table', [1.0, 8.0, 40.0, 1e9])
@pytest.mark.parametrize('seed', range(3))
def test_each_who_asks_is_answered_once(seed, table):
  """Loads that merge spare the owner's link what they merge, and no more."""
  ranks, keys, sends = 6, 20, _of_each_key(seed, Op.GET)
  timing = _run(ranks, sends, merge_table=table)
  assert list(timing.delivered) == [0, *[4 * keys] * (ranks - 1)]
  assert timing.up_bytes[0] == 5 * (len(sends) - timing.sessions['merged'])
  assert timing.sessions['peak'] <= table
  # Without room for one each is forwarded.
  assert (timing.sessions['bypassed'] == len(sends)) == (table < 4)


@pytest.mark.parametrize('seed', range(3))
def test_each_row_has_an_address_and_each_block_opens(seed):
  """Rows that come at random fill a region without hole or double."""
  rng = np.random.default_rng(seed)
  ranks, puts, block = 5, 40, 8
  amounts = rng.integers(1, 7, puts)
  whole = int(amounts.sum())
  edges = [*range(0, whole, block), whole]
  flow = flow_lib.Flow(ranks)
  events = flow.add_events(np.diff(edges))
  region = flow.add_regions(events[0], block, whole)
  pools = flow.add_pools(np.ones(ranks))
  for amount in amounts:
    rank = int(rng.integers(1, ranks))
    task = flow.add_tasks(pools[rank], float(rng.random() * 9))
    message = flow.add_messages(task, Op.PUT, rank, 4, amount=int(amount))
    flow.add_peers(message, 0, region=region)
  waiters = flow.add_tasks(pools[0], np.zeros(len(events)))
  flow.add_waits(waiters, events)
  timing = flow_lib.simulate(flow, flow_testing.machine())
  addresses = [
    row + i for row, count in zip(timing.row, amounts) for i in range(count)
  ]
  assert sorted(addresses) == list(range(whole))
  # Rows take addresses as they come.
  assert (np.diff(timing.row[np.argsort(timing.last_arrival)]) > 0).all()
  # A block opens when the last that has rows in it is there.
  for number, begin in enumerate(edges[:-1]):
    end = edges[number + 1]
    in_block = (timing.row < end) & (timing.row + amounts > begin)
    assert timing.start[puts + number] == timing.last_arrival[in_block].max()
  assert timing.delivered[0] == 4 * puts


@pytest.mark.parametrize('table', [1.0, 8.0, 40.0, 1e9])
@pytest.mark.parametrize('rank_order', [0.0, 1.0])
@pytest.mark.parametrize('seed', range(3))
def test_a_sum_has_all_of_its_parts_however_small_the_table(
  seed, rank_order, table
):
  """What is evicted arrives too: parts are conserved, bytes of them not."""
  ranks, keys = 6, 20
  sends = _of_each_key(seed, Op.REDUCE_PUT, event=int)
  flow = _flow(ranks, sends, np.full(keys, ranks - 1))
  waiters = flow.add_tasks(0, np.zeros(keys))
  flow.add_waits(waiters, np.arange(keys))
  timing = flow_lib.simulate(
    flow,
    flow_testing.machine(
      merge_table=table, merge_timeout=300.0, rank_order=rank_order
    ),
  )
  # In order of ranks nothing is given up: the peak is the room that it needs.
  assert timing.sessions['peak'] <= table or rank_order
  assert timing.sessions['evicted'] == 0 or not rank_order
  parts = timing.delivered[0] / 4
  assert keys <= parts <= keys * (ranks - 1)
  assert parts == keys * (ranks - 1) - timing.sessions['merged']


@pytest.mark.parametrize('name', ['hopper', 'ascend_a3'])
def test_a_machine_without_a_switch_is_refused(name):
  with pytest.raises(ValueError, match=f'{name}: expected a fabric with a sw'):
    flow_lib.simulate(
      _flow(2, [(0, 0.0, Op.PUT, 4, [(1,)])]), machine_lib.load(name)
    )


@pytest.mark.parametrize(
  'table, value',
  [
    ('op', 4),
    ('rank', 2),
    ('peer', -1),
    ('event', 3),
    ('channel', 1),
    ('wait_event', 1),
  ],
)
def test_tables_that_do_not_fit_are_named(table, value):
  from hpmoe.backend_ascend import _native

  flow = _flow(2, [(0, 0.0, Op.PUT, 4, [(1, 0)])], [1])
  flow.add_waits(flow.add_tasks(1, 0.0), 0)
  tables, _, _ = flow.tables()
  tables |= dict(up=np.ones(2), down=np.ones(2))
  tables[table] = np.full_like(tables[table], value)
  switch = flow_testing.machine().fabric.switched()
  with pytest.raises(ValueError, match=f'got {table}'):
    _native.simulate_flow(2, tables, switch)


@pytest.mark.parametrize(
  'table, value, message',
  [
    # Both pools run the first task, and nobody the second.
    ('pool_tasks', [0, 0], 'expected task 0 to begin once and end once'),
    ('own', [3.0, -1.0], 'expected times that ascend'),
  ],
)
def test_a_run_that_conserves_nothing_is_refused(table, value, message):
  from hpmoe.backend_ascend import _native

  flow = _flow(2, [(0, 3.0, Op.PUT, 4, [(1,)]), (1, 0.0, Op.PUT, 4, [(0,)])])
  tables, _, _ = flow.tables()
  tables |= dict(up=np.ones(2), down=np.ones(2))
  tables[table] = np.array(value, tables[table].dtype)
  switch = flow_testing.machine().fabric.switched()
  with pytest.raises(ValueError, match=message):
    _native.simulate_flow(2, tables, switch)
