"""One pass of a candidate in the four lanes, on given inputs."""

from collections.abc import Callable, Sequence
import dataclasses

import numpy as np

from parity_tests import candidates
from parity_tests import inputs as inputs_lib
from parity_tests import lanes
from parity_tests import oracle as oracle_lib
from parity_tests import passes
from parity_tests import standards
from parity_tests import tiles

ORACLE_RULE = 'equals the oracle'
SERIAL_RULE = 'equals its kernels run serially'

Progress = Callable[[str], None]
Results = list[lanes.Result]
Got = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Asked:
  """What was asked for.

  Attributes:
    lanes: some of `lanes.LANES`.
    records: of lane standard.
    progress: called with the name of each step as it begins.
  """

  lanes: tuple[str, ...]
  records: tuple[standards.Standard, ...]
  progress: Progress


@dataclasses.dataclass(frozen=True)
class Case:
  """One pass on one set of inputs.

  Attributes:
    which: the pass.
    made: sizes and precision; its arrays are those that the pass reads.
    tiling: how tasks cut its tensors, for this routing.
    answer: returns the oracle's tensors; the caller may drop some.
  """

  which: passes.Pass
  made: inputs_lib.LayerInputs
  tiling: tiles.Tiling
  answer: Callable[[], Got]

  @property
  def oracle(self) -> oracle_lib.Oracle:
    made = self.made
    return oracle_lib.Oracle(made.config, made.policy, made.arrays)

  @property
  def sources(self) -> passes.Sources:
    return self.which.sources(self.made.policy)

  @property
  def movement(self) -> tuple[str, ...]:
    return self.which.movement(self.made.policy)

  def run(self, function: Callable[..., Got]) -> Got:
    """Returns what a candidate's `run` or `serial` answers."""
    made = self.made
    return function(made.config, made.policy, made.arrays, self.which)

  def recompute(
      self, oracle: oracle_lib.Oracle, name: str, got: passes.Tensors
  ) -> np.ndarray:
    """Returns the oracle's stage on the captured tensors before it."""
    return self.which.stage(oracle, name, self.made.arrays, got)

  def follows(self, name: str, got: passes.Tensors) -> bool:
    """Says whether all that a stage is computed from was captured."""
    before = self.sources.get(name, ())
    return bool(before) and set(before) <= set(got)


def count_steps(
    asked: Sequence[str], which: passes.Pass, has_serial: bool
) -> int:
  """Returns how often the lanes of a pass call `progress`."""
  steps = 3 * ('exact' in asked)
  if set(asked) - {'exact'}:
    steps += 2
  if 'bitwise' in asked and has_serial:
    steps += 1
  if {'bounded', 'standard'} & set(asked):
    steps += len(which.stages) + 1
  return steps


def exact_lane(
    asked: Asked, case: Case, candidate: candidates.Candidate
) -> tuple[Results, Got]:
  """Integer data on the same routing: candidate and oracle must be equal.

  Returns:
    The comparisons, and what the candidate returned.
  """
  which = case.which
  asked.progress(f'{which.name}, exact: candidate')
  try:
    got = case.run(candidate.run)
  except candidates.CannotJudge as error:
    return [
        lanes.Result(
            which.results[0], 'exact', ORACLE_RULE, verdict=lanes.NOT_JUDGED,
            why=str(error),
        )
    ], {}  # fmt: skip
  asked.progress(f'{which.name}, exact: oracle')
  expected = case.answer()
  asked.progress(f'{which.name}, exact: compare')
  results = [
      equality(name, 'exact', ORACLE_RULE, got, expected, case.tiling)
      for name in which.outputs
  ]
  return results, got


def equality(
    name: str,
    lane: str,
    rule: str,
    got: passes.Tensors,
    expected: passes.Tensors,
    tiling: tiles.Tiling,
) -> lanes.Result:
  if name not in got:
    return lanes.not_captured(name, lane, rule, name)
  return lanes.compare(name, lane, rule, got[name], expected[name], tiling)


