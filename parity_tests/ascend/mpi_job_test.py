"""Who is at fault, from what every rank knows, in any order."""

import itertools

import pytest

from hpmoe.parity_tests.ascend import mpi_job

EVERY = mpi_job.EVERY_RANK


def _waits(rank, *ranks):
  text = f'rank {rank}: waits for event 7'
  return mpi_job.Ending(rank, 'waits', text, ranks)


def _silent(rank, needs, how='stopped'):
  text = f'rank {rank} did not go on'
  return mpi_job.Ending(rank, how, text, (rank,), needs)


def _told(rank, *ranks):
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
      ([_silent(0, EVERY, 'hung'), _silent(1, 1), _silent(2, EVERY)], (1,)),
      # Nobody can tell.
      ([_silent(0, EVERY, 'hung'), _silent(1, EVERY)], (0, 1)),
      ([_silent(0, 1), _silent(1, 0)], (0, 1)),
      ([_waits(0, 1), _waits(1, 0)], (0, 1)),
      # Those that wait name one that does not: done, or without a word.
      ([_waits(0, 1, 2), _waits(1, 2)], (2,)),
      # A death, or an error, is a cause; all else follows.
      ([_waits(0, 1), _silent(1, EVERY, 'hung'), DIED, _told(3, 2)], (2,)),
      ([_waits(0, 1), _silent(1, 0, 'hung'), _told(2, 3), GAVE_UP], (3,)),
      ([_told(0, 2), DIED, GAVE_UP], (2,)),
    ],
  )
  def test_does_not_depend_on_who_was_first(self, endings, ranks):
    for ended in itertools.permutations(endings):
      text, found, seen = mpi_job.verdict(list(ended))

      assert found == ranks
      assert any(f'rank {rank}' in text for rank in ranks) or 'waits' in text
      for ending in seen:
        if ending.needs is not None:
          assert ending.ranks == ranks or ending.rank in ranks

  def test_who_is_done_says_nothing(self):
    done = mpi_job.Ending(1, mpi_job.DONE, '', ())

    assert mpi_job.culprits([done]) == []
    assert mpi_job.verdict([done, DIED])[2] == [done, DIED]


def test_time_in_which_nobody_looked_does_not_count(monkeypatch):
  # Given a machine that stands still between two looks, when it goes on, then
  # patience is not over.
  now = [0.0]
  monkeypatch.setattr(mpi_job.time, 'monotonic', lambda: now[0])
  patience = mpi_job.Patience(1.0)
  looks = []
  for seconds in (50.0, *[0.09] * 12):
    now[0] += seconds
    looks.append(patience.over('same'))

  assert looks == [False] * 12 + [True]
