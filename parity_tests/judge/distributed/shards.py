"""A check by several processes, each of which judges some ranks.

Each shard writes its findings to a file in a folder that all processes share.
Merging the files gives the report of one process, except for patterns of
failures (`explain`), which need all ranks.  Nothing else is exchanged.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import json
import os
import pathlib
import re
import time
from typing import Any, Self

import numpy as np

from hpmoe.parity_tests.cache import versions
from hpmoe.parity_tests.candidates import outputs
from hpmoe.parity_tests.judge import bench as bench_lib
from hpmoe.parity_tests.judge import check
from hpmoe.parity_tests.judge import failure_details
from hpmoe.parity_tests.judge import rank_parts
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.lanes import equality
from hpmoe.parity_tests.judge.lanes import pass_case
from hpmoe.parity_tests.judge.lanes import spread_tally
from hpmoe.parity_tests.judge.limits import power
from hpmoe.parity_tests.judge.limits import shares
from hpmoe.parity_tests.judge.limits import spread
from hpmoe.reference.contract import precision


class ShardError(ValueError):
  """A shard is missing, ended early, or answered another request."""


@dataclasses.dataclass(frozen=True)
class Shard:
  """One of several processes.

  Attributes:
    index: from 0.
    count: number of shards.
  """

  index: int
  count: int

  def __post_init__(self):
    if not 0 <= self.index < self.count:
      raise ValueError(
        f'shard: expected r/R with 0 <= r < R, got {self.index}/{self.count}'
      )

  @classmethod
  def parse(cls, text: str) -> Self:
    """Returns the shard of `2/4`.

    Raises:
      ValueError: the text is no shard.
    """
    match = re.fullmatch(r'(\d+)/(\d+)', text)
    if match is None:
      raise ValueError(f'shard: expected r/R, such as 0/4, got {text!r}')
    return cls(int(match[1]), int(match[2]))

  def ranks(self, num_ranks: int) -> tuple[int, ...]:
    """Returns its ranks: consecutive ones, so that shards are in rank order.

    Raises:
      ValueError: there are fewer ranks than shards.
    """
    if self.count > num_ranks:
      raise ValueError(
        f'shard: expected at most {num_ranks} of them, one for each rank, got '
        f'{self.count}'
      )
    own_ranks = np.array_split(np.arange(num_ranks), self.count)[self.index]
    return tuple(int(rank) for rank in own_ranks)

  def file(self, folder: str | os.PathLike[str]) -> pathlib.Path:
    """Returns the file that it writes."""
    return pathlib.Path(folder) / f'shard{self.index}of{self.count}.json'

  @property
  def name(self) -> str:
    """Its name in errors."""
    return f'shard {self.index} of {self.count}'

  def describe(self, num_ranks: int) -> str:
    """Returns its name with its ranks."""
    ranks = ', '.join(map(str, self.ranks(num_ranks)))
    return f'{self.name} (rank {ranks})'


def judge(
  request: check.Request,
  shard: Shard,
  progress: pass_case.Progress = lambda step: None,
) -> dict[str, Any]:
  """Returns the findings of a shard as plain data.

  Raises:
    ValueError: the request was wrong.
    candidates.CandidateError: the candidate failed to run.
  """
  start = time.perf_counter()
  request, bench = _ready(request, shard.ranks(request.case.ranks), progress)
  returned_ranks = request.candidate.ranks
  own_ranks = shard.ranks(request.case.ranks)
  findings = pass_case.Findings([], {})
  if returned_ranks is None or set(own_ranks) & set(returned_ranks):
    findings = bench.judge_ranks(request, progress)
  return dict(
    shard=shard.name,
    asked=_describe_request(request),
    found=encoded([findings.results, findings.changes, findings.runs]),
    seconds=time.perf_counter() - start,
  )


def place(folder: str | os.PathLike[str], shard: Shard) -> pathlib.Path:
  """Returns the file of a shard, after deleting an earlier one."""
  path = shard.file(folder)
  path.parent.mkdir(parents=True, exist_ok=True)
  path.unlink(missing_ok=True)
  return path


def _ready(request: check.Request, share, progress=lambda step: None):
  if not isinstance(request.candidate, outputs.Outputs):
    raise ValueError(
      'shard: expected --outputs with it, from a run elsewhere, got '
      f'{request.candidate.name}'
    )
  if request.case.folder is None:
    raise ValueError(
      'shard: expected --case with it, a folder of `hpmoe export`, got none'
    )
  candidate = dataclasses.replace(request.candidate, in_shares=True)
  candidate = candidate.ready(request.case)
  request.judgement.refuse(request.case, candidate)
  progress('inputs')
  bench = bench_lib.Bench(request.case, share=share)
  return dataclasses.replace(request, candidate=candidate), bench


def _describe_request(request: check.Request) -> dict[str, Any]:
  """Returns the facts that must be the same for all shards of a check."""
  candidate = request.candidate
  assert isinstance(candidate, outputs.Outputs) and candidate.answer is not None
  return dict(
    case=candidate.answer.case.id,
    command=request.replay(),
    judgement=encoded(dataclasses.asdict(request.judgement)),
    versions=versions.list_versions(),
  )


def half_written(path: pathlib.Path, process: int | str) -> str:
  """Returns the name of a shard's file while a process writes it."""
  return f'.{path.name}.{process}'


