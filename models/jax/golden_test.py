"""The decoders against the implementations in transformers."""

import jax
import pytest

from hpmoe.models import golden_testing as golden
from hpmoe.models.jax import model_testing
from hpmoe.reference.contract import halved_testing


# `make test` has each configuration in one framework.
@pytest.mark.parametrize('name', halved_testing.halved(golden.CONFIGS))
class TestExactness:
  @pytest.mark.few(1)
  def test_no_less_exact_than_the_reference(self, name):
    case = golden.load(name)
    narrow = model_testing.model_of(case, 'float32', golden.choose_layer(name))
    wide = model_testing.model_of(case, 'float64', 'oracle')
    golden.check_exactness_or_nearby(narrow, wide, case)


class TestGolden:
  @pytest.mark.slow
  @pytest.mark.parametrize(
    'name, moe', golden.with_layers('oracle', 'framework')
  )
  def test_float64_agrees(self, name, moe):
    case = golden.load(name)
    actual = model_testing.gradients(case, 'float64', moe, jax.jit)
    golden.check_same(actual, case)

  @pytest.mark.slow
  @pytest.mark.parametrize(
    'name, moe', golden.with_layers('oracle', 'host', 'framework')
  )
  def test_every_layer_as_users_compile_it(self, name, moe):
    case = golden.load(name)
    narrow = model_testing.model_of(case, 'float32', moe, jax.jit)
    wide = model_testing.model_of(case, 'float64', 'oracle')
    golden.check_exactness_nearby(narrow, wide, case)

  @pytest.mark.slow
  @pytest.mark.parametrize(
    'name, moe', golden.with_layers('oracle', 'host', 'framework')
  )
  def test_every_layer_in_bfloat16_as_users_compile_it(self, name, moe):
    case = golden.load(name)
    actual = model_testing.gradients(case, 'bfloat16', moe, jax.jit)
    golden.check_exactness(actual, case, 'bfloat16')
