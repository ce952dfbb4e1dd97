"""One pass in C++ gives what a hundred in numpy do, or refuses."""

import dataclasses
import itertools

import numpy as np
import pytest

from hpmoe.parity_tests.case import tiles
from hpmoe.parity_tests.judge import pass_reference
from hpmoe.parity_tests.judge import trial_testing as trial
from hpmoe.parity_tests.judge import trial_verdicts_testing as trial_verdicts
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.lanes import tile_lanes
from hpmoe.parity_tests.judge.limits import chunk_sums
from hpmoe.parity_tests.judge.limits import standards
from hpmoe.parity_tests.judge.limits.bounds import bounded_values
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import precision

# More columns than C++ looks at together.
ROWS, COLUMNS = 37, 151
# The first tile row is not the first of the tensor.
CUT = tiles.cut_tokens(10 + ROWS, 10, COLUMNS, 20)
PAIRS = ((0.25, 0.0), (0.125, 0.5))


@dataclasses.dataclass(frozen=True)
class Tensor:
  """A chunk under judgement."""

  actual: np.ndarray
  golden: bounded_values.Bounded
  benchmark: np.ndarray

  def sums(self, spread=True, pairs=PAIRS):
    return chunk_sums.add_chunk(
      CUT, 1, self.actual, self.golden, self.benchmark, spread, pairs
    )


def _tensor(dtype=np.float32) -> Tensor:
  rng = np.random.default_rng(0)
  value = rng.standard_normal((ROWS, COLUMNS))
  value[3, 4] = 0
  actual, benchmark = (
    (value * (1 + 1e-3 * rng.standard_normal(value.shape))).astype(dtype)
    for _ in range(2)
  )
  bound = np.abs(value) * 2e-2
  golden = bounded_values.Bounded(value, bound, np.square(bound) / 9)
  return Tensor(actual, golden, benchmark)


class TestARightChunk:
  def test_the_worst_element_is_the_first_with_the_largest_error(self):
    tensor = _tensor()
    for index in ((7, 8), (9, 2)):
      tensor.golden.value[index] = 64.0
      tensor.golden.error[index] = tensor.golden.bound().max() + 1.5
      tensor.actual[index] = tensor.benchmark[index] = 65.0
    native_sums = tensor.sums().native_sums

    assert (native_sums.worst_error, native_sums.worst_at) == (
      1,
      7 * COLUMNS + 8,
    )

  def test_tiles_have_the_sums_of_their_elements(self):
    tensor = _tensor()
    native_sums = tensor.sums().native_sums
    value = tensor.golden.value
    smallest = np.finfo(np.float64).tiny
    scale = 1 / np.sqrt(np.maximum(tensor.golden.variance, smallest))
    error = (tensor.actual - value) * scale

    lines = CUT.lines(value, 1)
    for actual, expected in (
      (native_sums.square, CUT.sum(np.square(error), 1)),
      (native_sums.product, CUT.sum(error * value * scale, 1)),
      (native_sums.information, CUT.sum(np.square(value * scale), 1)),
      (native_sums.by_row, lines.by_row),
      (native_sums.by_column, lines.by_column),
    ):
      np.testing.assert_allclose(actual, expected, rtol=1e-11, atol=1e-11)

  def test_what_nobody_asks_for_is_not_there(self):
    tensor = _tensor()
    native_sums = chunk_sums.add_chunk(
      CUT, 1, tensor.actual, tensor.golden, None, False, ()
    ).native_sums

    assert (
      native_sums.square.size
      == native_sums.by_row.size
      == native_sums.by_column.size
      == 0
    )
    assert not native_sums.regions.any()
    assert native_sums.worst_error > 0


class TestAChunkThatNeedsALook:
  def test_an_element_beyond_its_bound(self):
    for field, value, index in itertools.product(
      ('actual', 'benchmark'),
      (9.0, np.nan, np.inf, -np.inf),
      ((0, 0), (ROWS - 1, COLUMNS - 1)),
    ):
      tensor = _tensor()
      getattr(tensor, field)[index] = value
      assert tensor.sums() is None, (field, value, index)

  @pytest.mark.parametrize('value', [np.nan, np.inf])
  def test_a_golden_or_a_bound_that_is_not_finite(self, value):
    tensor, other = _tensor(), _tensor()
    tensor.golden.value[2, 2] = tensor.actual[2, 2] = value
    tensor.benchmark[2, 2] = value
    other.golden.error[2, 2] = value
    assert tensor.sums() is None and other.sums() is None

  def test_an_error_where_none_is_allowed(self):
    tensor = _tensor()
    tensor.actual[:] = tensor.benchmark[:] = 0
    tensor.golden.value[:] = tensor.golden.error[:] = 0
    assert tensor.sums().native_sums.worst_of_bound == 0
    tensor.actual[5, 5] = np.float32(1e-45)
    assert tensor.sums() is None


