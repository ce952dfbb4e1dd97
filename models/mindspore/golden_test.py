"""The decoders against the implementations in transformers."""

import pytest

from hpmoe.models import golden_testing as golden
from hpmoe.models.mindspore import device
from hpmoe.models.mindspore import model_testing
from hpmoe.reference.contract import halved_testing


@pytest.fixture(autouse=True)
def _cpu():
  device.use('cpu', 'host')


# The configurations that `make test` does not have in JAX.
@pytest.mark.parametrize(
  'name', halved_testing.halved(golden.CONFIGS, odd=True)
)
class TestExactness:
  @pytest.mark.few(3)
  def test_no_less_exact_than_the_reference(self, name):
    case = golden.load(name)
    narrow = model_testing.model_of(case, 'float32', golden.choose_layer(name))
    wide = model_testing.model_of(case, 'float64', 'framework')
    golden.check_exactness_or_nearby(narrow, wide, case)


class TestGolden:
  @pytest.mark.slow
  @pytest.mark.parametrize('name', golden.CONFIGS)
  def test_float64_agrees(self, name):
    case = golden.load(name)
    actual = model_testing.gradients(case, 'float64', 'framework')
    golden.check_same(actual, case)

  @pytest.mark.slow
  @pytest.mark.parametrize('name, moe', golden.with_layers('host', 'framework'))
  def test_every_layer(self, name, moe):
    case = golden.load(name)
    narrow = model_testing.model_of(case, 'float32', moe)
    wide = model_testing.model_of(case, 'float64', 'framework')
    golden.check_exactness_or_nearby(narrow, wide, case)

  @pytest.mark.slow
  @pytest.mark.parametrize('name, moe', golden.with_layers('host', 'framework'))
  def test_every_layer_in_bfloat16(self, name, moe):
    case = golden.load(name)
    actual = model_testing.gradients(case, 'bfloat16', moe)
    golden.check_exactness(actual, case, 'bfloat16')
