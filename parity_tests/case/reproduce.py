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
GOT = 0.0
EXPECTED = 0.0


def main():
  here = os.path.dirname(os.path.abspath(__file__))
  sys.path.insert(0, here)
  read_case = importlib.import_module('read_case')

  if len(sys.argv) != 2:
    sys.exit(f'usage: {sys.argv[0]} kernel.py:function')
  case = read_case.load(here)
  with tempfile.TemporaryDirectory() as out:
    read_case.run(case, read_case.function(sys.argv[1]), out)
    found = read_case.read(read_case.path_of(out, DATA))[0][STAGE]
    # While its file is there.
    got = float(read_case.as_numpy(found)[INDEX])
  print(f'{STAGE}{list(INDEX)} of {DATA} data: {got!r}, expected {EXPECTED!r}')
  apart = abs(got - EXPECTED)
  is_nan = GOT != GOT
  is_right = apart == apart if is_nan else apart < abs(GOT - EXPECTED) / 2
  sys.exit(0 if is_right else 1)


if __name__ == '__main__':
  main()
