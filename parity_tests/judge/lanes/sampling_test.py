"""A layer judged in part."""

import numpy as np
import pytest

from hpmoe.parity_tests.ascend import host
from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.case import tiles
from hpmoe.parity_tests.judge import bench as bench_lib
from hpmoe.parity_tests.judge import check
from hpmoe.parity_tests.judge import judgement
from hpmoe.parity_tests.judge import verdicts
from hpmoe.reference.contract import granularity

REQUEST = check.Request(
  case_lib.Case(preset='tiny', ranks=2, tokens=48),
  host.Megakernel(options=granularity.Options(row_block=4, token_block=8)),
  judgement.Judgement(tiles=1, lanes=judgement.OF_SAMPLE),
)


class _SpoiledBackend(candidates.Candidate):
  """Our backend, with one element of a tensor changed after the launch."""

  name, options = 'spoiled', REQUEST.candidate.options

  def __init__(self, stage, position, kept_names=None):
    self._inner = host.Megakernel(self.options)
    self._stage, self._position, self._kept_names = stage, position, kept_names

  def run(self, *args, **kwargs):
    outputs = self._inner.run(*args, **kwargs)
    if self._stage:
      outputs[self._stage][self._position] += 1
    return {
      n: a
      for n, a in outputs.items()
      if not self._kept_names or n in self._kept_names
    }


@pytest.fixture(scope='module')
def bench():
  return bench_lib.Bench(REQUEST.case)


def _list_failed(bench, *arguments):
  results = bench.judge(REQUEST.but(candidate=_SpoiledBackend(*arguments)))
  return {r.stage: r for r in results if r.verdict == verdicts.FAIL}


class TestSample:
  def test_edges_are_always_in_it(self):
    expert = np.repeat([0, 1, 2], [5, 1, 9])
    cut = tiles.Cut(np.arange(16), expert, np.arange(15), np.array([0, 4]))

    for seed in range(20):
      sampled = tiles.Sample(2, seed).choose(cut, 3)
      assert {0, 4, 5, 14} <= set(sampled) and len(sampled) <= 6

  def test_the_seed_decides(self):
    cut = tiles.cut_tokens(400, 4, 8, 8)
    sampled, same_seed, other_seed = (
      tiles.Sample(9, n).choose(cut, 1) for n in (0, 0, 1)
    )

    assert np.array_equal(sampled, same_seed) and not np.array_equal(
      sampled, other_seed
    )
    assert len(tiles.Sample(100).choose(cut, 1)) == 100


class TestLanesOfSample:
  def test_a_right_kernel_passes_on_fewer_tiles(self, bench):
    right = REQUEST.but(candidate=_SpoiledBackend(None, None))
    few = bench.judge(right)
    all_results = bench.judge(right.but(tiles=1000))

    assert {r.verdict for r in few + all_results} == {verdicts.PASS}
    sampled_tiles, all_ = (
      {r.stage: r.tiles for r in x} for x in (few, all_results)
    )
    assert 0 < sampled_tiles['gate_up'] < all_['gate_up']
    # Movement and order are whole.
    for stage in ('counts', 'row_of_slot', 'expert_in', 'returned'):
      assert sampled_tiles[stage] == all_[stage]

  @pytest.mark.parametrize('stage', ['expert_in', 'returned'])
  def test_movement_is_seen_anywhere(self, bench, stage):
    assert stage in _list_failed(bench, stage, (1, 3))

  @pytest.mark.parametrize('stage', ['gate_up', 'activation', 'expert_out'])
  def test_the_first_tile_is_always_judged(self, bench, stage):
    failed_rows = _list_failed(bench, stage, (1, 0, 0))

    assert failed_rows[stage].failure.index == (1, 0, 0)

  def test_the_layer_names_the_token_of_the_whole(self, bench):
    failed_rows = _list_failed(bench, 'y', (1, 47, 2), ('y',))

    first = failed_rows['layer'].failure
    assert first.index == (1, 47, 2)
    assert (first.token, first.row_block) == (47, 5)

  @pytest.mark.parametrize(
    ('wrong', 'says'),
    [
      (dict(tiles=0), 'at least 1, got 0'),
      (dict(direction='both'), '--direction=forward'),
      (dict(lanes=('exact',)), '--lane=bitwise,bounded'),
    ],
  )
  def test_what_a_sample_cannot_judge_is_refused(self, wrong, says):
    with pytest.raises(ValueError, match=f'tiles: expected .*{says}'):
      check.run(REQUEST.but(**wrong))
