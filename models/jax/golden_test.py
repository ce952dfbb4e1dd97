"""The decoders against the implementations in transformers."""

import jax
import pytest

from hpmoe.models import golden_testing as golden
from hpmoe.models.jax import model_testing

# What does not hold, and only as XLA optimises by default: measured on one CPU,
# the cause is not known.
ABOVE = {
  'deepseek_halves': 'gradients: 2.3 times in root mean square, 2.6 at worst',
  'mixtral_wide_heads': 'gradients: 2.3 times at worst, 1.6 in the mean square',
}


@pytest.mark.parametrize('name', golden.CONFIGS)
class TestGolden:
  def test_no_less_exact_than_the_reference(self, name):
    case = golden.load(name)
    actual = model_testing.gradients(case, 'float32', 'host')
    golden.check_exactness(actual, case, 'float32')

  @pytest.mark.slow
  def test_no_less_exact_in_bfloat16(self, name):
    case = golden.load(name)
    actual = model_testing.gradients(case, 'bfloat16', 'host')
    golden.check_exactness(actual, case, 'bfloat16')

  @pytest.mark.slow
  @pytest.mark.parametrize('moe', ['oracle', 'framework'])
  def test_float64_agrees(self, name, moe):
    case = golden.load(name)
    actual = model_testing.gradients(case, 'float64', moe, jax.jit)
    golden.check_same(actual, case)

  @pytest.mark.slow
  @pytest.mark.parametrize('moe', ['oracle', 'host', 'framework'])
  @pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
  def test_every_layer_as_users_compile_it(self, request, name, moe, dtype):
    if dtype == 'float32' and name in ABOVE:
      request.applymarker(pytest.mark.xfail(strict=False, reason=ABOVE[name]))
    case = golden.load(name)
    actual = model_testing.gradients(case, dtype, moe, jax.jit)
    golden.check_exactness(actual, case, dtype)
