"""Layers trained in 8 bits: kernels by hand, right and wrong, by recipe."""

import dataclasses
import functools

import numpy as np
import pytest

import hpmoe
from hpmoe.parity_tests.explain import operand_mistakes
from hpmoe.parity_tests.judge import oracle as oracle_lib
from hpmoe.parity_tests.judge import recipes_testing
from hpmoe.parity_tests.judge import trial_testing as trial
from hpmoe.parity_tests.judge import trial_verdicts_testing as trial_verdicts
from hpmoe.parity_tests.judge import verdicts
from hpmoe.reference import stages as stages_lib
from hpmoe.reference import token_order
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import quantised
from hpmoe.reference.contract import recipes
from hpmoe.reference.contract import tensors
from hpmoe.reference.quantised import operands

RECIPES = [*recipes_testing.RECIPES]
# Last groups of 32 and 128 are not full; experts have more rows than one group.
CONFIG = config_testing.make_config(r=2, t=150, e=4, k=2, d=144, f=72)
# Random layers of a recipe, both passes.
_LAYERS = 100
SMALL = config_testing.make_config(r=2, t=40, e=4, k=2, d=144, f=72)
FORWARD = ('expert_in', 'gate_up', 'activation', 'expert_out', 'returned', 'y')
SHARED = dataclasses.replace(SMALL, d_shared=136)
OF_SHARED = ('shared_gate_up', 'shared_activation', 'shared_out')


@functools.cache
def draw(recipe: str, storage: str = 'float32', seed: int = 0, config=CONFIG):
  """Returns inputs of both passes: what a right forward pass saves too."""
  rows, words = recipes.split_rows(recipe)
  policy = precision.PrecisionPolicy(storage, rows=rows, operand_forms=words)
  inputs = trial_verdicts.draw(config, policy, seed)
  inputs = recipes_testing.spread(inputs, seed)
  kernel = recipes_testing.Kernel(recipe=recipe)
  forward = kernel.forward(config, policy, inputs.arrays)
  return dataclasses.replace(inputs, arrays={**inputs.arrays, **forward})


def go_back(inputs, recipe: str, wrong: str = ''):
  kernel = recipes_testing.Kernel(recipe=recipe, wrong=wrong)
  return kernel.backward(inputs.config, inputs.policy, inputs.arrays)


def list_failed(inputs, outputs) -> set[str]:
  results = trial_verdicts.judge_stages(inputs, outputs).values()
  return {r.stage for r in results if r.verdict == verdicts.FAIL}


class TestRightKernels:
  @pytest.mark.parametrize('storage', ['float32', 'bfloat16'])
  @pytest.mark.parametrize('recipe', RECIPES)
  @pytest.mark.few(2)
  def test_every_stage_passes(self, recipe, storage):
    inputs = draw(recipe, storage)
    forward = {name: inputs.arrays[name] for name in FORWARD}
    assert not list_failed(inputs, forward)
    assert not list_failed(inputs, go_back(inputs, recipe))

  @pytest.mark.parametrize('storage', ['float32', 'bfloat16'])
  @pytest.mark.parametrize('recipe', RECIPES)
  @pytest.mark.few(1)
  def test_shared_experts_are_quantised_alike(self, recipe, storage):
    inputs = draw(recipe, storage, config=SHARED)
    forward = {name: inputs.arrays[name] for name in (*FORWARD, *OF_SHARED)}
    assert not list_failed(inputs, forward)
    assert not list_failed(inputs, go_back(inputs, recipe))

  @pytest.mark.slow
  @pytest.mark.parametrize('recipe', RECIPES)
  def test_random_layers_pass(self, recipe):
    for seed in range(_LAYERS):
      rng = np.random.default_rng(seed)
      sizes = dict(r=int(rng.integers(1, 3)), t=int(rng.integers(1, 200)))
      sizes |= dict(e=4, k=int(rng.integers(1, 5)))
      sizes |= {n: int(rng.integers(2, 300)) for n in 'df'}
      storage = ('float32', 'bfloat16', 'float16')[seed % 3]
      config = config_testing.make_config(**sizes)
      inputs = draw.__wrapped__(recipe, storage, seed, config)
      forward = {name: inputs.arrays[name] for name in FORWARD}
      failed_stages = list_failed(inputs, forward)
      failed_stages |= list_failed(inputs, go_back(inputs, recipe))
      assert not failed_stages, (seed, sizes, storage)

  @pytest.mark.slow
  @pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
  @pytest.mark.parametrize('recipe', RECIPES)
  @pytest.mark.parametrize('returns', [None, ('y', 'dx', 'd_w_gate_up')])
  def test_a_check_of_both_passes_passes(self, recipe, dtype, returns):
    case = hpmoe.Case(
      direction='both',
      preset='tiny:d_model=144:d_ff=72',
      ranks=2,
      tokens=40,
      dtype=dtype,
      recipe=recipe,
    )
    layer = recipes_testing.make_layer(recipe, returns=returns)
    report = hpmoe.check(layer, case, lanes=['bitwise', 'bounded', 'standard'])
    assert report.is_pass, str(report)
    assert f'recipe {recipe}' in str(report)


