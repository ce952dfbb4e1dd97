"""A record's fields in JSON."""

import dataclasses

from hpmoe.parity_tests.report import json_fields


def test_a_field_has_the_key_that_is_named_or_its_own():
  @dataclasses.dataclass
  class Record:
    reason: str
    rows: int

  fields = json_fields.rename_fields(Record('a gap', 3), reason='why')

  assert fields == {'why': 'a gap', 'rows': 3}
