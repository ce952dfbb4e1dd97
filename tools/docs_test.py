"""The examples of the docs run as they stand, and print what they say."""

import contextlib
import fnmatch
import io
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import pytest

import hpmoe
from hpmoe.parity_tests.case.layouts import layout_text
from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import main
from hpmoe.tools.docs import figures

ROOT = pathlib.Path(__file__).parents[1]
_BLOCK = re.compile(
  r'^```python\n(?P<code>.*?)^```\n(?:```text\n(?P<said>.*?)^```\n)?',
  flags=re.MULTILINE | re.DOTALL,
)


def run(page: str) -> dict:
  """Runs the blocks of a page in order; returns the names that they define.

  Raises:
    AssertionError: the output of a block differs from that on the page.
  """
  names: dict = {'__name__': 'docs'}
  blocks = list(_BLOCK.finditer(page))
  assert blocks, 'expected a block of python'
  for block in blocks:
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
      exec(block['code'], names)
    code, expected = block['code'], block['said'] or ''
    assert (code, output.getvalue()) == (code, expected)
  return names


_FILE = re.compile(
  r'^```(?:python|toml)\n# (?P<name>\S+)\n(?P<text>.*?)^```', re.M | re.S
)
_CONSOLE = re.compile(r'^```console\n(?P<text>.*?)^```', re.M | re.S)
_SECONDS = re.compile(r', \d+\.\d s\b')
# A kernel that takes more than a few seconds is not run again.
_RUNS = re.compile(r', the same bits in \d runs')
# The last digits of what numpy multiplies depend on the processor.
_DIGITS = re.compile(r'\b(\d+\.\d{4}|\d{5})\d{2,}\b')


def _mask_varying(text: str) -> str:
  return _DIGITS.sub(r'\1', _SECONDS.sub('', text))


def run_commands(page: str, folder: pathlib.Path) -> None:
  """Runs the commands of a page in a folder with the files of the page.

  In what they print `...` is anything, and so are seconds and last digits.

  Raises:
    AssertionError: one prints something else than the page says.
  """
  # Not a link, which would be a Python without what is installed beside it.
  for name, module in dict(
    python='', hpmoe=' -m hpmoe.parity_tests.commands.main'
  ).items():
    program = folder / 'bin' / name
    program.parent.mkdir(exist_ok=True)
    program.write_text(f'#!/bin/sh\nexec {sys.executable}{module} "$@"\n')
    program.chmod(0o755)
  env = os.environ | dict(PATH=f'{folder}/bin:{os.environ["PATH"]}')
  for file in _FILE.finditer(page):
    (folder / file['name']).write_text(file['text'])
  for block in _CONSOLE.finditer(page):
    for command, pattern in _commands(block['text']):
      process = subprocess.run(
        ['sh', '-c', command],
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        text=True,
      )
      output = _mask_varying(process.stdout)
      if not _RUNS.search(output):
        pattern = _RUNS.sub('', pattern)
      assert fnmatch.fnmatchcase(output, pattern), (command, pattern, output)


def _commands(block: str):
  """Yields (command, pattern of what it prints) of a console."""
  for part in re.split(r'^\$ ', block, flags=re.M)[1:]:
    command, _, pattern = part.replace('\\\n', '').partition('\n')
    pattern = _mask_varying(pattern).replace('[', '[[]')
    yield (
      command,
      re.sub(r'^\.\.\.\n', '*', pattern, flags=re.M).replace('...', '*'),
    )


_SLOW = pytest.mark.slow


@pytest.mark.parametrize(
  'page',
  [
    'README.md',
    pytest.param('docs/api.md', marks=_SLOW),
    pytest.param('docs/contract.md', marks=_SLOW),
    pytest.param('docs/elsewhere.md', marks=_SLOW),
    pytest.param('docs/find_a_bug.md', marks=_SLOW),
    pytest.param('docs/schedule.md', marks=_SLOW),
  ],
)
def test_a_page_of_commands_prints_what_it_says(page, tmp_path):
  shutil.copy(ROOT / 'parity_tests/examples/moe.cc', tmp_path)
  run_commands((ROOT / page).read_text(), tmp_path)


_CODE = re.compile(r'`(hpmoe [^`]*)`|^(?:    |\$ )(.*)$', re.M)


def commands_of(page: str):
  """Yields the words of each `hpmoe` command of a page, after that name."""
  for match in _CODE.finditer(page.replace('\\\n', ' ')):
    _, command, rest = f' {match[1] or match[2]}'.partition(' hpmoe ')
    if command and rest[0].islower():
      plain = re.sub(r'[|;#&].*', '', rest.replace('$i', '0'))
      yield shlex.split(plain)


