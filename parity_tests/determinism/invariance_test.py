"""What a kernel keeps of its bits, on kernels that keep some of them."""

import dataclasses
import functools
import itertools

import numpy as np
import pytest

from hpmoe.parity_tests.ascend import host
from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.candidates import function_candidate
from hpmoe.parity_tests.candidates import in_process
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.determinism import invariance
from hpmoe.parity_tests.determinism import invariance_table
from hpmoe.parity_tests.determinism import variants
from hpmoe.parity_tests.explain import bugs_testing
from hpmoe.parity_tests.judge import trial_testing as trial

CASE = case_lib.Case(preset='tiny:top_k=4', ranks=2)
BOTH_PASSES = dataclasses.replace(CASE, direction='both')
NAMES = tuple(variants.PROPERTIES)
STEADY = tuple(name for name in NAMES if name not in ('slots', 'threads'))


def split_by_rows(a: np.ndarray, b: np.ndarray) -> np.ndarray:
  """In two parts where there are few rows."""
  order = trial.even_odd if len(a) < 3 else trial.ascending
  return order(a, b)


def by_place(a: np.ndarray, b: np.ndarray) -> np.ndarray:
  """Odd rows of a tile sum from the other end."""
  product = trial.ascending(a, b)
  product[1::2] = trial.descending(a[1::2], b)
  return product


def scaled_together(a: np.ndarray, b: np.ndarray) -> np.ndarray:
  """In fixed point, of a scale that the tile's rows share."""
  scale = 2.0 ** np.ceil(np.log2(np.abs(a).max(initial=2.0**-20))) / 2.0**16
  fixed = (np.rint(a / scale) * scale).astype(np.float32)
  return trial.ascending(fixed, b)


class Atomics(trial.Kernel):
  """Adds a token's rows in another order each time."""

  calls = itertools.count()

  def _combine(self, policy, name, ids, returned_rows, weights, last=None):
    rng = np.random.default_rng(next(self.calls))
    order = rng.permutation(returned_rows.shape[1])
    weights = None if weights is None else weights[:, order]
    returned_rows = returned_rows[:, order]
    return super()._combine(policy, name, ids, returned_rows, weights, last)


class ByExpert(trial.Kernel):
  """Adds a token's rows in order of their experts."""

  def forward(self, config, policy, arrays):
    order = np.argsort(arrays['topk_ids'], axis=-1)
    sort = functools.partial(np.take_along_axis, indices=order, axis=-1)
    ids, weights = sort(arrays['topk_ids']), sort(arrays['topk_weights'])
    arrays = {**arrays, 'topk_ids': ids, 'topk_weights': weights}
    return dict(y=super().forward(config, policy, arrays)['y'])


class LeavesPadding(trial.Kernel):
  """The last token has what is left of capacity added."""

  def forward(self, config, policy, arrays):
    outputs = super().forward(config, policy, arrays)
    outputs['y'][:, -1] *= np.float32(1 + config.num_rows / 2.0**12)
    return outputs


def candidate(kernel: trial.Kernel, names: tuple[str, ...] = ()):
  """Returns a kernel that returns some tensors, or all."""

  def forward(config, policy, arrays):
    outputs = kernel.forward(config, policy, arrays)
    return {n: outputs[n] for n in names or outputs}

  return in_process.Function(bugs_testing.function(forward, kernel.backward))


def rows(kernel, case=CASE, names=(), promise=invariance.DEFAULT):
  rows_ = invariance.run(candidate(kernel, names), case, promise)
  return {(row.direction, row.name): row for row in rows_}


def first_apart(rows_by_name, name: str, direction: str = 'forward') -> str:
  return next(iter(rows_by_name[direction, name].apart), '')


class TestRightKernels:
  @pytest.mark.slow
  def test_ours_keeps_all_but_orders_of_sums(self):
    # given / when
    rows_ = invariance.run(host.Megakernel(), BOTH_PASSES)

    # then
    apart = {(row.name, name) for row in rows_ for name in row.apart}
    weights = {'d_w_down', 'd_w_gate_up'}
    assert ('tokens', 'd_w_down') in apart
    # y and dx in slots' order; sums over tokens in theirs.
    assert apart <= {
      ('slots', 'y'),
      ('slots', 'dx'),
      *itertools.product(('tokens', 'slots', 'ranks', 'experts'), weights),
    }
    assert invariance.is_kept(rows_)

  @pytest.mark.slow
  def test_one_that_sums_row_by_row_holds(self):
    # given
    kernel = trial.Kernel(trial.ascending)

    # when
    rows_by_name = rows(kernel)

    # then
    assert [rows_by_name['forward', n].holds for n in STEADY] == ['bits'] * 7
    assert first_apart(rows_by_name, 'slots') == 'y'
    assert rows_by_name['forward', 'slots'].holds == 'rounding'
    assert 'order of its slots' in rows_by_name['forward', 'slots'].likely
    assert rows_by_name['forward', 'threads'].reason

  @pytest.mark.slow
  def test_weight_gradients_follow_the_order_of_tokens_alone(self):
    # given
    case = dataclasses.replace(CASE, direction='backward')

    # when
    rows_by_name = rows(trial.Kernel(trial.ascending), case)

    # then
    row = rows_by_name['backward', 'tokens']
    assert {*row.apart} <= {'d_w_down', 'd_w_gate_up'} and row.apart
    assert row.holds == 'rounding' and 'order of rows' in row.likely


