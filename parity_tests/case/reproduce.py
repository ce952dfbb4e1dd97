"""Shows one element that a kernel has wrong: `reproduce.py kernel.py:moe`.

`hpmoe shrink` copies it to a case and fills in what follows the imports; there
it needs numpy and read_case.py beside it.
"""

import importlib
import os
import sys
import tempfile

DATA = 'real'
STAGE = 'y'
INDEX = (0, 0, 0)
ACTUAL = 0.0
EXPECTED = 0.0


def main():
  folder = os.path.dirname(os.path.abspath(__file__))
  sys.path.insert(0, folder)
  read_case = importlib.import_module('read_case')

  if len(sys.argv) != 2:
    sys.exit(f'usage: {sys.argv[0]} kernel.py:function')
  case = read_case.load(folder)
  with tempfile.TemporaryDirectory() as out:
    read_case.run(case, read_case.function(sys.argv[1]), out)
    tensor = read_case.read(read_case.path_of(out, DATA))[0][STAGE]
    # While its file is there.
    actual = float(read_case.as_numpy(tensor)[INDEX])
  print(
    f'{STAGE}{list(INDEX)} of {DATA} data: {actual!r}, expected {EXPECTED!r}'
  )
  apart = abs(actual - EXPECTED)
  is_nan = ACTUAL != ACTUAL
  is_right = apart == apart if is_nan else apart < abs(ACTUAL - EXPECTED) / 2
  sys.exit(0 if is_right else 1)


if __name__ == '__main__':
  main()
