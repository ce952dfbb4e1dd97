"""Standards: metrics by hand, right kernels pass, wrong ones fail."""

import dataclasses
import zlib

import numpy as np
import pytest

from hpmoe.parity_tests.judge import trial_testing as trial
from hpmoe.parity_tests.judge.limits import standards
from hpmoe.parity_tests.judge.limits import ulp
from hpmoe.parity_tests.judge.limits.bounds import bounded_values
from hpmoe.parity_tests.judge.limits.bounds import gemm_bounds
from hpmoe.reference.contract import precision

DTYPES = ('float32', 'bfloat16', 'float16')
# A record has numbers for the dtypes that its text names.
RECORDS = [
  (name, dtype)
  for name, record in standards.STANDARDS.items()
  for dtype in DTYPES
  if dtype in record.tolerance
]
DEFAULTS = [standards.get(name) for name in standards.DEFAULT]


def _rng(name: str) -> np.random.Generator:
  return np.random.default_rng(zlib.crc32(name.encode()))


def _gemm(dtype: str, depth: int = 192, rows: int = 96, scale: float = 1.0):
  """A GEMM summed in one order, with a benchmark summed in another.

  A fifth of the rows nearly cancels.
  """
  rng = _rng(f'{dtype} {depth}')
  store = ulp.storage_dtype(dtype)
  x = (scale * rng.normal(size=(rows, depth))).astype(store)
  w = (rng.normal(size=(depth, 32)) / depth**0.5).astype(store)
  half = depth // 2
  x[::5, half : 2 * half] = -x[::5, :half]
  w[half : 2 * half] = w[:half]
  policy = precision.PrecisionPolicy(storage=dtype)
  golden = gemm_bounds.gemm(policy, bounded_values.exact(x), w)
  wide = x.astype(np.float32), w.astype(np.float32)
  # The candidate adds one after another, the benchmark in blocks: errors
  # differ by a factor of 2 to 4, as they do between real kernels.
  actual = trial.ascending(*wide).astype(store)
  blocks = [
    trial.ascending(wide[0][:, i : i + 16], wide[1][i : i + 16])
    for i in range(0, depth, 16)
  ]
  benchmark = np.sum(blocks, axis=0, dtype=np.float32).astype(store)
  return standards.Elements(
    actual.astype(float), golden.value, golden.error, benchmark.astype(float)
  )


def _judge(record, dtype, elements, parts: int = 3):
  judge = standards.Judge(record, dtype)
  bad = []
  for i in range(parts):
    chunk = (
      getattr(elements, f.name)[i::parts] for f in dataclasses.fields(elements)
    )
    bad.append(judge.add(standards.Elements(*chunk)))
  return judge, np.concatenate(bad)


def _with_tile(value):
  tile = np.zeros((96, 32), bool)
  tile[32:48, 8:16] = True
  return lambda a: np.where(tile, value, a)


# Ways to be wrong, applied to what a right kernel computed.
CONTROLS = {
  'all zeros': np.zeros_like,
  'dropped tile': _with_tile(0),
  'unwritten tile': _with_tile(np.nan),
  'swapped experts': lambda a: np.concatenate([a[24:48], a[:24], a[48:]]),
  'stale row': lambda a: a[[*range(41), 42, *range(42, 96)]],
}


def test_every_record_is_complete():
  for name, dtype in RECORDS:
    record = standards.get(name, dtype)
    assert record.version and record.source and record.scope, name
    assert record.reading and record.rules, name
    for rule in (rule for clause in record.rules for rule in clause):
      assert rule.metric in standards.METRICS
      assert dtype in rule.limit
      assert not rule.ratio or rule.floor[dtype] > 0


