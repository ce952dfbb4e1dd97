"""The device source on the twin gives the host's bits, however it is cut.

Each case that a forgotten synchronisation call is looked for in: tiles at the
edges of fractals, stages and strips, rows wider than the unified buffer, chains
with empty links, every kind of both passes.
"""

import pytest

from hpmoe.tools.sync import probe


@pytest.mark.parametrize(
  'case', list(probe.cases()), ids=lambda case: case.name
)
@pytest.mark.few(14)
def test_bits_are_the_hosts(case):
  assert probe.find_difference(case) is None