class TestPlanted:
  @pytest.mark.parametrize(
    'kernel, name, first, holds, place, cause, steady',
    [
      (
        *(trial.Kernel(split_by_rows), 'batch', 'gate_up', 'rounding', 'rank'),
        *('split-K', ('tokens', 'run_to_run')),
      ),
      (
        *(trial.Kernel(by_place), 'tokens', 'gate_up', 'rounding', 'rank'),
        *('the position of its row', ('others',)),
      ),
      (
        *(trial.Kernel(scaled_together), 'others', 'gate_up', 'wrong', 'rank'),
        *('other tokens', ()),
      ),
      (
        *(ByExpert(trial.ascending), 'experts', 'y', 'rounding', 'rank'),
        *('order of its experts', ('slots',)),
      ),
      (
        *(LeavesPadding(trial.ascending), 'padding', 'y', 'wrong'),
        *('rank 0 token 15', '', ()),
      ),
    ],
    ids=('split_k', 'place', 'shared_scale', 'order_of_experts', 'padding'),
  )
  def test_is_named_with_what_would_explain_it(
    self, kernel, name, first, holds, place, cause, steady
  ):
    # given / when
    rows_by_name = rows(kernel)

    # then
    row = rows_by_name['forward', name]
    assert next(iter(row.apart)) == first and row.apart[first].elements
    assert row.holds == holds and bool(row.broken_promises) == (
      holds == 'wrong'
    )
    assert place in row.apart[first].place and cause in row.likely
    assert {rows_by_name['forward', n].holds for n in steady} <= {'bits'}

  def test_split_k_seen_from_y_names_what_to_return(self):
    # given / when
    rows_by_name = rows(trial.Kernel(split_by_rows), names=('y',))

    # then
    cause = rows_by_name['forward', 'batch'].likely
    assert 'split-K' in cause and 'return gate_up, expert_out' in cause

  def test_atomics(self):
    # given / when
    rows_by_name = rows(Atomics(trial.ascending))

    # then
    row = rows_by_name['forward', 'run_to_run']
    assert [*row.apart] == ['y'] and row.broken_promises == ('y',)
    assert 'atomic' in row.likely
    assert 'run to run' in rows_by_name['forward', 'batch'].likely
    assert not invariance.is_kept([row])

  def test_threads_of_a_process_of_its_own(self, tmp_path):
    # given: the number of threads cuts its sums
    file = tmp_path / 'kernel.py'
    file.write_text(
      'import os\n'
      'import numpy as np\n'
      'def moe(inputs, config, policy):\n'
      "  few = os.environ.get('OMP_NUM_THREADS') == '1'\n"
      "  y = inputs['x'] * np.float32(1 + few * 2.0**-20)\n"
      "  return {'y': y}\n"
    )
    kernel = function_candidate.Subprocess(f'{file}:moe')

    # when
    rows_ = invariance.run(kernel, CASE, properties=['threads'])

    # then
    (row,) = rows_
    assert [*row.apart] == ['y'] and 'threads' in row.likely

  @pytest.mark.parametrize('promise', [{}, {'ranks': 'bits'}])
  def test_a_kernel_of_two_ranks_alone(self, promise):
    # given
    kernel = trial.Kernel(trial.ascending)

    def function(inputs, config, policy):
      assert config.num_ranks == 2
      return kernel.forward(config, policy, inputs)

    function_candidate = in_process.Function(function)

    # when / then: it is held to other numbers of ranks if it promised them
    if promise:
      with pytest.raises(candidates.CandidateError):
        invariance.run(function_candidate, CASE, promise, ['ranks'])
      return
    row, steady = invariance.run(
      function_candidate, CASE, promise, ['ranks', 'others']
    )[::-1]
    assert (
      not row.variants_tried and not row.holds and 'it cannot: ' in row.reason
    )
    assert steady.holds == 'bits'
    verdict = invariance_table.verdict([row, steady])
    assert (
      verdict == 'PASS: 1 of 1 properties hold bit for bit; not tried: ranks'
    )


