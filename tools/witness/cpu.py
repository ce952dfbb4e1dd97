"""Runs the vendor's lowering of programs to a CPU.

Its passes end in MLIR of LLVM's dialect; Debian's LLVM of the same version
translates that and compiles it.
"""

from collections.abc import Sequence
import ctypes
import pathlib
import shutil
import subprocess

import numpy as np

from hpmoe.tools.witness import hivm
from hpmoe.tools.witness import programs
from hpmoe.tools.witness import vendor

# What its pipeline for a CPU does, but for the files that `main` reads.
_PASSES = (
  'execution-engine-convert-hivm-to-upstream',
  'execution-engine-convert-hfusion-to-upstream',
  'expand-strided-metadata',
  'convert-linalg-to-loops',
  'convert-scf-to-cf',
  'lower-affine',
  'arith-expand',
  'convert-math-to-llvm',
  'finalize-memref-to-llvm',
  'convert-func-to-llvm',
  'convert-cf-to-llvm',
  'convert-index-to-llvm',
  'convert-arith-to-llvm',
  'reconcile-unrealized-casts',
)
TOOLS = ('mlir-translate-19', 'llc-19', 'cc')
NO_TOOLS = (
  'values are not compared: expected {}. On Debian: apt-get install '
  'mlir-19-tools llvm-19 gcc'
)


def lacks() -> str:
  """Returns which tools there are not, or ''."""
  return ' '.join(tool for tool in TOOLS if not shutil.which(tool))


class _Descriptor(ctypes.Structure):
  """A memref of one dimension, as MLIR passes it."""

  _fields_ = [
    ('allocated', ctypes.c_void_p),
    ('aligned', ctypes.c_void_p),
    ('offset', ctypes.c_int64),
    ('size', ctypes.c_int64),
    ('stride', ctypes.c_int64),
  ]


class Lowering:
  """Programs of a batch, compiled for this CPU."""

  def __init__(
    self,
    tool: pathlib.Path,
    batch: Sequence[programs.Program],
    folder: pathlib.Path,
  ):
    text = vendor.run(tool, hivm.write(batch, on_cpu=True), *_PASSES)
    (folder / 'batch.mlir').write_text(text)
    for command in (
      f'{TOOLS[0]} --mlir-to-llvmir batch.mlir -o batch.ll',
      f'{TOOLS[1]} -O1 -filetype=obj -relocation-model=pic batch.ll -o batch.o',
      f'{TOOLS[2]} -shared batch.o -lm -o batch.so',
    ):
      subprocess.run(command.split(), cwd=folder, check=True)
    self._library = ctypes.CDLL(str(folder / 'batch.so'))

  def run(
    self, program: programs.Program, arrays: Sequence[np.ndarray]
  ) -> list[np.ndarray]:
    """Returns the arrays as a program leaves them."""
    buffer = np.full(programs.UB_BYTES, 0xFF, np.uint8)
    outputs = [array.copy() for array in arrays]
    descriptors = [_descriptor(array) for array in (buffer, *outputs)]
    function = self._library[f'_mlir_ciface_p{program.seed}']
    function(*(ctypes.byref(d) for d in descriptors))
    return outputs


def _descriptor(array: np.ndarray) -> _Descriptor:
  address = array.ctypes.data
  return _Descriptor(address, address, 0, array.size, 1)