def test_no_record_accepts_what_is_not_finite_and_each_accepts_nothing():
  for name, dtype in RECORDS:
    record = standards.get(name, dtype)
    for value in (np.nan, np.inf):
      elements = _gemm(dtype, depth=32)
      elements.actual[50, 3] = value
      judge, bad = _judge(record, dtype, elements, parts=1)
      assert 'finite' in judge.list_broken()[0]
      assert bad[50, 3]
    # Zeros where zeros should be, and no row at all.
    for rows in (0, 3):
      zeros = standards.Elements(*[np.zeros((rows, 4))] * 4)
      judge, bad = _judge(record, dtype, zeros, 1)
      assert not judge.list_broken() and not bad.any(), name


def test_unknown_record_is_refused_with_the_known_names():
  with pytest.raises(
    ValueError,
    match="expected one of 'torch', .* got 'tortch': did you mean 'torch'",
  ):
    standards.get('tortch')


def test_a_record_without_a_number_for_a_dtype_is_refused_there():
  assert [n for n in standards.STANDARDS if (n, 'float16') not in RECORDS] == [
    'deepgemm',
    'vllm',
    'megatron',
    'flashinfer',
    'triton_distributed',
    'deepgemm_mega_moe',
  ]
  assert 'no number for float16' in standards.get('deepgemm').reading
  with pytest.raises(
    ValueError, match="for float16, got 'deepgemm', which is of float32"
  ):
    standards.get('deepgemm', 'float16')


@pytest.mark.parametrize('dtype', DTYPES)
@pytest.mark.parametrize('record', DEFAULTS, ids=standards.DEFAULT)
@pytest.mark.parametrize('rows', (1, 96))
def test_default_records_accept_a_right_kernel_that_cancels(
  record, dtype, rows
):
  elements = _gemm(dtype, rows=rows)

  judge, bad = _judge(record, dtype, elements, parts=1 if rows == 1 else 3)

  assert not judge.list_broken()
  assert not bad.any()


@pytest.mark.parametrize('dtype', DTYPES)
@pytest.mark.parametrize('control', CONTROLS)
def test_some_default_record_refuses_every_control(control, dtype):
  elements = _gemm(dtype)
  actual = CONTROLS[control](elements.actual)
  wrong = dataclasses.replace(elements, actual=actual)

  refusing_names = [
    r.name for r in DEFAULTS if _judge(r, dtype, wrong)[0].list_broken()
  ]

  # msprobe accepts a lost row of many: it allows a share. The others must not.
  assert {'ecosystem_v1', 'commercial_l1', 'torch'} <= set(refusing_names)


@pytest.mark.parametrize('name', ('ecosystem_v1_letter', 'torch_letter'))
def test_the_letter_refuses_a_right_kernel_that_cancels(name):
  # This is why the default records excuse what the type cannot hold.
  elements = _gemm('float32', depth=1024, scale=100)

  judge, bad = _judge(standards.get(name), 'float32', elements)

  assert judge.list_broken()
  assert bad.any()
  base = standards.get(name.removesuffix('_letter'))
  assert not _judge(base, 'float32', elements)[0].list_broken()


def test_the_letter_of_ratios_refuses_who_is_less_exact_than_the_benchmark():
  elements = _gemm('float32', depth=1024)
  elements = dataclasses.replace(elements, benchmark=elements.golden)

  letter = standards.get('commercial_l1_letter')

  assert _judge(letter, 'float32', elements)[0].list_broken()
  assert not _judge(standards.get('commercial_l1'), 'float32', elements)[
    0
  ].list_broken()