def write(path: pathlib.Path, content: Mapping[str, Any]) -> None:
  """Writes a shard's file atomically: it is complete or absent."""
  whole = path.with_name(half_written(path, os.getpid()))
  try:
    whole.write_text(json.dumps(content), encoding='utf-8')
    whole.replace(path)
  finally:
    whole.unlink(missing_ok=True)


def merge(
  request: check.Request, folder: str | os.PathLike[str]
) -> check.Report:
  """Returns the report of the shards that wrote to a folder.

  Raises:
    ShardError: a shard is missing, ended early, or had another request; names
      it.
    ValueError: the request was wrong.
  """
  start = time.perf_counter()
  shards = _of_folder(folder)
  request, bench = _ready(request, ())
  shard_files = _read_shards(shards, folder, request)
  decoded_shards = [decoded(content['found']) for content in shard_files]
  rows = rank_parts.merge_ranks(results for results, *_ in decoded_shards)
  findings = pass_case.Findings(
    [_add_place(request, bench, row) for row in rows],
    {},
    changes=[change for _, changes, _ in decoded_shards for change in changes],
    runs=min(runs for *_, runs in decoded_shards),
  )
  findings = bench_lib.finish_findings(request, findings)
  longest = max(content['seconds'] for content in shard_files)
  return check.build_report(
    request, bench, findings, longest + time.perf_counter() - start
  )


def _add_place(
  request: check.Request, bench: bench_lib.Bench, result: verdicts.Result
) -> verdicts.Result:
  """Adds the place of the first bad tile of all ranks in files."""
  candidate = request.candidate
  assert isinstance(candidate, outputs.Outputs)
  if result.failure is None:
    return result
  data = 'real'
  if result.lane == 'exact':
    data = 'wide' if result.rule == equality.WIDE_RULE else 'exact'
  candidate.locate(data, verdicts.tensor_of(result.stage))
  tiling = bench_lib.cut_tiles(candidate.options, bench.real_inputs, bench.plan)
  return failure_details.add_places([result], candidate, tiling)[0]


def _of_folder(folder: str | os.PathLike[str]) -> list[Shard]:
  """Returns the shards that must have a file in a folder."""
  top = pathlib.Path(folder)
  names = [path.name for path in top.iterdir()] if top.is_dir() else []
  matches = [re.fullmatch(r'shard(\d+)of(\d+)\.json', name) for name in names]
  counts = sorted({int(match[2]) for match in matches if match})
  if len(counts) != 1:
    raise ShardError(
      f'merge: expected the files of the shards of one check in {folder}, got '
      f'{"those of " + " and of ".join(map(str, counts)) if counts else "none"}'
    )
  return [Shard(index, counts[0]) for index in range(counts[0])]


