"""Two processes of an msrun job, each with an NPU that is the twin."""

import pytest

from hpmoe.backend_ascend.device.standin import rehearsal
from hpmoe.backend_ascend.device.twin_launch import twin_runtime
from hpmoe.backend_ascend.frontends import msrun_testing

_MAKE = """
from hpmoe.backend_ascend.frontends.npus import mindspore_npus
from hpmoe.backend_ascend.device.standin import rehearsal


def make(*layer):
  twin = rehearsal.Rehearsal
  return mindspore_npus.NpusMoELayer(
    layer_call.LayerCall(*layer), library=twin.library, kernel=twin.kernel
  )
"""


@pytest.mark.slow
def test_two_processes_have_the_layer_and_its_gradient(tmp_path, monkeypatch):
  # Given two processes whose devices are the twin, when each has its slabs,
  # then together they have the bits of the twin in one process.
  with rehearsal.Rehearsal(2) as twin:
    for name, value in twin.environment.items():
      monkeypatch.setenv(name, value)
    policies = ('bfloat16-before_down',)
    msrun_testing.check_layer(_MAKE, policies, tmp_path, twin_runtime.launch)
    assert not [e.text for r in twin.reports for e in r.errors]
    assert twin.ran == [[0, 1]] * 4
