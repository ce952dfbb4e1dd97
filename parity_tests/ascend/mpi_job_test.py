"""Which rank is at fault, from the endings of all ranks in any order."""

import itertools

import pytest

from hpmoe.parity_tests.ascend import mpi_job

EVERY_RANK = mpi_job.EVERY_RANK


def _waits(rank, *ranks):
  text = f'rank {rank}: waits for event 7'
  return mpi_job.Ending(rank, 'waits', text, ranks)


def _silent(rank, needs, outcome='stopped'):
  text = f'rank {rank} did not go on'
  return mpi_job.Ending(rank, outcome, text, (rank,), needs)


def _stopped(rank, *ranks):
  return mpi_job.Ending(rank, 'stopped', f'rank {ranks[0]} died', ranks)


DIED = mpi_job.Ending(2, 'died', 'rank 2 was killed', (2,))
GAVE_UP = mpi_job.Ending(3, 'error', 'rank 3: no memory', (3,))


class TestVerdict:
  @pytest.mark.parametrize(
    ('endings', 'ranks'),
    [
      # One is silent and the others wait for it, and for each other.
      (
        [_waits(0, 1, 2, 3), _silent(1, 0), _waits(2, 0, 1), _waits(3, 2)],
        (1,),
      ),
      # The same, its keeper being the first to act.
      ([_waits(0, 1), _silent(1, 1, 'hung'), _waits(2, 0), _waits(3)], (1,)),
      # One is stuck in a flush to the one that is stopped.
      ([_waits(0, 1, 2), _silent(1, 0), _silent(2, 1, 'hung')], (1,)),
      # All but one are in a call that takes every rank.
      (
        [_silent(0, EVERY_RANK, 'hung'), _silent(1, 1), _silent(2, EVERY_RANK)],
        (1,),
      ),
      # Nobody can tell.
      ([_silent(0, EVERY_RANK, 'hung'), _silent(1, EVERY_RANK)], (0, 1)),
      ([_silent(0, 1), _silent(1, 0)], (0, 1)),
      ([_waits(0, 1), _waits(1, 0)], (0, 1)),
      # Those that wait name one that does not: done, or without a word.
      ([_waits(0, 1, 2), _waits(1, 2)], (2,)),
      # A death, or an error, is a cause; all else follows.
      (
        [_waits(0, 1), _silent(1, EVERY_RANK, 'hung'), DIED, _stopped(3, 2)],
        (2,),
      ),
      ([_waits(0, 1), _silent(1, 0, 'hung'), _stopped(2, 3), GAVE_UP], (3,)),
      ([_stopped(0, 2), DIED, GAVE_UP], (2,)),
    ],
  )
  def test_does_not_depend_on_the_order_of_endings(self, endings, ranks):
    for order in itertools.permutations(endings):
      text, culprits, explained_endings = mpi_job.explain_endings(list(order))

      assert culprits == ranks
      assert any(f'rank {rank}' in text for rank in ranks) or 'waits' in text
      for ending in explained_endings:
        if ending.needs is not None:
          assert ending.ranks == ranks or ending.rank in ranks

  def test_a_rank_that_is_done_is_no_cause(self):
    success = mpi_job.Ending(1, mpi_job.SUCCESS, '', ())

    assert mpi_job.find_causes([success]) == []
    assert mpi_job.explain_endings([success, DIED])[2] == [success, DIED]


def test_time_while_suspended_does_not_count(monkeypatch):
  # Given a machine that stands still between two looks, when it goes on, then
  # patience is not over.
  now = [0.0]
  monkeypatch.setattr(mpi_job.time, 'monotonic', lambda: now[0])
  patience = mpi_job.Patience(1.0)
  looks = []
  for seconds in (50.0, *[0.09] * 12):
    now[0] += seconds
    looks.append(patience.has_run_out('same'))

  assert looks == [False] * 12 + [True]
