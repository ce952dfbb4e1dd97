"""What AMX runs gives the order's bits, on a model of its instructions."""

import itertools
import os
import platform
import shlex
import subprocess

import numpy as np
import pytest

from hpmoe.backend_ascend.host.tiles import gemm_testing
from hpmoe.backend_ascend.host.tiles import tiles_testing
from hpmoe.backend_ascend.image import freestanding_testing as freestanding

_TILES = 'backend_ascend/host/tiles'
_SOURCES = ('amx/gemm_amx_test', 'gemm', 'gemm_portable')
# Around one tile, two, and the rows and columns that one call takes.
SHAPES = ((1, 1), (15, 17), (16, 16), (17, 31), (32, 32), (70, 65))
# No step, around one and two, odd, and past the depth of a panel.
DEPTHS = (0, 1, 31, 32, 33, 63, 100, 300)


@pytest.fixture(scope='module')
def model(tmp_path_factory):
  """Returns the program."""
  if platform.machine() != 'x86_64':
    pytest.skip('AMX is of x86')
  binary = tmp_path_factory.mktemp('amx') / 'gemm_amx_test'
  compiler = shlex.split(os.environ.get('CXX') or 'c++')
  sources = (f'{freestanding.ROOT}/{_TILES}/{s}.cc' for s in _SOURCES)
  flags = ('-std=c++17', '-O1', '-ffp-contract=off', '-Wall', '-Werror')
  include = f'-I{freestanding.ROOT}'
  subprocess.run(
    [*compiler, *flags, include, *sources, '-o', binary], check=True
  )
  return binary


def _operands(m, k, n):
  """Returns bfloat16 bits; sums that are -0, subnormal and no numbers too."""
  rng = np.random.default_rng(m * 1000003 + k * 1009 + n)
  samples = []
  for shape in ((m, k), (k, n)):
    scale = rng.integers(-8, 8, shape)
    samples.append(np.ldexp(rng.standard_normal(shape, 'f4'), scale))
  a, b = samples
  if k and m > 4 and n > 4:
    a[0], b[:, 0] = 2.0**-100, -(2.0**-30)
    a[1], b[:, 1] = 1e-40, 0.75
    a[2, 0], b[-1, 2] = np.inf, np.nan
    a[3] = 2.0**-120 * np.where(np.arange(k) % 2, -1, 1 + 2.0**-7)
    b[:, 3] = 2.0**-6
  if k > 64 and m > 4 and n > 4:
    # A total that is flushed to -0, and what keeps it so.
    a[4, :64], a[4, 64:], b[:, 4] = 0, 2.0**-100, -(2.0**-30)
    a[4, 0], a[4, 32] = 2.0**-63, -(2.0**-63)
    b[0, 4], b[32, 4] = 1.5 * 2.0**-63, 1.75 * 2.0**-63
  return [gemm_testing.to_binding(x.astype('f4'), 'bfloat16') for x in (a, b)]


def _text(array) -> str:
  return ' '.join(f'{x:x}' for x in array.reshape(-1))


def test_bits_are_those_of_plain_multiply_adds(model):
  # Given every remainder of a tile, stored in every way, when the source that
  # AMX runs multiplies them on a model of AMX, then it configures, loads and
  # releases tiles as the CPU demands, and sums have the order's bits.
  cases = []
  ways = itertools.cycle(itertools.product((0, 1), repeat=2))
  for (m, n), k in itertools.product(SHAPES, DEPTHS):
    for trans in itertools.islice(ways, 3):
      a, b = _operands(m, k, n)
      want = np.empty((m, n), 'f4')
      tiles_testing.gemm_tile(a, b, 'portable', order='even_odd_32', sums=want)
      if k > 64 and m > 4 and n > 4:
        assert want[4, 4].view('u4') == (k % 32 > 1) << 31
      a, b = a.T if trans[0] else a, b.T if trans[1] else b
      text = f'{m} {n} {k} {trans[0]} {trans[1]} {_text(a)} {_text(b)}'
      cases.append((f'{m}x{k}x{n} {trans}', text, want))

  ran = subprocess.run(
    [model],
    input='\n'.join(text for _, text, _ in cases),
    capture_output=True,
    text=True,
  )

  assert ran.returncode == 0, ran.stdout[-200:] + ran.stderr
  actual = np.array([int(x, 16) for x in ran.stdout.split()], 'u4')
  for name, _, want in cases:
    own_sums, actual = actual[: want.size], actual[want.size :]
    np.testing.assert_array_equal(own_sums, want.view('u4').reshape(-1), name)
  assert not actual.size