class TestOracle:
  @pytest.mark.few(1)
  @pytest.mark.parametrize('recipe', RECIPES)
  def test_its_operands_are_those_by_hand(self, recipe):
    # Given operands of all six GEMMs, with rubbish past the last rows,
    inputs = draw(recipe)
    arrays = {**inputs.arrays, **go_back(inputs, recipe)}
    config, policy = inputs.config, inputs.policy
    layer_oracle = oracle_lib.Oracle(config, policy, inputs.arrays)
    experts = operands.Experts(
      *token_order.expert_rows(config, layer_oracle.plan['counts'])
    )
    num_rows = layer_oracle.plan['counts'].sum(0).reshape(2, -1).sum(1)
    by_hand, kernel = (
      recipes_testing.RECIPES[recipe],
      recipes_testing.Kernel(recipe=recipe),
    )
    lay = trial._Layout.from_arrays(config, arrays)
    by_name = dict(
      expert_in=by_hand.moved_rows,
      activation=by_hand.local,
      d_expert_out=by_hand.d_sent,
      d_gate_up=by_hand.d_local,
    )
    for gemm, names in recipes.OPERANDS.items():
      for name in names:
        values = np.array(arrays[name])
        if name not in by_name:
          # when the oracle quantises weights,
          actual = operands.multiplied(gemm, name, policy, experts, values)
          for expert, _, _, _ in lay.experts():
            matrix = values[expert]
            is_back = gemm in tensors.TRANSPOSED_GEMMS
            expected = (
              by_hand.weight(matrix.T).T if is_back else by_hand.weight(matrix)
            )
            np.testing.assert_array_equal(actual[expert], expected)
          continue
        for rank, end in enumerate(num_rows):
          values[rank, end:] = 1e9
        # or rows,
        actual = operands.multiplied(gemm, name, policy, experts, values)
        for _, rows, _, _ in lay.experts():
          quantiser = by_name[name]
          expected = quantiser(values[rows])
          if gemm in tensors.WEIGHT_GRADS:
            expected = kernel._columns(quantiser, values[rows], name, lay, rows)
          # then they are what they are by hand, bit for bit.
          np.testing.assert_array_equal(
            actual[rows], expected, f'{gemm} {name}'
          )

  @pytest.mark.slow
  @pytest.mark.parametrize('recipe', RECIPES)
  def test_its_stages_are_within_the_bounds(self, recipe):
    inputs = draw(recipe, config=SMALL)
    layer_oracle = oracle_lib.Oracle(SMALL, inputs.policy, inputs.arrays)
    with oracle_lib.use_stages(stages_lib.run):
      outputs = layer_oracle.backward(
        {**inputs.arrays, **layer_oracle.plan}, inputs.arrays['dy']
      )
    assert not list_failed(inputs, outputs)

  @pytest.mark.slow
  @pytest.mark.parametrize(
    ('placement', 'storage', 'bias'),
    [
      ('before_down', 'float32', True),
      ('epilogue', 'bfloat16', True),
      ('returned', 'float32', False),
    ],
  )
  @pytest.mark.parametrize('recipe', ['deepseek_v3', 'current_scaling'])
  def test_so_they_are_wherever_a_weight_multiplies(
    self, recipe, placement, storage, bias
  ):
    config = config_testing.make_config(r=2, t=24, e=4, k=2, d=72, f=40)
    config = dataclasses.replace(config, bias=bias)
    rows, words = recipes.split_rows(recipe)
    policy = precision.PrecisionPolicy(
      storage, rows=rows, operand_forms=words, placement=placement
    )
    inputs = recipes_testing.spread(trial_verdicts.draw(config, policy, 1), 1)
    layer_oracle = oracle_lib.Oracle(config, policy, inputs.arrays)
    with oracle_lib.use_stages(stages_lib.run):
      forward = layer_oracle.forward()
      arrays = {**inputs.arrays, **forward}
      outputs = layer_oracle.backward(arrays, arrays['dy'])
    inputs = dataclasses.replace(inputs, arrays=arrays)
    assert not list_failed(inputs, {name: forward[name] for name in FORWARD})
    assert not list_failed(inputs, outputs)


