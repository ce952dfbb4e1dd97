"""What a failure is told with: what to return, and what repeats it."""

from collections.abc import Callable, Iterator, Sequence
import dataclasses

from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.judge import verdicts


def with_hint(results: Sequence[verdicts.Result]) -> list[verdicts.Result]:
  """Tells who returned only a pass's results how to have a failure located."""
  missing = {r.missing for r in results}
  hints: dict[str, str] = {}
  for which in (passes.FORWARD, passes.BACKWARD):
    wanted = [name for name in which.stages if name in missing]
    if wanted:
      hint = f'return {", ".join(wanted)} to locate it nearer'
      hints |= dict.fromkeys(which.results, hint)
  hinted = []
  for result in results:
    failure = result.failure
    told = hints.get(verdicts.tensor_of(result.stage))
    if failure is not None and told:
      failure = dataclasses.replace(failure, hint=failure.hint or told)
    hinted.append(dataclasses.replace(result, failure=failure))
  return hinted


def with_replay(
  replay: Callable[[str], str], results: Sequence[verdicts.Result]
) -> Iterator[verdicts.Result]:
  """Yields results whose failures say what command repeats their lane."""
  for result in results:
    failure = result.failure
    if failure is not None:
      failure = dataclasses.replace(failure, replay=replay(failure.lane))
    yield dataclasses.replace(result, failure=failure)
