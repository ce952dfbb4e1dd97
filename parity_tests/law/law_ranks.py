"""The law over processes: each rank in its own, the bits of a serial run."""

from collections.abc import Callable, Sequence
import dataclasses
import time

import numpy as np

from hpmoe.parity_tests.candidates import mpi_launcher
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.judge.limits import ulp
from hpmoe.parity_tests.law import law
from hpmoe.parity_tests.report import text_table
from hpmoe.reference.contract import presets


@dataclasses.dataclass(frozen=True)
class Row:
  """All tensors of one launch.

  Attributes:
    processes: ranks, each a process.
    direction, dtype: which launch.
    tensors: compared.
    equal: those of them that have the bits of a serial run in one process.
    differing_bits: in all the others.
    seconds: wall time, starting the processes included.
  """

  processes: int
  direction: str
  dtype: str
  tensors: int
  equal: int
  differing_bits: int
  seconds: float


def run(
  plan: law.Plan,
  processes: Sequence[int],
  progress: Callable[[str], None] = lambda step: None,
) -> list[Row]:
  """Launches each pass and dtype of a plan, as many ranks as processes.

  Raises:
    ValueError: the plan names something that does not exist.
    candidates.CandidateError: a rank was lost.
  """
  rows = []
  experts = presets.get(plan.preset).num_experts
  for count in processes:
    if count < 1 or experts % count:
      raise ValueError(
        f'processes: expected divisors of num_experts={experts}, got {count}'
      )
  if processes:
    mpi_launcher.find_mpiexec()  # Told before the long part.
  for count in processes:
    one = dataclasses.replace(plan, ranks=count)
    for dtype, order in plan.sums:
      made = law.make_inputs(one, dtype, order)
      for direction in plan.directions:
        progress(f'{count} processes, {direction} {dtype}')
        (which,) = passes.of(direction)
        rows.append(_row(one, which, law.read(one, which, made)))
  return rows


def _row(plan: law.Plan, which: passes.Pass, made) -> Row:
  image = law.compile_image(which, made, next(plan.options()))
  expected = law.serial(image, made)
  start = time.perf_counter()
  got = mpi_launcher.launch(image, made.arrays)
  seconds = time.perf_counter() - start
  apart = {name: _differing(got[name], expected[name]) for name in expected}
  return Row(
    processes=plan.ranks,
    direction=which.name,
    dtype=law.sums_of(made),
    tensors=len(apart),
    equal=sum(not bits for bits in apart.values()),
    differing_bits=sum(apart.values()),
    seconds=round(seconds, 3),
  )


def _differing(got: np.ndarray, expected: np.ndarray) -> int:
  bits = ulp.bits(got) ^ ulp.bits(expected)
  return int(np.unpackbits(np.ascontiguousarray(bits).view(np.uint8)).sum())


def text(rows: Sequence[Row]) -> str:
  """Returns one line per launch."""
  heading = (
    'processes',
    'direction',
    'dtype',
    'tensors equal',
    'differing bits',
    'seconds',
  )
  cells = [
    (
      str(row.processes),
      row.direction,
      row.dtype,
      f'{row.equal} of {row.tensors}',
      str(row.differing_bits),
      f'{row.seconds:.1f}',
    )
    for row in rows
  ]
  return text_table.text(heading, cells)