class TestWrongKernels:
  @pytest.mark.parametrize(
    ('wrong', 'recipe', 'storage'),
    [
      pytest.param(wrong, recipe, storage, marks=marks)
      for wrong, (_, names) in recipes_testing.WRONG.items()
      for recipe in names
      for storage, marks in (
        ('float32', ()),
        ('bfloat16', pytest.mark.slow),
      )
    ],
  )
  @pytest.mark.few(8)
  def test_a_bug_is_found_where_it_is(self, wrong, recipe, storage):
    stage, _ = recipes_testing.WRONG[wrong]
    inputs = draw(recipe, storage, config=SMALL)
    failed_stages = list_failed(inputs, go_back(inputs, recipe, wrong))
    assert stage in failed_stages
    # Elementwise stages are right under what they read.
    assert not failed_stages & {'d_gate_up', 'd_expert_out', 'd_returned', 'dx'}

  @pytest.mark.parametrize('recipe', RECIPES)
  def test_another_recipe_is_found(self, recipe):
    other = RECIPES[RECIPES.index(recipe) - 1]
    inputs = draw(recipe)
    failed_stages = list_failed(inputs, go_back(inputs, other))
    assert failed_stages == {
      'd_activation',
      'd_w_down',
      'd_expert_in',
      'd_w_gate_up',
    }

  @pytest.mark.parametrize('recipe', RECIPES)
  @pytest.mark.few(1)
  def test_another_recipe_of_shared_experts_is_found(self, recipe):
    # Given a kernel whose shared experts alone have another recipe,
    other = RECIPES[RECIPES.index(recipe) - 1]
    inputs = draw(recipe, config=SHARED)
    outputs, other_outputs = (go_back(inputs, r) for r in (recipe, other))
    outputs |= {n: a for n, a in other_outputs.items() if 'shared' in n}
    outputs['dx'] = other_outputs['dx']
    # then each of their GEMMs fails, and no other.
    assert list_failed(inputs, outputs) - {'dx'} == {
      'd_shared_activation',
      'd_w_shared_down',
      'd_shared_in',
      'd_w_shared_gate_up',
    }

  @pytest.mark.slow
  def test_a_check_names_the_stage(self):
    case = hpmoe.Case(
      direction='backward', preset='tiny', ranks=2, recipe='deepseek_v3'
    )
    layer = recipes_testing.make_layer('deepseek_v3', 'weight not quantised')
    failure = hpmoe.check(layer, case, lanes=['bounded']).first_failure
    assert failure.stage == 'd_activation'
    assert 'as if w_down was not quantised in d_activation' in failure.pattern
    words = '--recipe=deepseek_v3,d_activation:w_down= allows it'
    assert words in failure.pattern


