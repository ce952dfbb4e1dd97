r"""What threads, ranks and an uneven routing make of a launch.

One layer on one instruction set and the host's own tiles, launched in turns:

  one, two      balanced routing, one and two threads
  ranks         the same rows on several ranks of one process, two threads
  zipf          as many rows, of a zipf routing, two threads

Each figure is a quotient of medians of wall time; a round runs all candidates
of a pass one after the other, every other round backwards.  The shapes are
those of docs/peers.md.  Wall time on a machine that is not idle says nothing of
threads: run it alone.

Example:
  python -m benchmarks.threads_and_ranks --shape=M --rounds=7 --json=/tmp/t.json
"""

import dataclasses
import json
import statistics
import time

from absl import app
from absl import flags
import numpy as np

from benchmarks.peers import cases
from hpmoe.backend_ascend import compiler
from hpmoe.backend_ascend.frontends import layer_call
from hpmoe.backend_ascend.kernels.host.launch import runtime
from hpmoe.backend_ascend.taskflow import flow
from hpmoe.reference.contract import precision

_SHAPE = flags.DEFINE_enum('shape', 'M', list(cases.SHAPES), 'Of the layer.')
_DTYPE = flags.DEFINE_enum('dtype', 'f32', list(cases.DTYPES), 'Of storage.')
_RANKS = flags.DEFINE_integer('ranks', 4, 'Of the candidate with several.')
_ROUNDS = flags.DEFINE_integer('rounds', 5, 'Launches of each candidate.')
_PASSES = flags.DEFINE_multi_enum(
  'pass', ['forward', 'backward'], ['forward', 'backward'], 'What to launch.'
)
_JSON = flags.DEFINE_string('json', None, 'Write the figures to this file.')

# By name: routing, threads, several ranks.
CANDIDATES = {
  'one': ('balanced', 1, False),
  'two': ('balanced', 2, False),
  'ranks': ('balanced', 2, True),
  'zipf': ('zipf', 2, False),
}
# What is claimed, as (over, under): wall time of one by that of the other.
QUOTIENTS = {
  'one thread / two': ('one', 'two'),
  'ranks / one rank': ('ranks', 'two'),
  'zipf / balanced': ('zipf', 'two'),
}


def _of_ranks(name: str, array: np.ndarray, ranks: int) -> np.ndarray:
  """Returns tokens, or the experts of a weight, dealt to ranks in order."""
  del name
  return array.reshape(ranks, array.shape[0] // ranks, *array.shape[1:])


class Candidate:
  """A layer, compiled and loaded, with what its passes read and make."""

  def __init__(self, arrays: cases.Arrays, threads: int, ranks: int):
    config = dataclasses.replace(
      cases.SHAPES[_SHAPE.value],
      num_ranks=ranks,
      num_tokens=len(arrays['x']) // ranks,
    )
    policy = precision.PrecisionPolicy(storage=arrays['x'].dtype.name)
    options = flow.host_options(config)
    self._images = [
      runtime.Launch(lower(config, policy, options).image, threads=threads)
      for lower in (compiler.compile_forward, compiler.compile_backward)
    ]
    given = {n: _of_ranks(n, a, ranks) for n, a in arrays.items()}
    self._dy = given.pop('dy')
    self._inputs = given
    # Memory of outputs is the caller's, as in a loop: none is new in a round.
    self._y = self._images[0].run(given).outputs
    names = ('y', *layer_call.kept(policy))
    kept = self._images[0].run(given, names).outputs
    known = given | kept
    read = {n: known[n] for n in layer_call.gradient_inputs(policy)}
    self._saved = read | dict(dy=self._dy)
    self._grads = self._images[1].run(self._saved).outputs

  def forward(self) -> None:
    self._images[0].run(self._inputs, ('y',), out=self._y)

  def backward(self) -> None:
    self._images[1].run(self._saved, tuple(self._grads), out=self._grads)

  def results(self) -> dict[str, bytes]:
    """Returns the bits of what the last launches made."""
    return {n: a.tobytes() for n, a in (self._y | self._grads).items()}


def _seconds(run) -> float:
  start = time.perf_counter()
  run()
  return time.perf_counter() - start


def candidates() -> dict[str, Candidate]:
  """Returns all candidates; those of one routing have the same results."""
  made = {}
  inputs = {
    routing: cases.make(cases.Case(_SHAPE.value, _DTYPE.value, routing))
    for routing in cases.ROUTINGS
  }
  for name, (routing, threads, several) in CANDIDATES.items():
    ranks = _RANKS.value if several else 1
    made[name] = Candidate(inputs[routing], threads, ranks)
  want = made['one'].results()
  for name, (routing, _, _) in CANDIDATES.items():
    if routing == 'balanced' and made[name].results() != want:
      raise ValueError(f'{name}: expected the bits of one thread, got others')
  return made


def measure(made: dict[str, Candidate]) -> dict[str, dict[str, list[float]]]:
  """Returns milliseconds of every launch, by pass and candidate."""
  taken = {p: {name: [] for name in made} for p in _PASSES.value}
  for i in range(_ROUNDS.value):
    for each in _PASSES.value:
      for name in list(made)[:: -1 if i % 2 else 1]:
        taken[each][name].append(1e3 * _seconds(getattr(made[name], each)))
  return taken


def main(argv):
  del argv
  taken = measure(candidates())
  medians = {
    each: {name: statistics.median(ms) for name, ms in by_name.items()}
    for each, by_name in taken.items()
  }
  for each, by_name in medians.items():
    row = '  '.join(f'{name} {ms:.1f}' for name, ms in by_name.items())
    print(f'{each:9} ms: {row}')
    for label, (over, under) in QUOTIENTS.items():
      print(f'  {label:18} {by_name[over] / by_name[under]:.3f}')
  if _JSON.value:
    with open(_JSON.value, 'w') as file:
      json.dump(dict(medians_ms=medians, all_ms=taken), file, indent=1)


if __name__ == '__main__':
  app.run(main)