def real_lanes(
    asked: Asked, case: Case, candidate: candidates.Candidate
) -> tuple[Results, Got]:
  """Lanes bitwise, bounded and standard, on one run of the candidate.

  Returns:
    The comparisons, and what the candidate returned.
  """
  which = case.which
  asked.progress(f'{which.name}, real data: candidate')
  got = case.run(candidate.run)
  results = []
  if 'bitwise' in asked.lanes and candidate.serial is not None:
    asked.progress(f'{which.name}, bitwise: own kernels, serially')
    results += serial_rows(case, candidate, got)
  asked.progress(f'{which.name}, real data: oracle')
  expected = case.answer()
  # The oracle's own stages stand in only where the candidate kept the inputs
  # of a stage to itself.
  needed = {*which.plan, *which.results} | {
      name for name in which.stages if not case.follows(name, got)
  }
  expected = {name: expected[name] for name in needed}
  oracle = case.oracle
  if 'bitwise' in asked.lanes:
    results += moved(case, got, expected, oracle)
  if {'bounded', 'standard'} & set(asked.lanes):
    results += judged(asked, case, got, expected, oracle)
  return results, got


def serial_rows(
    case: Case, candidate: candidates.Candidate, got: passes.Tensors
) -> Results:
  """The megakernel against its own tile kernels, run serially."""
  serial = case.run(candidate.serial)
  return [
      lanes.compare(
          name, 'bitwise', SERIAL_RULE, got[name], serial.pop(name),
          case.tiling,
      )
      for name in case.which.stages
  ]  # fmt: skip


def moved(
    case: Case,
    got: passes.Tensors,
    expected: passes.Tensors,
    oracle: oracle_lib.Oracle,
) -> Results:
  """What only moves or counts, bit for bit."""
  results = [
      equality(name, 'bitwise', ORACLE_RULE, got, expected, case.tiling)
      for name in case.which.plan
  ]
  for name in case.movement:
    before = case.sources.get(name, ())
    if not before:
      results.append(
          equality(name, 'bitwise', ORACLE_RULE, got, expected, case.tiling)
      )
      continue
    rule = f'equals its own {before[0]}, returned'
    if name in got and case.follows(name, got):
      home = {name: case.recompute(oracle, name, got)}
      results.append(equality(name, 'bitwise', rule, got, home, case.tiling))
    else:
      missing = before[0] if name in got else name
      results.append(lanes.not_captured(name, 'bitwise', rule, missing))
  return results


def judged(
    asked: Asked,
    case: Case,
    got: passes.Tensors,
    expected: passes.Tensors,
    oracle: oracle_lib.Oracle,
) -> Results:
  """Lanes bounded and standard: every stage, then the fused layer."""
  which, made = case.which, case.made
  records = asked.records if 'standard' in asked.lanes else ()
  bounded = 'bounded' in asked.lanes
  stages = which.golden(case.tiling, made.policy, made.arrays, got)
  results = []
  for name in which.stages:
    asked.progress(f'{which.name}, bounded, standard: {name}')
    moves = name in case.movement
    mine = [r for r in records if r.movement or not moves]
    missing = name if name not in got else _missing_source(case, name, got)
    if missing:
      results += _not_captured(name, missing, mine, bounded)
      continue
    benchmark = None
    if mine and case.follows(name, got):
      benchmark = case.recompute(oracle, name, got)
    elif mine:
      benchmark = expected[name]
    if moves:
      results += [
          lanes.compare(
              name, 'standard', f'{r.name}: movement, bitwise', got[name],
              benchmark, case.tiling,
          )
          for r in mine
      ]  # fmt: skip
      mine = []
    results += lanes.tolerances(
        name, got[name], stages, benchmark, mine, bounded
    )
  asked.progress(f'{which.name}, bounded, standard: layer')
  layer = dataclasses.replace(stages, captured={})
  mine = [r for r in records if r.layer]
  for name in which.results:
    row = lanes.LAYERS[name]
    if name not in got:
      results += _not_captured(row, name, mine, bounded)
      continue
    results += lanes.tolerances(
        row, got[name], layer, expected[name], mine, bounded
    )
  return results


def _not_captured(
    name: str,
    missing: str,
    records: Sequence[standards.Standard],
    bounded: bool,
) -> Results:
  rules = [('bounded', lanes.BOUND_RULE)] if bounded else []
  rules += [('standard', record.name) for record in records]
  return [lanes.not_captured(name, *rule, missing) for rule in rules]


def _missing_source(
    case: Case, name: str, got: passes.Tensors
) -> str | None:
  """A put can only be judged on the rows that it was given."""
  if name not in case.movement:
    return None
  missing = [n for n in case.sources.get(name, ()) if n not in got]
  return missing[0] if missing else None
