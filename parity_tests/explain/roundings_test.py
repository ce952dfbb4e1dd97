"""The flag that a cause suggests keeps what the case's own flags said."""

import dataclasses
import re

import numpy as np
import pytest

from hpmoe.parity_tests.explain import roundings
from hpmoe.reference.contract import policies
from hpmoe.reference.contract import precision


@pytest.mark.parametrize('name', policies.POLICIES)
def test_a_flag_in_place_of_a_named_policy_keeps_its_words(name):
  # Given a kernel that is judged by a named policy, but for one rounding,
  fields = policies.fields(name)
  nothing = np.zeros((1, 1))
  stage = roundings.RoundedStage(
    name='y',
    policy=precision.PrecisionPolicy('bfloat16', **fields),
    chain=('expert_out', 'returned', 'y'),
    actual=nothing,
    expected=nothing,
    real=nothing == 0,
    under=lambda policy: nothing,
  )

  text = roundings._format_flag(stage, [('gate_up=float32',)])

  # then the words of the flag are all that a user must type.
  flag = re.search(r'--policy=(\S+) allows', text)[1]
  suggested = precision.PrecisionPolicy('bfloat16', **policies.fields(flag))
  own = precision.PrecisionPolicy(
    'bfloat16', **policies.fields((name, 'gate_up=float32'))
  )
  points = {*suggested.points}, {*own.points}
  assert points[0] == points[1]
  assert dataclasses.replace(suggested, points=own.points) == own