class TestPromise:
  def test_holds_a_kernel_to_it(self, tmp_path):
    # given
    path = tmp_path / 'promise.toml'
    path.write_text('[promise]\nslots = {y = "bits"}\ntokens = "bits"\n')

    # when
    rows_ = invariance.run(
      candidate(trial.Kernel(trial.ascending)),
      CASE,
      invariance.read_promise(str(path)),
    )

    # then
    broken_promises = {
      row.name: row.broken_promises for row in rows_ if row.broken_promises
    }
    assert broken_promises == {'slots': ('y',)}
    assert 'FAIL: broken promise: slots (y)' in invariance_table.text(rows_)

  @pytest.mark.parametrize(
    'text, message',
    [
      ('[promise]\nbatches = "bits"', 'expected properties among'),
      ('[promise]\nbatch = "all"', "expected 'bits' or 'rounding'"),
      ('[promise]\nbatch = {z = "bits"}', 'expected names of tensors'),
      ('batch = "bits"', 'expected one table [promise]'),
      ('[promise', 'expected a TOML file'),
    ],
  )
  def test_refuses_what_it_does_not_know(self, tmp_path, text, message):
    # given
    path = tmp_path / 'promise.toml'
    path.write_text(text)

    # when / then
    with pytest.raises(ValueError) as error:
      invariance.read_promise(str(path))
    assert message in str(error.value)


class TestVariants:
  @pytest.mark.parametrize('routing, d_shared', [('text', 0), ('dropped', 12)])
  @pytest.mark.parametrize('name', NAMES)
  def test_a_right_layer_is_mapped_onto_the_variant(
    self, name, routing, d_shared
  ):
    # given
    fields = dict(routing=routing, d_shared=d_shared)
    base_inputs = dataclasses.replace(CASE, **fields).make()
    kernel = trial.Kernel(trial.ascending)
    base = kernel.forward(
      base_inputs.config, base_inputs.policy, base_inputs.arrays
    )

    for variant in variants.PROPERTIES[name](base_inputs.config, 0):
      # when
      pair = variants.pair(base_inputs, variant)
      variant_inputs = variants.inputs(base_inputs, pair)
      outputs = kernel.forward(
        variant_inputs.config, variant_inputs.policy, variant_inputs.arrays
      )

      # then: all rows that have a token are compared, no other one is
      shared = ('shared_out',) if d_shared else ()
      for tensor in ('gate_up', 'expert_out', 'returned', *shared):
        mask = pair.compare_mask(tensor)
        ids = pair.other.ids[~variant.strangers]
        rows_ = (ids >= 0).sum()
        if tensor == 'returned':
          rows_ = ids.size
        if tensor in shared:
          rows_ = len(ids)
        assert mask.any(axis=-1).sum() == rows_
        np.testing.assert_array_equal(
          outputs[tensor][mask], pair.map_tensor(tensor, base[tensor])[mask]
        )

  def test_codes_of_tokens_go_where_the_tokens_go(self):
    # given
    fields = dict(x_form='e4m3_1x128', quantised='int8_channel')
    base = dataclasses.replace(CASE, **fields).make()

    for variant in variants.PROPERTIES['tokens'](base.config, 0):
      # when
      pair = variants.pair(base, variant)
      arrays = variants.inputs(base, pair).arrays

      # then
      for name in ('x_codes', 'x_scales'):
        by_token = base.arrays[name].reshape(-1, *base.arrays[name].shape[2:])
        np.testing.assert_array_equal(arrays[name], by_token[variant.tokens])

  def test_sums_over_tokens_are_of_all_tokens_or_none(self):
    # given
    base = CASE.make()
    whole = dict(run_to_run=1, tokens=1, slots=1, experts=1, ranks=1, threads=1)

    for name, trials in variants.PROPERTIES.items():
      for variant in trials(base.config, 0):
        # when
        pair = variants.pair(base, variant)

        # then
        has_more_room = (
          variant.more_rows > 0
        )  # of padding, the one with more room
        expected = name in whole or has_more_room
        assert (pair.compare_mask('d_w_down') is not None) == expected, (
          variant.says
        )

  @pytest.mark.parametrize('tokens', [1, 2])
  @pytest.mark.few(1)
  def test_small_layers(self, tokens):
    # given: one row, and two, of each rank
    case = dataclasses.replace(CASE, tokens=tokens)

    # when
    rows_ = invariance.run(candidate(trial.Kernel(trial.ascending)), case)

    # then
    assert invariance.is_kept(rows_)
    untried = {row.name for row in rows_ if not row.variants_tried}
    too_small = {'batch', 'others'} if tokens == 1 else set()
    assert untried == {'threads'} | too_small
