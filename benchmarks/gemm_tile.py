r"""Host tile kernels against the OpenBLAS of numpy, on one thread.

Every timed call, ours and OpenBLAS's alike, is one call from Python into a
given output, packing included; the candidates take turns, and medians are
compared.  OpenBLAS has no narrow product here: those rows are against its
float32 rate.  The environment may pin its kernels (OPENBLAS_CORETYPE=Haswell:
AVX2 on a CPU that has AVX-512), so what is set is printed: unset it for the
rate that OpenBLAS reaches by itself.

Target: 0.9 of OpenBLAS by the best instruction set, float32, both shapes, as
stored (nn) and with either operand transposed (nt, tn: the backward pass).
Predicted before the first run: 0.95 to 1.05 of OpenBLAS on the instruction
set that it uses, packing taking 3 % (b) of the time, bfloat16 3 % slower.
nt and tn: OpenBLAS packs those too, so the ratio holds to within 5 %.
SwiGLU: bound by arithmetic (17 operations and a division per element), about
20 GB/s with AVX2.

Example:
  env -u OPENBLAS_CORETYPE python -m benchmarks.gemm_tile --json=/tmp/gemm.json
"""

import collections
from collections.abc import Callable
import itertools
import json
import os
import platform
import statistics
import time

from absl import app
from absl import flags
import numpy as np
import threadpoolctl

from hpmoe.backend_ascend import _native
from hpmoe.reference.contract import storage

_REPEATS = flags.DEFINE_integer('repeats', 300, 'Interleaved repetitions.')
_JSON = flags.DEFINE_string('json', None, 'Write the figures to this file.')

SHAPES = ((128, 512, 256), (128, 256, 512))  # m, k, n
TRANSPOSED = {'nn': (False, False), 'nt': (False, True), 'tn': (True, False)}
ACTIVATION = (128, 512)  # rows, cols
WARM_UP = 10

Calls = dict[tuple[str, str], Callable[[], object]]


def medians(calls: Calls, repeats: int) -> dict[tuple[str, str], float]:
  """Returns the median seconds of each call; the calls take turns."""
  seconds = collections.defaultdict(list)
  for turn in range(repeats + WARM_UP):
    for name, call in calls.items():
      begin = time.perf_counter()
      call()
      if turn >= WARM_UP:
        seconds[name].append(time.perf_counter() - begin)
  return {name: statistics.median(s) for name, s in seconds.items()}


def _stored(x: np.ndarray, dtype: str) -> np.ndarray:
  stored = x.astype(storage.FORMATS[dtype].numpy, copy=False)
  return stored.view(np.uint16) if dtype == 'bfloat16' else stored


def gemm_calls(m: int, k: int, n: int, trans_a: bool, trans_b: bool) -> Calls:
  """Returns the candidates for `[m, k] @ [k, n]`, OpenBLAS first."""
  rng = np.random.default_rng(0)
  a = rng.standard_normal((k, m) if trans_a else (m, k), np.float32)
  b = rng.standard_normal((n, k) if trans_b else (k, n), np.float32)
  c = np.empty((m, n), np.float32)
  left, right = a.T if trans_a else a, b.T if trans_b else b
  calls = {('openblas', 'float32'): lambda: np.matmul(left, right, out=c)}
  for dtype in storage.STORED:
    ours = _stored(a, dtype), _stored(b, dtype), _stored(c, dtype).copy()
    for isa in _native.isas():
      if isa != 'portable':  # a software fma where the build has no other
        calls[isa, dtype] = lambda ours=ours, isa=isa: _native.gemm_tile_into(
          *ours, isa, trans_a, trans_b
        )
  return calls


def gemm_rows(repeats: int) -> list[dict[str, object]]:
  """Returns one record for each shape, storage and candidate."""
  rows = []
  for (m, k, n), stored in itertools.product(SHAPES, TRANSPOSED):
    seconds = medians(gemm_calls(m, k, n, *TRANSPOSED[stored]), repeats)
    base = seconds['openblas', 'float32']
    for (isa, dtype), s in seconds.items():
      rate = 2e-9 * m * k * n / s
      rows.append(
        dict(
          kernel='gemm',
          m=m,
          k=k,
          n=n,
          stored=stored,
          isa=isa,
          dtype=dtype,
          gflops=rate,
          ratio=base / s,
        )
      )
  return rows


def swiglu_rows(repeats: int) -> list[dict[str, object]]:
  """Returns one record for each candidate: bytes read and written."""
  gate, up = np.random.default_rng(0).standard_normal(
    (2, *ACTIVATION), np.float32
  )
  calls = {}
  for dtype in storage.STORED:
    tile = _stored(gate, dtype), _stored(up, dtype)
    for isa in _native.isas():
      calls[isa, dtype] = lambda tile=tile, isa=isa: _native.swiglu_tile(
        *tile, isa=isa
      )
  return [
    dict(
      kernel='swiglu',
      rows=ACTIVATION[0],
      cols=ACTIVATION[1],
      isa=isa,
      dtype=dtype,
      gbytes=3e-9 * gate.size * storage.FORMATS[dtype].numpy.itemsize / s,
    )
    for (isa, dtype), s in medians(calls, repeats).items()
  ]


def openblas() -> list[dict[str, object]]:
  """Returns name, version and kernels of the BLAS that numpy calls."""
  keys = ('internal_api', 'version', 'architecture', 'num_threads')
  return [
    {key: pool.get(key) for key in keys}
    for pool in threadpoolctl.threadpool_info()
    if pool['user_api'] == 'blas'
  ]


def main(argv: list[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'expected no arguments, got {argv[1:]}')
  print(__doc__[__doc__.index('Target:') : __doc__.index('Example:')])
  with threadpoolctl.threadpool_limits(1):
    blas = openblas()
    pinned = {k: v for k, v in os.environ.items() if k.startswith('OPENBLAS_')}
    print(f'{platform.machine()}, {blas}, environment: {pinned}')
    gemm = gemm_rows(_REPEATS.value)
    swiglu = swiglu_rows(_REPEATS.value)
  for row in gemm:
    print(
      'gemm {m}x{k}x{n} {stored} {isa:9} {dtype:9} {gflops:7.1f} GFLOP/s '
      '{ratio:6.3f} of OpenBLAS'.format(**row)
    )
  for row in swiglu:
    print(
      'swiglu {rows}x{cols} {isa:9} {dtype:9} {gbytes:6.1f} GB/s'.format(**row)
    )
  if _JSON.value:
    with open(_JSON.value, 'w', encoding='utf-8') as f:
      report = dict(blas=blas, environment=pinned, rows=gemm + swiglu)
      json.dump(dict(machine=platform.machine(), **report), f, indent=1)


if __name__ == '__main__':
  app.run(main)