def not_commands(page: str) -> list[str]:
  """Returns a line for each command that the parser refuses, or Makefile."""
  wrong = []
  for name, *words in commands_of(page):
    try:
      main.COMMANDS[name].parse([w for w in words if w != '--help'])
    except (KeyError, cli.UsageError, ValueError) as error:
      wrong.append(f'hpmoe {name} {" ".join(words)}: {error}')
  makefile = (ROOT / 'Makefile').read_text()
  targets = set(re.findall(r'(?:`|^    )make ([a-z-]+)', page, re.M))
  return wrong + [
    f'make {n}'
    for n in targets
    if not re.search(rf'(^| ){n}( [a-z-]+)*:', makefile, re.M)
  ]


_REPOSITORY_PAGES = [ROOT / 'CONTRIBUTING.md', ROOT / 'SECURITY.md']
_MODULE = re.compile(r'python3? -m ((?:hpmoe|benchmarks)[\w.]*)(`, only at)?')
_TREE_PATH = re.compile(
  r'(?<![\w/.-])((?:reference|backend_ascend|parity_tests|models|tools|'
  r'benchmarks|examples)/[\w/.]*\w\.(?:py|toml|h|cc|md))\b'
)
# Rows that nobody measured again since their command got another name.
_REMOVED_COMMANDS = {'hpmoe.tools.gallery.main'}


def missing_modules(page: str) -> list[str]:
  """Returns the modules that commands of a page run and the tree lacks."""
  return [
    name
    for name, removed in _MODULE.findall(page)
    if figures.is_gone(f'python -m {name}')
    and not (removed and name in _REMOVED_COMMANDS)
  ]


def missing_paths(page: str) -> list[str]:
  """Returns the files of the tree that a page names and that do not exist."""
  return [
    path for path in _TREE_PATH.findall(page) if not (ROOT / path).exists()
  ]


def test_every_command_of_a_page_is_one():
  pages = [*figures.pages(), *_REPOSITORY_PAGES]
  wrong = {path: not_commands(path.read_text()) for path in pages}
  assert not {path: lines for path, lines in wrong.items() if lines}


def test_every_module_and_file_that_a_page_names_exists():
  for path in (*figures.pages(), *_REPOSITORY_PAGES):
    page = path.read_text()
    assert not missing_modules(page), path
    assert not missing_paths(page), path


def test_a_missing_module_or_file_is_named():
  page = '`python -m benchmarks.peers` `python -m hpmoe.tools.absent`, only at'
  assert missing_modules(page) == ['hpmoe.tools.absent']
  assert missing_modules('python -m hpmoe.tools.gallery.main') == [
    'hpmoe.tools.gallery.main'
  ]
  page = 'reference/routing.py, parity_tests/case/absent.py'
  assert missing_paths(page) == ['parity_tests/case/absent.py']


def test_what_is_no_command_is_named():
  page = (
    '`hpmoe check --lnae=exact` `hpmoe chekc` `make tset`\n    hpmoe plan --x\n'
  )
  assert len(not_commands(page)) == 4
  assert not not_commands('    hpmoe check --preset=tiny  # or small\n')


def test_layouts_of_a_page_are_such():
  page = (ROOT / 'docs/elsewhere.md').read_text()
  layouts = re.findall(r'`(\w+) = "([^"]+)"`', page)
  assert len(layouts) >= 10
  for name, text in layouts:
    assert layout_text.parse(name, text).axes


@pytest.mark.parametrize(
  ('output', 'is_said'),
  [('3 runs, 9.0 s', True), ('2 runs, 9.0 s', False)],
)
def test_the_number_of_runs_is_as_the_page_says(tmp_path, output, is_said):
  page = (
    f'```console\n$ echo "PASS, the same bits in {output}"\n'
    'PASS, the same bits in 3 runs, 1.0 s\n```\n'
  )
  outcome = (
    contextlib.nullcontext() if is_said else pytest.raises(AssertionError)
  )
  with outcome:
    run_commands(page, tmp_path)


@pytest.mark.parametrize('expected_output', ('b', '...\nb', 'a\n'))
def test_a_command_that_prints_something_else_is_named(
  tmp_path, expected_output
):
  page = f'```console\n$ echo a\n{expected_output}\n```\n'
  with pytest.raises(AssertionError, match='echo a'):
    run_commands(page, tmp_path)


@pytest.mark.parametrize(
  'page',
  [
    'README.md',
    pytest.param('docs/api.md', marks=_SLOW),
    'docs/frontends.md',
    'docs/simulator.md',
    pytest.param('docs/models.md', marks=_SLOW),
  ],
)
def test_a_page_prints_what_it_says(page):
  run((ROOT / page).read_text())


def test_a_page_that_prints_something_else_is_named():
  with pytest.raises(AssertionError, match='print'):
    run('```python\nprint(1)\n```\n```text\n2\n```\n')


def test_the_page_shows_every_name():
  page = (ROOT / 'docs/api.md').read_text()
  unseen = [
    n for n in hpmoe.__all__ if not re.search(rf'`{n}`|hpmoe\.{n}\b', page)
  ]
  assert not unseen
