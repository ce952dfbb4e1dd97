r"""Compiles the host program of several NPUs against the real ACL and SHMEM.

  python -m hpmoe.tools.npus_headers --acl=DIR --shmem=DIR

--acl holds acl/acl.h: `include` of an installed CANN, or include/external of
its runtime's source.  --shmem holds shmem.h: `include` of SHMEM.  No library,
no NPU and no other compiler than CXX (default g++) is needed: nothing is linked
or run.  The stand-ins of both are compiled against the same headers, whose
declarations they must then have: what the host program is tried with is called
as the real ones are.

Exit codes: 0 all compile without a warning in our files, 1 not, 2 a folder is
missing or is not such a folder.
"""

import os
import pathlib
import re
import shlex
import subprocess
import sys

from absl import app
from absl import flags

ROOT = pathlib.Path(__file__).resolve().parents[1]
NPUS = ROOT / 'backend_ascend/device/npus'
STANDIN = NPUS.parent / 'standin'

_ACL = flags.DEFINE_string('acl', None, 'Folder that holds acl/acl.h.')
_SHMEM = flags.DEFINE_string('shmem', None, 'Folder that holds shmem.h.')


def sources() -> list[pathlib.Path]:
  """Returns the sources to compile: the host program and the stand-ins."""
  standins = [STANDIN / 'acl.cc', STANDIN / 'shmem.cc']
  return sorted(NPUS.glob('*.cc')) + standins


def check(acl: pathlib.Path, shmem: pathlib.Path) -> int:
  """Prints the compiler's messages for each source; returns the exit code."""
  has_failed = False
  for source in sources():
    process = subprocess.run(
      [
        *shlex.split(os.environ.get('CXX') or 'g++'),
        *('-std=c++17', '-Wall', '-Wextra', '-fsyntax-only', f'-I{ROOT}'),
        *('-isystem', str(acl), '-isystem', str(shmem), str(source)),
      ],
      capture_output=True,
      text=True,
    )
    problems = re.findall(r'.*(?:error|warning): .*', process.stderr)
    has_failed |= bool(problems) or process.returncode != 0
    name = source.relative_to(NPUS.parent)
    print(f'{name}: ' + ('\n'.join(problems) or 'compiles, no warning'))
  return int(has_failed)


def main(argv: list[str]) -> int:
  if len(argv) > 1:
    raise app.UsageError(f'expected flags only, got {argv[1:]}')
  for flag, header in ((_ACL, 'acl/acl.h'), (_SHMEM, 'shmem.h')):
    if not pathlib.Path(flag.value or '', header).is_file():
      print(
        f'--{flag.name}: expected a folder that holds {header}, got '
        f'{flag.value}',
        file=sys.stderr,
      )
      return 2
  return check(*(pathlib.Path(f.value or '') for f in (_ACL, _SHMEM)))


if __name__ == '__main__':
  app.run(main)
