"""Ranks that share nothing give the bits of one address space."""

import dataclasses

import numpy as np
import pytest

from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.host.launch import runtime
from hpmoe.backend_ascend.host.launch import runtime_testing as testing
from hpmoe.backend_ascend.host.ranks import rank_runtime
from hpmoe.backend_ascend.host.ranks import rank_testing
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import halved_testing
from hpmoe.reference.contract import precision

LAYERS = {
  'one_rank': config_testing.make_config(r=1, t=9, e=5, k=2, d=24, f=20),
  'one_slot': config_testing.make_config(r=2, t=23, e=2, k=1, d=8, f=8),
  'all_experts': config_testing.make_config(r=2, t=5, e=4, k=4, d=8, f=8),
  'four_ranks': config_testing.make_config(r=4, t=19, e=8, k=3, d=20, f=12),
  'eight_ranks': config_testing.make_config(r=8, t=7, e=8, k=2, d=9, f=5),
}
GRAINS = ('expert', 'row_block')
OPTIONS = dict(row_block=16, col_block=16, num_aic=2, num_aiv=3)
FOUR = LAYERS['four_ranks']


def _policy(storage='float32', placement='combine'):
  return precision.PrecisionPolicy(storage=storage, placement=placement)


def _case(config, direction, policy=_policy(), routing='uniform', **options):
  """Returns an image and its inputs."""
  options = OPTIONS | options
  if direction == 'forward':
    image = testing.compile_layer(config, policy, **options)
    return image, testing.make_inputs(config, policy, routing)
  image = testing.compile_grad(config, policy, chain_rows=16, **options)
  return image, testing.make_grad_inputs(config, policy, routing)


def _wire(seed, **faults):
  return rank_testing.Wire(np.random.default_rng(seed), **faults)


class TestSameBits:
  @pytest.mark.parametrize(
    'layer, placement, grain, direction, is_mapped',
    halved_testing.covering(
      *(LAYERS, precision.LAUNCHED_PLACEMENTS, GRAINS, ('forward', 'backward')),
      (False, True),
    ),
  )
  def test_late_and_reordered(
    self, layer, placement, grain, direction, is_mapped, seed
  ):
    # Given puts that come late, in pieces and in any order, or ranks that see
    # each other's memory and call nothing for it, when ranks take turns at
    # random, then every tensor is that of one address space.
    storage = ('float32', 'bfloat16', 'float16')[len(layer) % 3]
    policy = _policy(storage, placement)
    image, inputs = _case(LAYERS[layer], direction, policy, event_grain=grain)

    actual = rank_testing.launch_all(
      image, inputs, _wire(seed, is_mapped=is_mapped)
    )

    assert not testing.differing(
      actual, runtime.launch(image, inputs, threads=1)
    )

  @pytest.mark.parametrize('direction', ['forward', 'backward'])
  @pytest.mark.parametrize(
    'options',
    [
      *({'routing': routing} for routing in testing.ROUTINGS),
      *({'event_grain': grain, 'relay': True} for grain in GRAINS),
    ],
    ids=str,
  )
  def test_awkward_routings_and_tokens_that_cross_once(
    self, options, direction, seed
  ):
    image, inputs = _case(FOUR, direction, **options)

    actual = rank_testing.launch_all(image, inputs, _wire(seed))

    assert not testing.differing(
      actual, runtime.launch(image, inputs, threads=1)
    )

  def test_a_signal_before_its_data_is_seen(self, seed):
    # Given a wire that breaks the law these tests rest on, when ranks run, then
    # one of them reads what has not come: a header, and it cannot go on, or a
    # row, and bits differ.
    image, inputs = _case(FOUR, 'forward')
    wire = _wire(seed, ignores_flush=True)
    launches = rank_testing.prepare(image, inputs, wire)

    is_done = rank_testing.run(launches, wire, max_turns=10_000)

    want = runtime.launch(image, inputs, threads=1)
    assert not is_done or testing.differing(rank_testing.gather(launches), want)


class TestMapped:
  @pytest.mark.parametrize('part', [0, 1])
  def test_memory_that_is_too_small(self, part, seed, monkeypatch):
    # Given a peer whose memory is not what puts and signals reach, then the
    # launch is refused: they would write beyond it.
    def peers(end):
      ranks = [[np.zeros(h.size, np.uint8), c] for h, c in peers_of(end)]
      ranks[2][part] = ranks[2][part][:-1]
      return ranks

    peers_of = rank_testing.Loopback.peers
    monkeypatch.setattr(rank_testing.Loopback, 'peers', peers)
    image, inputs = _case(FOUR, 'forward')
    name = ('heap', 'counters')[part]
    with pytest.raises(ValueError, match=f'{name} of a peer: expected'):
      rank_testing.prepare(image, inputs, _wire(seed, is_mapped=True))