class TestArgumentsThatDoNotFit:
  def test_shapes(self):
    tensor = _tensor()
    for short in (
      dataclasses.replace(tensor, actual=tensor.actual[:, :-1]),
      dataclasses.replace(tensor, benchmark=tensor.benchmark[:-1]),
    ):
      with pytest.raises(ValueError, match="expected the golden's shape"):
        short.sums()

  @pytest.mark.parametrize('starts', [[0, 36], [1, 37], [0, 9, 8, 37], []])
  def test_tiles(self, starts):
    tensor = _tensor()
    wide = tensor.actual.astype(np.float64)
    with pytest.raises(ValueError, match='row_starts: expected ascending'):
      chunk_sums._chunk_sums.add(
        wide, wide, wide, None, None, starts, [0, COLUMNS], [], 0.0
      )


RECORDS = tuple(
  record
  for name in standards.names('float32')
  if (record := standards.get(name)).excuse_rounding
)
CONFIG = config_testing.make_config(r=2, t=40, e=4, k=2, d=48, f=24, n=120)


def _judge(name, actual, layer_inputs, layer: bool) -> list[verdicts.Result]:
  """Judges one tensor by every record that excuses rounding."""
  layer_pass = verdicts.pass_of(name)
  sources = {} if layer else actual
  golden = pass_reference.build_golden(
    layer_pass,
    trial.tiling(CONFIG, layer_inputs.arrays),
    layer_inputs.policy,
    layer_inputs.arrays,
    sources,
  )
  # A stage is computed from what this kernel stored, the layer is not.
  kernel = trial.Kernel(trial.pairwise)
  right_stages = (
    kernel.forward(CONFIG, layer_inputs.policy, layer_inputs.arrays)
    if layer
    else actual
  )
  return tile_lanes.tolerances(
    verdicts.LAYERS[name] if layer else name,
    actual[name],
    golden,
    right_stages[name],
    RECORDS,
    stored_oracle=right_stages[name] if layer else None,
  )


class TestBothWaysOfJudging:
  """A verdict and its figures do not depend on who added up."""

  @pytest.mark.parametrize(
    'name, layer',
    [
      ('gate_up', False),
      ('activation', False),
      ('expert_out', False),
      ('y', False),
      ('y', True),
    ],
  )
  @pytest.mark.parametrize('storage', ['float32', 'bfloat16'])
  def test_agree(self, name, layer, storage, monkeypatch):
    layer_inputs = trial_verdicts.draw(
      CONFIG, precision.PrecisionPolicy(storage=storage), 0
    )
    actual = trial.Kernel().forward(
      CONFIG, layer_inputs.policy, layer_inputs.arrays
    )
    plain, returned_sums = chunk_sums.add_chunk, []

    def watched(*args):
      returned_sums.append(plain(*args))
      return returned_sums[-1]

    monkeypatch.setattr(chunk_sums, 'add_chunk', watched)
    by_both = _judge(name, actual, layer_inputs, layer)
    monkeypatch.setattr(chunk_sums, 'add_chunk', lambda *args: None)
    by_numpy = _judge(name, actual, layer_inputs, layer)

    if storage == 'float32':
      assert returned_sums and all(sums is not None for sums in returned_sums)
    assert [r.verdict for r in by_both] == ['pass'] * len(by_numpy)
    for first, other in zip(by_both, by_numpy, strict=True):
      assert first.values == pytest.approx(other.values, rel=1e-9)
      assert first.power == pytest.approx(other.power, rel=1e-9)
      assert _facts(first) == _facts(other)

  @pytest.mark.parametrize('factor', [1 + 2e-6, 1.01, np.nan])
  def test_agree_on_a_wrong_tile(self, factor, monkeypatch):
    layer_inputs = trial_verdicts.draw(CONFIG, precision.PrecisionPolicy(), 0)
    actual = trial.Kernel().forward(
      CONFIG, layer_inputs.policy, layer_inputs.arrays
    )
    actual['gate_up'][1, :32] *= np.float32(factor)

    by_both = _judge('gate_up', actual, layer_inputs, False)
    monkeypatch.setattr(chunk_sums, 'add_chunk', lambda *args: None)
    by_numpy = _judge('gate_up', actual, layer_inputs, False)

    assert 'fail' in {r.verdict for r in by_both}
    for first, other in zip(by_both, by_numpy, strict=True):
      assert repr(_facts(first)) == repr(_facts(other))  # NaN is not itself

  def test_the_callers_error_state_is_as_it_was(self):
    # Judges look at chunks in threads, and numpy 1 keeps an old state in the
    # object that all of them share.
    layer_inputs = trial_verdicts.draw(CONFIG, precision.PrecisionPolicy(), 0)
    actual = trial.Kernel().forward(
      CONFIG, layer_inputs.policy, layer_inputs.arrays
    )
    before = np.geterr()
    _judge('gate_up', actual, layer_inputs, False)
    assert np.geterr() == before


class TestWithoutTheExtension:
  def test_numpy_judges_every_chunk(self, monkeypatch):
    # given an installation without the extension module
    monkeypatch.setattr(chunk_sums, '_chunk_sums', None)
    # then no chunk is summed in one pass
    assert _tensor().sums() is None


def _facts(result: verdicts.Result):
  plain = dataclasses.replace(
    result,
    **dict.fromkeys(('values', 'power'), {}),
    **dict.fromkeys(('grids', 'experts', 'shares'), ()),
    reason='',
    part=None,
  )
  arrays = result.grids + result.experts + result.shares
  return plain, [array.tolist() for array in arrays]
