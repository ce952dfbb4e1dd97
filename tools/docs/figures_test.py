"""Every figure of a page is in a file, with what it was measured by."""

import collections
import re
import subprocess

import pytest

from hpmoe.tools.docs import figures

NAMES = sorted(path.stem for path in figures.FIGURES.glob('*.json'))
PAGES = {
  str(path.relative_to(figures.ROOT)): path.read_text('utf-8')
  for path in figures.pages()
}
MOST_PAGES, MOST_WORDS, MOST_WORDS_IN_ALL = 16, 2200, 22000


def too_long(pages: dict[str, str]) -> list[str]:
  """Returns a line for each limit that pages pass."""
  words = {name: len(text.split()) for name, text in pages.items()}
  lines = [
    f'{name}: expected at most {MOST_WORDS} words, got {count}'
    for name, count in words.items()
    if count > MOST_WORDS
  ]
  total = sum(words.values())
  if total > MOST_WORDS_IN_ALL:
    lines.append(f'expected at most {MOST_WORDS_IN_ALL} words, got {total}')
  if len(words) > MOST_PAGES:
    lines.append(f'expected at most {MOST_PAGES} pages, got {len(words)}')
  return lines


def unsourced(data: dict) -> list[str]:
  """Returns a line for each thing that a file of figures lacks."""
  lines = [
    f'run {index}: expected {name}'
    for index, run in enumerate(data['runs'])
    for name in figures.RUN
    if not run.get(name)
  ]
  if not data['runs']:
    lines.append('expected a run')
  wide = len(data['columns'])
  return lines + [
    f'{row[0]}: expected {wide} cells, got {len(row)}'
    for row in data['rows']
    if len(row) != wide
  ]


def history() -> str:
  """Returns the hashes of all commits, one a line; skips without them."""
  git = ['git', '-C', str(figures.ROOT)]
  try:
    shallow = subprocess.check_output(
      [*git, 'rev-parse', '--is-shallow-repository'],
      text=True,
      stderr=subprocess.DEVNULL,
    )
  except (OSError, subprocess.CalledProcessError):
    pytest.skip('the tree is not a clone')
  if shallow.strip() == 'true':
    pytest.skip('the clone has no history')
  return subprocess.check_output([*git, 'rev-list', 'HEAD'], text=True)


def not_in(history_text: str, runs: list[dict[str, str]]) -> list[str]:
  """Returns the commits of runs that are not in a history."""
  hashes = (re.findall(r'\b[0-9a-f]{7}\b', run['commit']) for run in runs)
  return [
    name
    for names in hashes
    for name in names
    if f'\n{name}' not in f'\n{history_text}'
  ]


def list_broken_links(pages: dict[str, str]) -> list[str]:
  """Returns the links of pages whose file or heading does not exist."""
  return [
    f'{page}: {target}'
    for page, text in pages.items()
    for target in re.findall(r'\]\(([^)\s]+)\)', _CODE.sub('', text))
    if not target.startswith('http') and not _leads(page, target, text)
  ]


_CODE = re.compile(r'^```.*?^```|`[^`\n]*`', re.M | re.S)


def _leads(page: str, target: str, text: str) -> bool:
  name, _, anchor = target.partition('#')
  path = (figures.ROOT / page).parent / name
  if not anchor or not path.exists():
    return path.exists()
  target_text = path.read_text('utf-8') if name else text
  heads = re.findall(r'^#+ (.*)', target_text, re.M)
  plain = (re.sub(r'[^\w\s-]', '', head.lower()) for head in heads)
  return anchor in [head.replace(' ', '-') for head in plain]


class TestPages:
  def test_have_the_figures_of_the_data(self):
    stale = [p for p, text in PAGES.items() if figures.fill_page(text) != text]
    assert not stale, 'make docs writes them'

  def test_another_figure_is_written_anew(self):
    name = NAMES[0]
    page = f'a\n<!-- figures: {name} -->\n|1|\n<!-- end -->\nb\n'
    whole = figures.fill_page(page)
    assert whole != page and '|1|\n' not in whole
    assert whole.startswith('a\n') and whole.endswith('-->\nb\n')
    assert figures.fill_page(whole) == whole

  def test_every_file_is_shown_once(self):
    counts = collections.Counter(
      name for text in PAGES.values() for name in figures.list_shown(text)
    )
    assert counts == collections.Counter(NAMES)

  def test_are_short(self):
    assert not too_long(PAGES)

  def test_a_long_page_is_named(self):
    (line,) = too_long({'a.md': 'word ' * (MOST_WORDS + 1), 'b.md': 'word'})
    assert line == 'a.md: expected at most 2200 words, got 2201'
    assert len(too_long({f'{i}.md': 'word ' * 1400 for i in range(17)})) == 2

  def test_links_lead_somewhere(self):
    assert not list_broken_links(PAGES)

  def test_readme_links_to_every_page(self):
    linked = set(re.findall(r'\((docs/\w+\.md)', PAGES['README.md']))
    assert linked == set(PAGES) - {'README.md'}

  def test_a_broken_link_is_named(self):
    text = '# A b\n[a](b.md) [c](#a-b) [d](#e) `[f](g)` [h](https://h.i)\n'
    assert list_broken_links({'a.md': text}) == ['a.md: b.md', 'a.md: #e']


def make_figures(*columns, command='echo', row=('1',), **extra) -> dict:
  """Returns figures of one run."""
  runs = [figures.run(command) | extra]
  return dict(runs=runs, columns=columns, rows=[row])


class TestFigures:
  def test_say_how_they_were_measured(self):
    lacking = {name: unsourced(figures.load(name)) for name in NAMES}
    assert not {name: lines for name, lines in lacking.items() if lines}

  def test_are_of_commits_of_this_history(self):
    history_text = history()
    unknown = {
      name: not_in(history_text, figures.load(name)['runs']) for name in NAMES
    }
    assert not {name: hashes for name, hashes in unknown.items() if hashes}

  def test_a_commit_that_is_not_there_is_named(self):
    runs = [dict(commit='abcdef0, 2 of them at 1234567'), dict(commit='x')]
    assert not_in('abcdef01\n91234567\n', runs) == ['1234567']

  def test_what_is_missing_is_named(self):
    assert unsourced(make_figures('a', 'b')) == ['1: expected 2 cells, got 1']
    assert unsourced(make_figures('a', load='')) == ['run 0: expected load']

  def test_a_cell_with_a_bar_stays_one_cell(self):
    assert '|x\\|y|' in figures.table(make_figures('a', row=['x|y']))

  def test_a_command_that_is_no_longer_here_is_marked(self):
    for command, is_gone in {
      'python -m benchmarks.peers': False,
      'python -m hpmoe.tools.tile_shares': False,
      'make docs': False,
      'python -m benchmarks.of_last_year --x=1': True,
      'python -m benchmarks.peers, benchmarks.of_last_year': True,
    }.items():
      table = figures.table(make_figures('a', command=command))
      assert (f'`{command}`, only at ' in table) == is_gone, command

  def test_runs_of_one_command_are_one_line(self):
    once = make_figures('a', commit='aa', date='2026-01-02')
    (run,) = once['runs']
    twice = once | dict(runs=[run, run | dict(date='2026-01-03')])
    assert figures.table(twice).splitlines()[-1] == (
      '`echo` at 2 commits, 2026-01-02 to 2026-01-03: each in the file.'
    )
    assert '`echo` at aa, 2026-01-02, ' in figures.table(once)