class TestBlocked:
  @pytest.mark.parametrize('silent_rank', range(1, 4))
  def test_names_tasks_of_the_rank_that_did_not_signal(self, silent_rank, seed):
    # Given a rank that never runs, when the others cannot go on, then each
    # one's first wait names tasks of that rank.
    image, inputs = _case(FOUR, 'forward')
    wire = _wire(seed)
    launches = rank_testing.prepare(image, inputs, wire)
    del launches[silent_rank]
    assert not rank_testing.run(launches, wire, max_turns=2000)

    for launch in launches:
      with pytest.raises(runtime.WaitError) as error:
        launch.run(0.01)
      suspects = error.value.diagnosis.suspects
      assert silent_rank in {task.rank for task in suspects}, str(error.value)
      assert error.value.diagnosis.reason == 'deadline'

  def test_a_transport_that_raises_ends_the_launch(self, seed):
    # Given a transport that knows of a lost rank, when a rank idles, then what
    # it raises comes through the native part.
    image, inputs = _case(FOUR, 'forward')
    launches = rank_testing.prepare(image, inputs, _wire(seed, lost_rank=3))

    with pytest.raises(rank_runtime.RankError, match='lost') as error:
      launches[0].run(60.0)

    assert error.value.ranks == (3,)


def _offers(edit=lambda rank, image, inputs: (image, inputs), num_ranks=4):
  image, inputs = _case(FOUR, 'forward')
  offers = []
  for rank in range(4):
    own = rank_testing.split(inputs, rank)
    own_image, own = edit(rank, bytearray(image), own)
    offers.append(rank_runtime.make_offer(own_image, rank, num_ranks, own))
  return offers


def _other_version(rank, image, inputs):
  if rank == 2:
    np.frombuffer(image, layout.HEADER, 1)['version'] += 1
    image = image_lib.seal(image)
  return image, inputs


def _other_image(rank, image, inputs):
  if rank in (1, 3):
    image = bytearray(testing.compile_layer(FOUR, row_block=8))
  return image, inputs


def _cut_image(rank, image, inputs):
  return (image[:100] if rank == 1 else image), inputs


def _bad_shape(rank, image, inputs):
  return image, inputs | (dict(x=inputs['x'][:, 1:]) if rank == 1 else {})


def _bad_ids(rank, image, inputs):
  ids = inputs['topk_ids'].copy()
  ids[3, 1] = 99 if rank == 3 else ids[3, 1]
  return image, dict(inputs, topk_ids=ids)


class TestAgree:
  @pytest.mark.parametrize(
    ('edit', 'ranks', 'text'),
    [
      (_other_version, (2,), 'rank 2: expected the image version 3'),
      (_other_image, (1, 3), 'ranks 1, 3: expected the image crc32'),
      (_cut_image, (1,), 'rank 1: '),
      (_bad_shape, (1,), r'rank 1: x: expected shape \(19, 20\)'),
      (_bad_ids, (3,), r'rank 3: topk_ids: .* rank 3, token 3, slot 1'),
    ],
    ids=lambda value: getattr(value, '__name__', ''),
  )
  def test_every_rank_names_the_one_that_differs(self, edit, ranks, text):
    offers = _offers(edit)

    with pytest.raises(rank_runtime.RankError, match=text) as error:
      rank_runtime.agree(offers)

    assert error.value.ranks == ranks

  def test_another_number_of_ranks(self):
    with pytest.raises(
      rank_runtime.RankError, match='rank 0: ranks: expected 4.* got 3'
    ):
      rank_runtime.agree(_offers(num_ranks=3))

  def test_too_many_rows_for_a_rank_is_told_by_every_rank(self, seed):
    # Given a capacity that the routing exceeds, when any rank prepares, then
    # it says so before a task runs.
    config = dataclasses.replace(FOUR, capacity=30)
    image = testing.compile_layer(config, **OPTIONS)
    inputs = testing.make_inputs(config, _policy(), 'one_rank')
    counts = rank_runtime.agree(
      [
        rank_runtime.make_offer(image, r, 4, rank_testing.split(inputs, r))
        for r in range(4)
      ]
    )

    for rank in range(4):
      end = rank_testing.Loopback(_wire(seed), rank, 4)
      with pytest.raises(ValueError, match='expected at most .* got 76'):
        rank_runtime.RankLaunch(
          image, rank_testing.split(inputs, rank), counts, end
        )

  def test_foreign_counts_are_refused(self, seed):
    image, inputs = _case(FOUR, 'forward')
    counts = np.zeros((4, 8), np.int32)

    with pytest.raises(ValueError, match='counts: expected the 57 slots'):
      rank_runtime.RankLaunch(
        image,
        rank_testing.split(inputs, 1),
        counts,
        rank_testing.Loopback(_wire(seed), 1, 4),
      )


def test_counters_that_overflow_wrap():
  # Given signals whose sum no counter holds, of an image that no proof has
  # seen, when launched, then a rank counts as one address space does.
  image, inputs = _case(LAYERS['one_rank'], 'forward')
  blob = bytearray(image)
  signals = image_lib.tables(blob)['signals']
  signals['amount'][signals['amount'] > 0] = 2**31 - 1
  blob = image_lib.seal(blob)
  with pytest.raises(runtime.WaitError) as want:
    runtime.launch(blob, inputs, threads=1)
  wire = _wire(0)
  (launch,) = rank_testing.prepare(blob, inputs, wire)

  assert not rank_testing.run([launch], wire, max_turns=1000)

  actual = launch.find_blocked()
  assert actual.actual == want.value.diagnosis.actual < 0
