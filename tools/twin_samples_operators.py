"""Operators that vllm-ascend ships, with data and answers of our own.

A case launches an operator's source as it is, on the twin, and says what its
outputs must be by NumPy.  Tilings are what the operator's host code computes
for these shapes on an Ascend 910B.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import pathlib

import ml_dtypes
import numpy as np

from hpmoe.backend_ascend.twin.intrinsics import run_kernel

# Of vllm-ascend, which the tilings are of.
COMMIT = '182b75ea84'
_UB = 192 << 10
_Launch = Callable[..., list[np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Outcome:
  """One output of a launch.

  Attributes:
    name: of the output.
    actual, expected: its values.
    rtol, atol: 0: exactly.
  """

  name: str
  actual: np.ndarray
  expected: np.ndarray
  rtol: float = 0
  atol: float = 0

  def wrong(self) -> str:
    """Returns how far the output is off; '': it is right."""
    actual, expected = (
      np.asarray(a).astype(float) for a in (self.actual, self.expected)
    )
    close = np.isclose(actual, expected, self.rtol, self.atol, equal_nan=True)
    if close.all():
      return ''
    worst = np.nanmax(np.abs(actual - expected))
    return (
      f'wrong: {self.name}: {np.count_nonzero(~close)} of {close.size} differ, '
      f'by up to {worst:.3g}'
    )


@dataclasses.dataclass(frozen=True)
class Case:
  """An operator, and the shapes to run it with.

  Attributes:
    name: where it lies in `csrc`.
    run: given folders of the operators and of headers, and options of the
      launch, yields its outputs.
    verdict: that is expected.
    inputs: other arguments of `run`, by what they are: calls that are redundant
      for the first may be needed for these.
  """

  name: str
  run: Callable[..., Iterator[Outcome]]
  verdict: str = 'right'
  inputs: Mapping[str, Mapping[str, int]] = dataclasses.field(
    default_factory=dict
  )


def _lora(
  form: str, segments: bool, csrc, include, *, rank=16, hidden=512, **options
) -> Iterator[Outcome]:
  """A matrix product by each token's adapter, of rank or of hidden size."""
  rng = np.random.default_rng(1)
  tokens, adapters, per_core = 5, 3, 2
  half = np.float16
  adapters_of = np.array([0, 2, -1, 1, 2], np.int64)
  lengths = np.ones(tokens, np.int64)
  if segments:
    adapters_of, lengths = np.array([2, -1, 0], np.int64), np.array([2, 1, 2])
  adapter_of = np.repeat(adapters_of, lengths)
  lora: tuple = (adapters_of, np.uint32(adapters_of.size))
  if segments:
    lora += (lengths.astype(np.int64), np.uint32(lengths.size))
  kernel = run_kernel.Kernel(
    csrc / f'kernels/{"sgmv" if segments else "bgmv"}_{form}.cpp',
    f'{"sgmv" if segments else "bgmv"}_{form}_half',
    include=include,
    cores='aiv',
  )
  sizes = (np.uint32(tokens), np.uint32(per_core))
  blocks = -(-tokens // per_core)
  if form == 'shrink':
    x = rng.standard_normal((tokens, hidden)).astype(half)
    w = rng.standard_normal((adapters, rank, hidden)).astype(half)
    y = np.zeros((tokens, rank), np.float32)
    extra: tuple = (np.uint32(hidden), np.uint32(rank), np.float32(0.5))
    out = kernel(x, w, *lora, y, *sizes, *extra, blocks=blocks, **options)[-1]
    expected = y.copy()
    for i, adapter in enumerate(adapter_of):
      if adapter >= 0:
        expected[i] = 0.5 * (
          w[adapter].astype(np.float64) @ x[i].astype(np.float64)
        )
    yield Outcome('y', out, expected, 1e-5, 1e-4)
    return
  x = rng.standard_normal((tokens, rank)).astype(np.float32)
  w = rng.standard_normal((adapters, hidden, rank)).astype(half)
  y = rng.standard_normal((tokens, hidden + 64)).astype(half)
  slices = map(np.uint32, (rank, hidden, 32, hidden + 64))
  out = kernel(x, w, *lora, y, y, *sizes, *slices, blocks=blocks, **options)[-1]
  expected = y.astype(np.float64)
  for i, adapter in enumerate(adapter_of):
    if adapter >= 0:
      expected[i, 32 : 32 + hidden] += w[adapter].astype(np.float64) @ x[i]
  yield Outcome('y', out, expected, 1e-3, 1e-3)


def _lora_case(form: str, segments: bool) -> Case:
  def run(csrc, include, **options):
    return _lora(form, segments, csrc, include, **options)

  other = {'rank 64 of 528': dict(rank=64, hidden=528)}
  name = f'kernels/{"sgmv" if segments else "bgmv"}_{form}'
  return Case(name, run, inputs=other if form == 'expand' else {})


def _padded(values: Sequence[int]) -> np.ndarray:
  """Returns int32 values and room to a whole block, which the kernel reads."""
  return np.pad(np.asarray(values, np.int32), (0, 8))


def _eagle(csrc, include, *, slots=2, **options) -> Iterator[Outcome]:
  """Inputs of a draft model: a request's tokens, a bonus, slots, rejected."""
  op = run_kernel.Operator(csrc / 'moe/copy_and_expand_eagle_inputs', include)
  begins, ends, fill, draft = [0, 4, 7, 12], [2, 5, 11], -1, 55
  total = begins[-1]
  bonus = [7, 8, 9]
  tokens, places = range(100, 100 + total), range(total)
  size = total + len(ends) * slots
  ids, positions = np.full(size, 0, np.int32), np.zeros(size, np.int32)
  rejected, masked = np.zeros(size, np.int8), np.zeros(size, np.int8)
  new = np.zeros(len(ends) * slots, np.int32)
  for r, last in enumerate(ends):
    begin, end = begins[r], begins[r + 1]
    accepted = last - begin + 1
    rejects = end - last - 1
    out = begin + r * slots
    tokens_out = [*tokens[begin : last + 1], bonus[r], *[draft] * (slots - 1)]
    ids[out : out + len(tokens_out) + rejects] = tokens_out + [fill] * rejects
    positions[out : out + len(tokens_out)] = begin + np.arange(len(tokens_out))
    masked[out + accepted + 1 : out + accepted + slots] = 1
    rejected[out + accepted + slots : out + accepted + slots + rejects] = 1
    new[r * slots : (r + 1) * slots] = out + accepted + np.arange(slots)
  outputs = op(
    *(_padded(v) for v in (tokens, places, bonus, begins, ends)),
    *(np.zeros(size, t) for t in ('i4', 'i4', 'i1', 'i1')),
    np.zeros(new.size, np.int32),
    np.zeros(total, np.int32),
    key=1,
    tiling=dict(
      usedCoreNum=1,
      numReqs=len(ends),
      reqsPerCore=len(ends),
      paddingTokenId=fill,
      parallelDraftingTokenId=draft,
      numPaddingSlotsPerReq=slots,
      totalInputTokens=total,
      totalDraftTokens=size,
    ),
    **options,
  )
  yield Outcome('ids', outputs[5], ids)
  yield Outcome('positions', outputs[6], positions)
  yield Outcome('rejected', outputs[7], rejected)
  yield Outcome('masked', outputs[8], masked)
  yield Outcome('new', outputs[9], new)


def _transpose_kv(csrc, include, **options) -> Iterator[Outcome]:
  """Blocks of caches in place: from parts of heads to heads, for each token."""
  op = run_kernel.Operator(csrc / 'moe/transpose_kv_cache_by_block', include)
  rng = np.random.default_rng(2)
  layers, blocks, block, heads, size, parts = 2, 6, 8, 4, 32, 2
  ids = np.array([4, 1, 3], np.int64)
  shape = (blocks, block, heads, size)
  caches = [
    [rng.standard_normal(shape).astype(np.float16) for _ in range(layers)]
    for _ in 'kv'
  ]
  cores = layers * ids.size
  outputs = op(
    *caches,
    ids,
    key=0,
    blocks=cores,
    tiling=dict(
      blockSize=block,
      headNum=heads,
      headDim=size,
      splitNum=parts,
      layerNum=layers,
      useCoreNum=cores,
      blockPerCore=1,
      tailCoreNum=0,
      calBlockNum=ids.size,
      blockSizePerTime=block,
      blockSizeSplitNum=1,
    ),
    **options,
  )
  for i, cache in enumerate([*caches[0], *caches[1]]):
    expected = cache.copy()
    for b in ids:
      by_part = cache[b].reshape(parts, block, heads // parts, size)
      expected[b] = by_part.transpose(1, 0, 2, 3).reshape(block, heads, size)
    yield Outcome(f'cache {i}', outputs[i], expected)


def _add_rms_norm(csrc, include, **options) -> Iterator[Outcome]:
  """X = x1 + x2, y = x / sqrt(mean(x * x) + e) * gamma + beta."""
  op = run_kernel.Operator(csrc / 'moe/add_rms_norm_bias', include)
  rng = np.random.default_rng(3)
  rows, columns, cores, e = 4, 256, 4, 1e-6
  half = np.float16
  x1, x2 = rng.standard_normal((2, rows, columns)).astype(half)
  gamma, beta = rng.standard_normal((2, columns)).astype(half)
  empty = run_kernel.Empty
  outputs = op(
    x1,
    x2,
    gamma,
    beta,
    empty(x1.shape, half),
    empty((rows, 1), np.float32),
    empty(x1.shape, half),
    key=13,
    blocks=cores,
    workspace=256,
    tiling=dict(
      num_row=rows,
      num_col=columns,
      block_factor=1,
      row_factor=64,
      ub_factor=10240,
      epsilon=e,
      avg_factor=1 / columns,
      num_col_align=columns,
      last_block_factor=1,
      row_loop=1,
      last_block_row_loop=1,
      row_tail=1,
      last_block_row_tail=1,
      nullptr_beta=0,
    ),
    **options,
  )
  x = x1.astype(np.float64) + x2
  scale = 1 / np.sqrt((x * x).mean(1, keepdims=True) + e)
  yield Outcome('x', outputs[6], x, 1e-3, 1e-3)
  yield Outcome('rstd', outputs[5], scale, 1e-3, 1e-5)
  yield Outcome('y', outputs[4], x * scale * gamma + beta, 4e-3, 4e-3)


def _scatter(csrc, include, **options) -> Iterator[Outcome]:
  """Rows of an array, by their indices."""
  op = run_kernel.Operator(csrc / 'moe/scatter_nd_update_v2', include)
  rng = np.random.default_rng(4)
  shape, width, count = (9, 8), 32, 32
  flat = rng.permutation(shape[0] * shape[1])[:count]
  indices = np.stack(np.unravel_index(flat, shape), 1).astype(np.int32)
  var = rng.standard_normal((*shape, width)).astype(np.float32)
  updates = rng.standard_normal((count, width)).astype(np.float32)
  cores = count
  reach = (shape[0] - 1) * shape[1] * width + (shape[1] - 1) * width + width
  ub = _UB
  room = (ub - 1024 * 2 * 4) // 512 * 512 // 4
  block = min(ub // 5 // 4 // 512 * 512, 1024)
  outputs = op(
    var,
    indices,
    updates,
    var,
    key=11,
    blocks=cores,
    workspace=1 << 16,
    tiling=dict(
      linearIndexTiling=dict(
        coreNum=cores,
        ubSize=ub,
        indexDim=2,
        blockLength=block,
        blockRemainLength=count,
        frontCoreNum=1,
        sortWorkspace=512,
        indicesMask=[shape[1] * width, width],
      ),
      scatterTiling=dict(
        scatterLength=width,
        tailRow=reach // cores,
        frontRow=reach // cores + 1,
        frontNum=reach % cores,
        tailNum=cores - reach % cores,
        ubLengthForUpdates=room,
        scatterAlignLength=-(-width // 128) * 128,
        copyRow=room // 128,
        scatterTileNum=1,
        scatterTileLength=width,
        scatterTileTail=width,
        scatterTileAlignLength=128,
      ),
    ),
    **options,
  )
  expected = var.copy()
  expected[tuple(indices.T)] = updates
  yield Outcome('var', outputs[3], expected)


def _gating(csrc, include, *, renorm=1, **options) -> Iterator[Outcome]:
  """The k greatest of a softmax over experts, which then sum to 1."""
  op = run_kernel.Operator(csrc / 'moe/moe_gating_top_k', include)
  rng = np.random.default_rng(5)
  rows, experts, k = 5, 64, 8
  half = np.float16
  x = rng.standard_normal((rows, experts)).astype(half)
  empty = run_kernel.Empty
  outputs = op(
    x,
    None,
    empty((rows, k), half),
    empty((rows, k), np.int32),
    empty((rows, experts), np.float32),
    key=1,
    blocks=3,
    tiling=dict(
      needCoreNum=3,
      rowCount=rows,
      perCoreRowCount=2,
      lastCoreRowCount=1,
      expertCount=experts,
      k=k,
      kGroup=1,
      groupCount=1,
      perGroupExpertCount=experts,
      perGroupExpertCountAlign=experts,
      renorm=renorm,
      routedScalingFactor=1.0,
      eps=1e-20,
    ),
    # GatherMask writes past its buffer of k numbers, into its source: what that
    # gives is not published, but the numbers are not used.
    strict=False,
    **options,
  )
  exp = np.exp(x.astype(np.float64))
  share = exp / exp.sum(1, keepdims=True)
  order = np.argsort(-share, 1, kind='stable')[:, :k]
  best = np.take_along_axis(share, order, 1)
  yield Outcome('expert_idx', outputs[2], order)
  best = best / best.sum(1, keepdims=True) if renorm else best
  yield Outcome('y', outputs[1], best, 1e-3, 1e-4)


def _dequant_swiglu_quant(csrc, include, **options) -> Iterator[Outcome]:
  """Rows of experts, dequantised, activated and quantised again."""
  op = run_kernel.Operator(csrc / 'moe/dequant_swiglu_quant', include)
  rng = np.random.default_rng(6)
  width, counts = 128, np.array([3, 0, 4], np.int64)
  rows, cores = counts.sum() + 2, 4
  x = rng.integers(-9000, 9000, (rows, 2 * width)).astype(np.int32)
  weights = rng.uniform(1e-3, 2e-3, (counts.size, 2 * width)).astype(np.float32)
  tokens = rng.uniform(0.1, 0.2, rows).astype(np.float32)
  smooth = rng.uniform(0.5, 1.5, (counts.size, width)).astype(np.float32)
  outputs = op(
    x,
    weights,
    tokens,
    None,
    smooth,
    None,
    counts,
    np.zeros((rows, width), np.int8),
    np.zeros(rows, np.float32),
    key=100000000,
    blocks=cores,
    tiling=dict(
      inDimx=rows,
      inDimy=2 * width,
      outDimy=width,
      UbFactorDimx=2,
      UbFactorDimy=width,
      usedCoreNum=cores,
      maxCoreNum=cores,
      inGroupNum=counts.size,
      quantMode=1,
      needSmoothScale=1,
    ),
    **options,
  )
  group = np.repeat(np.arange(counts.size), counts)
  n = group.size
  plain = x[:n] * weights[group].astype(np.float64) * tokens[:n, None]
  act, gate = plain[:, width:], plain[:, :width]
  act, gate = gate, act
  v = act / (1 + np.exp(-act)) * gate * smooth[group]
  scale = np.abs(v).max(1) / 127
  yield Outcome('scale', outputs[-1][:n], scale, 1e-4)
  yield Outcome('y', outputs[-2][:n], np.rint(v / scale[:, None]), 0, 1)


def _batch_matmul(
  csrc, include, *, m=40, k=160, n=96, rows=32, k0=128, **options
) -> Iterator[Outcome]:
  """c[m, b] = a[m, b] @ b[b], in bfloat16."""
  op = run_kernel.Operator(csrc / 'batch_matmul_transpose', include)
  rng = np.random.default_rng(7)
  batch = 3
  dtype = ml_dtypes.bfloat16
  a = rng.standard_normal((m, batch, k)).astype(dtype)
  b = rng.standard_normal((batch, k, n)).astype(dtype)
  loops = -(-m // rows)
  outputs = op(
    a,
    b,
    run_kernel.Empty((m, batch, n), dtype),
    blocks=4,
    struct='PpMatmulTilingData',
    tiling=dict(
      opShape=dict(batchSize=batch, m=m, k=k, n=n, m0=rows, k0=k0, n0=n),
      mLoop=loops,
      kLoop=-(-k // k0),
      nLoop=1,
      coreLoop=batch * loops,
      swizzlCount=1,
      tilingKey=0b00001001001000 << 2,
      blockDim=4,
    ),
    **options,
  )
  expected = np.einsum('mbk,bkn->mbn', a.astype(float), b.astype(float))
  yield Outcome('c', outputs[2], expected, 1e-2, 1e-2)


def _grouped_matmul(csrc, include, **options) -> Iterator[Outcome]:
  """Rows of each expert times its weights."""
  op = run_kernel.Operator(csrc / 'moe/moe_grouped_matmul', include)
  rng = np.random.default_rng(8)
  experts, k, n, cores = 3, 64, 128, 2
  groups = np.array([[0, 20], [2, 30], [0, 0]], np.int64)
  m = groups[:, 1].sum()
  half = np.float16
  x = rng.standard_normal((m, k)).astype(half)
  w = rng.standard_normal((experts, k, n)).astype(half)
  rows = 32
  outputs = op(
    [x],
    [w],
    groups,
    [run_kernel.Empty((m, n), half)],
    key=10,
    blocks=cores,
    tiling=dict(
      group_num=experts,
      core_num=cores,
      m=m,
      n=n,
      k=k,
      single_m=rows,
      single_n=n,
      mm_tiling=dict(
        usedCoreNum=1,
        M=m,
        N=n,
        Ka=k,
        Kb=k,
        singleCoreM=rows,
        singleCoreN=n,
        singleCoreK=k,
        baseM=rows,
        baseN=n,
        baseK=k,
        depthA1=1,
        depthB1=1,
        stepM=1,
        stepN=1,
        stepKa=1,
        stepKb=1,
        shareL1Size=(rows + n) * k * 2,
        shareL0CSize=rows * n * 4,
        dbL0A=2,
        dbL0B=2,
        dbL0C=1,
      ),
    ),
    **options,
  )
  begin = 0
  expected = np.zeros((m, n))
  for expert, count in groups:
    rows_of = slice(begin, begin + count)
    expected[rows_of] = x[rows_of].astype(float) @ w[expert].astype(float)
    begin += count
  yield Outcome('y', outputs[-1], expected, 1e-3, 2e-2)


def _other_chip(csrc, include, **options) -> Iterator[Outcome]:
  """An operator for another chip's registers is refused in one line."""
  del options
  op = run_kernel.Operator(csrc / 'moe/swiglu_group_quant', include)
  op(tiling=b'')
  yield from ()


CASES = (
  *(_lora_case(f, s) for s in (False, True) for f in ('shrink', 'expand')),
  Case(
    'moe/copy_and_expand_eagle_inputs',
    _eagle,
    inputs={'5 slots': dict(slots=5)},
  ),
  Case('moe/transpose_kv_cache_by_block', _transpose_kv),
  Case('moe/add_rms_norm_bias', _add_rms_norm),
  Case('moe/scatter_nd_update_v2', _scatter),
  Case(
    'moe/moe_gating_top_k',
    _gating,
    inputs={'renorm 0': dict(renorm=0)},
  ),
  Case('moe/dequant_swiglu_quant', _dequant_swiglu_quant),
  Case(
    'batch_matmul_transpose',
    _batch_matmul,
    inputs={
      'tiles of 16 x 48 x 512': dict(m=16, k=1024, n=48, rows=16, k0=512)
    },
  ),
  Case('moe/moe_grouped_matmul', _grouped_matmul),
  Case(
    'moe/swiglu_group_quant',
    _other_chip,
    'refused: swiglu_group_quant: expected an operator for ascend910b or '
    'ascend910_93, got one for ascend950',
  ),
)


def verdict(
  case: Case, csrc: pathlib.Path, include: str, *, inputs: str = '', **options
) -> str:
  """Returns 'right', or the first that is not.

  Args:
    case: what is judged.
    csrc: the folder of vllm-ascend's operators.
    include: headers of Ascend C.
    inputs: which of the case's inputs; '': the first.
    **options: of the launch.
  """
  try:
    own = case.inputs[inputs] if inputs else {}
    for outcome in case.run(csrc, include, **own, **options):
      if text := outcome.wrong():
        return text
  except run_kernel.FindingsError as report:
    return report.findings[0]
  except ValueError as error:
    return f'refused: {str(error).splitlines()[0]}'
  return 'right'
