"""Where MindSpore computes, and what it refuses there."""

import mindspore as ms
import pytest

from hpmoe.backend_ascend.frontends import mindspore_layer
from hpmoe.models.mindspore import device


class TestUse:
  @pytest.fixture
  def chosen(self, monkeypatch):
    """Returns what MindSpore was told; no device is looked for."""
    found = []
    monkeypatch.setattr(ms, 'set_device', found.append)
    return found

  def test_a_cpu_with_any_layer_and_no_threads_that_spin(self, chosen):
    ms.set_context(pynative_synchronize=False)
    device.use('cpu', 'host')
    assert chosen == ['CPU']
    assert ms.get_context('pynative_synchronize')

  def test_an_npu_that_is_not_there(self, chosen):
    with pytest.raises(ValueError, match='^device: .* finds no Ascend device'):
      device.use('ascend', 'framework')
    assert not chosen

  def test_an_npu_with_layers_that_run_on_it(self, chosen, monkeypatch):
    monkeypatch.setattr(mindspore_layer, 'has_ascend', lambda: True)
    for moe in ('framework', 'ascend', 'pkg.module:function'):
      device.use('ascend', moe)
    assert chosen == ['Ascend'] * 3
    with pytest.raises(ValueError, match="^moe: expected .* got 'host'"):
      device.use('ascend', 'host')