@pytest.mark.slow
def test_columns_that_were_quantised_by_rows_are_named():
  case = hpmoe.Case(
    direction='backward', preset='tiny', ranks=2, recipe='mxfp8'
  )
  layer = recipes_testing.make_layer('mxfp8', 'columns quantised by rows')
  report = hpmoe.check(layer, case, lanes=['bounded'], repeat=1)
  words = 'was quantised by rows, not by columns in d_w_'
  assert words in report.first_failure.pattern


@pytest.mark.parametrize('gemm', ['d_w_down', 'd_activation'])
def test_other_groups_of_operands_are_those_of_plain_numpy(gemm):
  # Given rows of two ranks, of experts that begin within a group,
  rng = np.random.default_rng(0)
  sizes = np.exp2(rng.integers(-13, 1, (2, 80, 1)))  # small ones lose digits
  rows = (rng.standard_normal((2, 80, 48)) * sizes).astype(np.float32)
  edges = [np.array([0, 10, 70]), np.array([0, 0, 33])]
  form = quantised.FORMS['mxfp8_ceil']
  # when a GEMM that sums over rows, or columns, mistakes their groups,
  mistakes = dict(
    operand_mistakes.list_mistakes(form, gemm, 'd_expert_out', rows, edges)
  )
  # then they are those of rows; or of columns, from the rank's first row, or
  # from the expert's.
  power = functools.partial(recipes_testing.quantise_to_power, size=32)
  whole = [power(rank[: e[-1]].T).T for rank, e in zip(rows, edges)]
  if gemm == 'd_w_down':
    by_rows, from_rank = mistakes.values()
    for rank, right in enumerate(whole):
      np.testing.assert_array_equal(by_rows[rank], power(rows[rank]))
      np.testing.assert_array_equal(from_rank[rank, : len(right)], right)
  else:
    (by_columns,) = mistakes.values()
    second = power(rows[0, 10:70].T).T
    np.testing.assert_array_equal(by_columns[0, 10:70], second)
    assert not np.array_equal(by_columns[0, 10:70], whole[0][10:])


class TestRequests:
  def test_words_win_over_a_name(self):
    words = recipes.read_words('mxfp8,d_w_down:activation=,gate_up:w_gate_up=')
    assert len(words) == 10
    rows, left = recipes.split_rows('mxfp8')
    assert rows == 'expert_in=mxfp8_ceil,activation=mxfp8_ceil'
    assert recipes.find_name(rows, left) == 'mxfp8'

  @pytest.mark.parametrize(
    ('recipe', 'words'),
    [
      ('mxfp4', 'recipe: expected some of'),
      ('d_w_down=mxfp8', 'recipe: expected some of'),
      ('d_w_down:w_down=mxfp8', 'recipe: expected some of'),
      ('gate_up:expert_in=mxfp8>mxfp8', 'recipe: expected a form of 8 bits'),
      ('gate_up:expert_in=e4m3_128x128', 'of a row, a column or all'),
      ('gate_up:w_gate_up=mxfp4', 'recipe: expected a form of 8 bits'),
      ('d_w_down:activation=int4_32', 'or A>B of two'),
    ],
  )
  def test_what_is_unknown_is_named(self, recipe, words):
    with pytest.raises(ValueError, match=words) as error:
      precision.PrecisionPolicy(operand_forms=recipe)
    assert len(str(error.value)) < 300

  @pytest.mark.parametrize(
    ('fields', 'words'),
    [
      (dict(rows='mxfp8'), '^rows: expected none with recipe=mxfp8'),
      (dict(quantised='mxfp8'), '^weights: expected none with recipe=mxfp8'),
      (dict(preset='tp_norm'), '^preset: expected a whole layer with recipe'),
    ],
  )
  def test_what_does_not_suit_is_named(self, fields, words):
    with pytest.raises(ValueError, match=words) as error:
      hpmoe.Case(**{'recipe': 'mxfp8', 'preset': 'tiny', **fields}).make()
    assert len(str(error.value)) < 300
