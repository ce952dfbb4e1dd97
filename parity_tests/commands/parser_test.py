"""The parser of command lines."""

import dataclasses

import pytest

from hpmoe.parity_tests.commands import parser
from hpmoe.reference.contract import option_fields


@dataclasses.dataclass(frozen=True)
class _Options:
  before: str | None = option_fields.option(None, 'First report.')
  source: str | None = option_fields.option(None, 'Folder.', flag='from')
  seed: int = option_fields.option(0, 'Seed.')
  races: bool | None = option_fields.option(None, 'Races.')
  isa: tuple[str, ...] = option_fields.option(
    (), 'Instruction sets. ' + 60 * 'word '
  )


def _parse(*words: str, operands=()) -> parser.Values:
  return parser.parse(option_fields.list_options(_Options), words, operands)


@pytest.mark.parametrize(
  'words',
  [
    ('--seed=7', '--races', '--from=a b', '--isa=x, y'),
    ('--from', 'a b', '--races=true', '--isa', 'x,y', '--seed', '7'),
    (
      '--seed=3',
      '--noraces',
      '--seed=7',
      '--races=1',
      '--from=a b',
      '--isa=x,y',
    ),
  ],
)
def test_options_are_read_in_each_spelling(words):
  f = _parse(*words)

  assert (f.seed, f.races, f['from'].value, f.isa) == (
    7,
    True,
    'a b',
    ['x', 'y'],
  )


def test_an_option_that_is_not_typed_has_its_default():
  f = _parse('--noraces')

  assert (f.seed, f.races, f.isa, f.before) == (0, False, [], None)
  assert f['races'].present and not f['seed'].present
  assert [*f] == ['before', 'from', 'seed', 'races', 'isa']


def test_a_value_is_written_as_it_is_typed():
  words = ('--from=a', '--isa=x,y', '--noraces', '--seed=-2')

  f = _parse(*words)

  assert {f[name].format() for name in f if f[name].present} == {*words}


def test_words_without_dashes_set_operands():
  f = _parse('a.json', '--races', operands=('before',))

  assert f.before == 'a.json' and f.races


@pytest.mark.parametrize(
  'words, message',
  [
    (('--seed',), r'seed: expected a value, .*--seed=VALUE, got none \(Seed'),
    (('--seed', '--races'), 'seed: expected a value'),
    (('--seed=x',), "seed: expected an integer, got 'x'"),
    (('--sed=1',), "sed: expected an option .* --sed=1: did you mean 'seed'"),
    (('--noseed',), 'noseed: expected an option'),
    (('--races', 'x'), "arguments: expected --options only, got 'x'"),
    (('--se=1',), 'se: expected an option'),
    (('--', '--seed=1'), '--: expected an option of this command, got --$'),
    (('--isa', '--races'), r'got none \(Instruction sets\. (word )+\.\.\.'),
  ],
)
def test_wrong_words_are_refused(words, message):
  with pytest.raises(parser.UsageError, match=message) as info:
    _parse(*words)
  assert len(str(info.value)) <= 250
