"""Fields of dataclasses as options."""

from collections.abc import Mapping
import dataclasses

import pytest

from hpmoe.reference.contract import option_fields


@dataclasses.dataclass(frozen=True)
class _Layer:
  name: str = option_fields.option(dataclasses.MISSING, 'Name.', flag='layer')
  tokens: int | None = option_fields.option(None, 'Tokens.', minimum=1)
  lanes: tuple[str, ...] = option_fields.option(
    ('exact',), 'Lanes.', typed=('all',), choices=('all', 'exact')
  )
  order: float = option_fields.option(
    1.0, 'Order.', typed='up', choices={'up': 1.0, 'down': -1.0}, kind=str
  )
  relay: bool = option_fields.option(False, lambda: 'Relay.')
  inputs: str | Mapping[str, int] | None = None  # no option


@dataclasses.dataclass(frozen=True)
class _Decoder:
  relay: bool = option_fields.share(_Layer, 'relay', default=True)
  count: int = option_fields.option(3, 'Layers.', flag='layers')


def _options(*groups: type) -> dict[str, option_fields.Option]:
  return {row.name: row for row in option_fields.list_options(*groups)}


def test_a_field_gives_an_options_name_type_and_default():
  options = _options(_Layer)

  assert list(options) == ['layer', 'tokens', 'lanes', 'order', 'relay']
  assert options['layer'].field == 'name' and options['layer'].default is None
  assert options['tokens'].kind is int
  assert options['lanes'].is_list and options['lanes'].default == ['all']
  assert options['relay'].is_switch and options['relay'].help == 'Relay.'


def test_the_dataclass_has_its_own_defaults():
  assert _Layer('a') == _Layer('a', None, ('exact',), 1.0, False, None)
  with pytest.raises(TypeError, match="argument: 'name'"):
    _Layer()  # type: ignore[call-arg]


def test_a_choice_is_resolved_to_its_meaning():
  order = _options(_Layer)['order']

  assert order.resolve(order.parse('down')) == -1.0


def test_a_shared_field_is_the_same_option_with_another_default():
  options = _options(_Decoder)

  assert options['relay'].help == 'Relay.' and options['relay'].default is True
  assert _Decoder().relay and list(options) == ['relay', 'layers']
  # Of equal names, the first is kept.
  assert _options(_Layer, _Decoder)['relay'].default is False


@pytest.mark.parametrize(
  'name, text, message',
  [
    ('tokens', 'x', "expected an integer, got 'x'"),
    ('tokens', '0', 'expected at least 1, got 0'),
    ('lanes', 'exat', "got 'exat': did you mean 'exact'"),
    ('lanes', '', 'expected some of .* got none'),
    ('relay', 'maybe', "expected true or false, got 'maybe'"),
  ],
)
def test_a_wrong_text_is_refused(name, text, message):
  with pytest.raises(ValueError, match=message):
    _options(_Layer)[name].parse(text)