def test_metrics_equal_those_written_out():
  # Given three normal elements, a small one and a cancelling one,
  golden = np.array([[1.0, -2.0, 4.0, 2.0**-15, 2.0**-9]])
  actual = np.array([[1.1, -2.0, 3.0, 2.0**-16, 2.0**-10]])
  benchmark = np.array([[1.0, -2.1, 4.0, 2.0**-15, 2.0**-9]])
  elements = standards.Elements(
    actual, golden, np.zeros_like(golden), benchmark
  )

  v1, bad = _judge(standards.get('ecosystem_v1'), 'float32', elements, 1)
  l1, _ = _judge(standards.get('commercial_l1'), 'float32', elements, 1)

  # when they are judged, then every region and metric is as by hand.
  relative = np.abs(actual - golden) / (np.abs(golden) + 1e-7)
  values = v1.values()
  assert values['mere[normal]'] == pytest.approx(relative[0, :3].mean())
  assert values['mismatches[normal]'] == 2
  assert values['mismatches[small]'] == 1
  assert values['mismatches[cancel]'] == 1
  np.testing.assert_array_equal(bad, [[True, False, True, True, True]])
  values = l1.values()
  large = [0, 1, 2, 4]
  assert values['mare[normal]'] == pytest.approx(relative[0, large].max())
  assert values['rmse[normal]'] == pytest.approx(
    np.sqrt(np.square(actual - golden)[0, large].mean())
  )
  assert values['rmse[normal] benchmark'] == pytest.approx(np.sqrt(0.1**2 / 4))


def test_small_values_are_counted_against_the_benchmark():
  # Given 5 wrong small values where the benchmark has none, 2 or 3 wrong,
  golden = np.full((1, 10), 2.0**-20)
  actual = golden.copy()
  actual[0, :5] *= 3
  record = standards.get('ecosystem_v1')
  for wrong, accepted in ((0, False), (2, False), (3, True)):
    benchmark = golden.copy()
    benchmark[0, :wrong] *= 3
    elements = standards.Elements(
      actual, golden, np.zeros_like(golden), benchmark
    )

    judge, _ = _judge(record, 'float32', elements, 1)

    # then twice the benchmark's count is the limit.
    assert (not judge.list_broken()) == accepted


def test_vector_metrics_equal_those_written_out():
  rng = _rng('vectors')
  a, g = rng.normal(size=(2, 6, 8))
  elements = standards.Elements(a, g, np.zeros_like(g), g)

  cosine = _judge(standards.get('msprobe'), 'float32', elements)[0].values()
  deep = _judge(standards.get('deepgemm'), 'float32', elements)[0].values()

  angle = (a * g).sum() / np.linalg.norm(a) / np.linalg.norm(g)
  assert cosine['cosine_loss[all]'] == pytest.approx(1 - angle)
  diff = 1 - 2 * (a * g).sum() / (a * a + g * g).sum()
  assert deep['calc_diff[all]'] == pytest.approx(diff)


def _zeros(scale, size):
  golden = np.full((4, 8), scale * size)
  return 0 * golden, golden, 0 * golden


def _far_off(wrong):
  golden = np.full(200, 10.0)
  actual = np.where(np.arange(200) < wrong, -10.0, 1.5)
  return actual, golden, 0 * golden


def _make_deviation(share):
  golden, bound = np.full((2, 4), 1.0), np.full((2, 4), 2.0**-8)
  return golden + share * bound, golden, bound


@pytest.mark.parametrize(
  ('name', 'accepted', 'refused_values'),
  [
    # Zeros, in place of a layer whose values are just below an absolute number.
    *(
      (name, _zeros(0.9, size), _zeros(1.2, size))
      for name, size in (
        ('vllm', 2e-2),
        ('sglang', 1e-2),
        ('megatron', 5e-2),
        ('triton_distributed', 1e-2),
        ('transformer_engine', 1e-5),
      )
    ),
    # Of 200 elements of 10, some that are wrong by far: 7 %.
    ('flashinfer', _far_off(15), _far_off(16)),
    # Rounding alone.
    ('deepgemm_mega_moe', _make_deviation(0.9), _make_deviation(1.1)),
  ],
)
def test_a_public_rule_ends_where_its_number_is(name, accepted, refused_values):
  for (actual, golden, bound), is_broken in (
    (accepted, False),
    (refused_values, True),
  ):
    elements = standards.Elements(actual, golden, bound, golden)
    judge, _ = _judge(standards.get(name, 'bfloat16'), 'bfloat16', elements)
    assert bool(judge.list_broken()) == is_broken