def _read_shards(
  shards: Sequence[Shard], folder, request
) -> list[dict[str, Any]]:
  """Returns the findings of each shard.

  Raises:
    ShardError: some have none; names all of them.
  """
  shard_files, errors = [], []
  expected_request = _describe_request(request)
  for shard in shards:
    try:
      shard_files.append(read(shard, folder))
      _refuse_other(shard_files[-1]['asked'], expected_request)
    except ShardError as error:
      errors.append(f'{shard.describe(request.case.ranks)}: {error}')
  if errors:
    raise ShardError('; '.join(errors))
  return shard_files


def read(shard: Shard, folder: str | os.PathLike[str]) -> dict[str, Any]:
  """Returns the findings of a shard.

  Raises:
    ShardError: it has none; says what its file holds instead.
  """
  path = shard.file(folder)
  try:
    content = json.loads(path.read_text(encoding='utf-8'))
  except FileNotFoundError as error:
    raise ShardError(f'expected {path}, got no file') from error
  except (OSError, ValueError) as error:
    raise ShardError(f'expected a readable {path}, got {error}') from error
  if 'error' in content:
    raise ShardError(content['error'])
  if content['shard'] != shard.name:
    raise ShardError(
      f'expected its results in {path}, got that of {content["shard"]}'
    )
  return content


def _refuse_other(actual: Mapping, expected: Mapping) -> None:
  for name, value in expected.items():
    if actual.get(name) != value:
      raise ShardError(
        f'{name}: expected {value}, as in the request that merges, got '
        f'{actual.get(name)}'
      )


# Plain data: dataclasses of these kinds, arrays, tuples and numbers.
_KINDS = {
  kind.__name__: kind
  for kind in (
    verdicts.Result,
    verdicts.Failure,
    verdicts.Change,
    rank_parts.Part,
    rank_parts.BoundFigures,
    rank_parts.StandardFigures,
    spread_tally.SpreadFigures,
    spread.Judge,
    spread.Independent,
    spread.Sums,
    power.Power,
    shares.Histogram,
    precision.PrecisionPolicy,
  )
}


def encoded(value: Any) -> Any:
  """Returns a value as JSON; `decoded` restores the same bits.

  A row of a report is encoded as its part, if it has one.
  """
  if isinstance(value, verdicts.Result) and value.part is not None:
    return encoded(value.part)
  if type(value).__name__ in _KINDS:
    fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    return {'kind': type(value).__name__, 'fields': encoded(fields)}
  if isinstance(value, np.ndarray):
    return {
      'array': str(value.dtype),
      'shape': value.shape,
      'values': value.reshape(-1).tolist(),
    }
  if isinstance(value, np.generic):
    return value.item()
  if isinstance(value, Mapping):
    return {'rows': [[encoded(k), encoded(v)] for k, v in value.items()]}
  if isinstance(value, (list, tuple)):
    return [encoded(item) for item in value]
  return value


def decoded(value: Any) -> Any:
  """Returns a decoded value; lists become tuples, parts rows of a report."""
  if isinstance(value, list):
    return tuple(decoded(item) for item in value)
  if not isinstance(value, dict):
    return value
  if 'rows' in value:
    return {decoded(k): decoded(v) for k, v in value['rows']}
  if 'array' in value:
    return np.array(value['values'], value['array']).reshape(value['shape'])
  decoded_object = _KINDS[value['kind']](**decoded(value['fields']))
  if isinstance(decoded_object, rank_parts.Part):
    return decoded_object.result() or verdicts.Result(
      *decoded_object.key, verdict=verdicts.NOT_JUDGED, part=decoded_object
    )
  return decoded_object
