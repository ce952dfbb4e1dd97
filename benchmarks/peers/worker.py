"""One peer in a process of its own: reads requests, answers with JSON lines.

  python -m benchmarks.peers.worker PEER FOLDER

FOLDER holds a case, and `golden/` what is right.  Requests: `check PASS` runs
the pass twice, so that all is compiled and warm, and compares; `time PASS` runs
it once.  Pass `multiply` is a product of two squares and is not compared.  A
process of its own has its own threads: those of another peer do not spin beside
it, for they wait for a request.
"""

import importlib
import json
import pathlib
import sys
import time

from benchmarks.peers import cases
from benchmarks.peers import peer as peer_lib

# Module and class of each peer.
PEERS = {
  'ours, numpy': ('our_peers', 'Numpy'),
  'ours, JAX': ('our_peers', 'Jax'),
  'ours, even_odd_32': ('our_peers', 'EvenOdd'),
  'torch grouped_mm': ('torch_peers', 'TorchGrouped'),
  'torch loop': ('torch_peers', 'TorchLoop'),
  'Hugging Face': ('torch_peers', 'HuggingFace'),
  'JAX ragged_dot': ('jax_peers', 'JaxRagged'),
  'JAX capacity': ('jax_peers', 'JaxCapacity'),
  'numpy loop': ('numpy_peer', 'NumpyLoop'),
}


def make(name: str, arrays: cases.Arrays) -> peer_lib.Peer:
  module, class_name = PEERS[name]
  loaded = importlib.import_module(f'benchmarks.peers.{module}')
  return getattr(loaded, class_name)(arrays)


def check(peer: peer_lib.Peer, which: str, golden: cases.Arrays):
  """Returns how far each result is from the golden one, by name."""
  run = getattr(peer, which)
  run()
  if which == cases.MULTIPLY:
    run()
    return {}
  got = peer.results(run())
  names = cases.RESULTS if which == 'both' else ('y',)
  missing = [n for n in names if n not in got]
  if missing:
    raise ValueError(f'{missing}: expected, got {list(got)}')
  return {n: cases.difference(got[n], golden[n]) for n in names}


def timed(peer: peer_lib.Peer, which: str) -> dict[str, float]:
  """Returns the seconds of one call by each clock of `tables.CLOCKS`.

  What the call returned is dropped outside.
  """
  run = getattr(peer, which)
  wall, processor = time.perf_counter(), time.process_time()
  out = run()
  processor, wall = time.process_time() - processor, time.perf_counter() - wall
  del out
  return dict(wall=wall, processor=processor)


def answer(peer: peer_lib.Peer, folder: pathlib.Path, request: str):
  verb, which = request.split()
  if verb == 'time':
    return timed(peer, which)
  try:
    return dict(apart=check(peer, which, cases.load(folder / 'golden')))
  except peer_lib.CannotRun as error:
    return dict(cannot=str(error))


def main(name: str, folder: pathlib.Path) -> None:
  # Libraries may print; answers go where the parent reads.
  answers, sys.stdout = sys.stdout, sys.stderr
  say = lambda what: print(json.dumps(what), file=answers, flush=True)
  try:
    peer = make(name, cases.load(folder))
  except peer_lib.CannotRun as error:
    say(dict(cannot=str(error)))
    return
  say(dict(versions=peer.versions()))
  for request in sys.stdin:
    say(answer(peer, folder, request))


if __name__ == '__main__':
  main(sys.argv[1], pathlib.Path(sys.argv[2]))
