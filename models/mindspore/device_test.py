"""Where MindSpore computes, and what it refuses there."""

import mindspore as ms
import pytest

from hpmoe.backend_ascend.frontends import mindspore_layer
from hpmoe.models.mindspore import device


class TestUse:
  @pytest.fixture
  def devices(self, monkeypatch):
    """Returns what MindSpore was told; no device is looked for."""
    names = []
    monkeypatch.setattr(ms, 'set_device', names.append)
    return names

  def test_a_cpu_with_any_layer_and_no_threads_that_spin(self, devices):
    ms.set_context(pynative_synchronize=False)
    device.use('cpu', 'host')
    assert devices == ['CPU']
    assert ms.get_context('pynative_synchronize')

  def test_an_npu_that_is_not_there(self, devices):
    with pytest.raises(ValueError, match='^device: .* finds no Ascend device'):
      device.use('ascend', 'framework')
    assert not devices

  def test_an_npu_with_layers_that_run_on_it(self, devices, monkeypatch):
    monkeypatch.setattr(mindspore_layer, 'has_ascend', lambda: True)
    for moe in ('framework', 'ascend', 'pkg.module:function'):
      device.use('ascend', moe)
    assert devices == ['Ascend'] * 3
    with pytest.raises(ValueError, match="^moe: expected .* got 'host'"):
      device.use('ascend', 'host')
