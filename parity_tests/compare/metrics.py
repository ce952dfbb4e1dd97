"""msprobe's metrics of two tensors, its column names and its verdict.

Sources: Ascend/msprobe at 8ff00da (2026-08-08), under `python/msprobe/`.
Columns: `COMPARE_RESULT_HEADER` of `core/common/const.py`, in its order.
Metrics: `core/compare/npy_compare.py`; computed in float64 and not rounded.
Verdict of floats: `_compare_float_tensor` of its accuracy checker,
`pytorch/api_accuracy_checker/compare/compare.py`, as data in `LIMITS`.  Cosine
at most 0.99 is an error; else a largest absolute error below 1e-3 passes; else
the shares of elements with large relative errors decide.
"""

import dataclasses

import numpy as np

PASS, WARNING, ERROR = 'pass', 'warning', 'error'

LEAST_COSINE = 0.99
SMALL_ABS = 1e-3


@dataclasses.dataclass(frozen=True)
class Limits:
  """The verdict of a dtype.

  Attributes:
    error: the share of elements with a relative error above this share that
      makes an error.
    warning: the same for a warning.
    epsilon: added to the divisor of errors.
  """

  error: float
  warning: float
  epsilon: float


LIMITS = dict(
  float16=Limits(1e-2, 1e-3, 2.0**-10),
  bfloat16=Limits(1e-2, 1e-3, 2.0**-8),
  float32=Limits(1e-3, 1e-4, 2.0**-23),
  float64=Limits(1e-3, 1e-4, 2.0**-52),
)

COLUMNS = (
  'NPU Name',
  'Bench Name',
  'NPU Dtype',
  'Bench Dtype',
  'NPU Tensor Shape',
  'Bench Tensor Shape',
  'NPU Requires_grad',
  'Bench Requires_grad',
  'Cosine',
  'EucDist',
  'MaxAbsErr',
  'MaxRelativeErr',
  'One Thousandth Err Ratio',
  'Five Thousandths Err Ratio',
  'NPU max',
  'NPU min',
  'NPU mean',
  'NPU l2norm',
  'Bench max',
  'Bench min',
  'Bench mean',
  'Bench l2norm',
  'Requires_grad Consistent',
  'Result',
  'Err_message',
)


@dataclasses.dataclass(frozen=True)
class Row:
  """One tensor of both sides.

  Attributes:
    name: of the tensor.
    layer, role: as `side_results.Tensor`.
    values: of each of `COLUMNS`.
    same: whether the bits are equal.
  """

  name: str
  layer: int | None
  role: str
  values: dict[str, object]
  same_bits: bool

  @property
  def result(self) -> str:
    """PASS, WARNING or ERROR."""
    return str(self.values['Result'])


def compare(
  name: str, layer: int | None, role: str, npu: np.ndarray, bench: np.ndarray
) -> Row:
  """Returns the row of a tensor: the candidate's (NPU) and the reference's."""
  is_float = npu.dtype.kind not in 'biu'
  values: dict[str, object] = dict.fromkeys(COLUMNS, 'N/A')
  values |= {'NPU Name': name, 'Bench Name': name}
  for side, array in (('NPU', npu), ('Bench', bench)):
    wide = array.astype(np.float64)
    values |= {
      f'{side} Dtype': str(array.dtype),
      f'{side} Tensor Shape': str(list(array.shape)),
      f'{side} Requires_grad': str(is_float and role != 'dy'),
      f'{side} max': float(wide.max()),
      f'{side} min': float(wide.min()),
      f'{side} mean': float(wide.mean()),
      f'{side} l2norm': float(np.linalg.norm(wide.ravel())),
    }
  values['Requires_grad Consistent'] = 'True'
  alike = npu.dtype == bench.dtype and npu.shape == bench.shape
  same_bits = alike and npu.tobytes() == bench.tobytes()
  if not alike:
    result, message = ERROR, 'dtype or shape differs'
  else:
    result, message = _judge(values, npu, bench)
  return Row(
    name,
    layer,
    role,
    values | dict(Result=result, Err_message=message),
    same_bits,
  )


def _judge(values: dict, npu: np.ndarray, bench: np.ndarray) -> tuple[str, str]:
  """Fills in the distances, and returns the verdict and its reason."""
  a, b = (x.astype(np.float64).ravel() for x in (npu, bench))
  if not np.array_equal(np.isnan(a), np.isnan(b)):
    side = 'NPU' if np.isnan(a).sum() > np.isnan(b).sum() else 'Bench'
    return ERROR, f'{side} has NaN where the other side has not'
  if not np.array_equal(np.isinf(a), np.isinf(b)):
    return ERROR, 'infinities are in other places'
  finite = np.isfinite(a) & np.isfinite(b)
  signs = a[np.isinf(a)] != b[np.isinf(b)]
  if signs.any():
    return ERROR, 'infinities of other signs'
  a, b = a[finite], b[finite]
  error = np.abs(a - b)
  # The columns have an epsilon where the bench is 0, the verdict everywhere.
  relative = error / np.where(b == 0, np.finfo(np.float32).eps, np.abs(b))
  values |= {
    'Cosine': _cosine(a, b),
    'EucDist': float(np.linalg.norm(a - b)),
    'MaxAbsErr': float(error.max(initial=0)),
    'MaxRelativeErr': float(relative.max(initial=0)),
    'One Thousandth Err Ratio': _share(relative < 0.001),
    'Five Thousandths Err Ratio': _share(relative < 0.005),
  }
  if npu.dtype.kind in 'biu':
    count = int((error > 0).sum())
    return (ERROR, f'{count} integers differ') if count else (PASS, '')
  limits = LIMITS[str(npu.dtype)]
  return _verdict(limits, values, error / (np.abs(b) + limits.epsilon))


def _verdict(limits: Limits, values: dict, relative) -> tuple[str, str]:
  cosine = values['Cosine']
  if cosine <= LEAST_COSINE:
    return ERROR, f'cosine {cosine:.6g} is at most {LEAST_COSINE}'
  if values['MaxAbsErr'] < SMALL_ABS:
    return PASS, ''
  for result, limit in ((ERROR, limits.error), (WARNING, limits.warning)):
    share = _share(relative >= limit)
    if share >= limit:
      return result, (
        f'relative errors of {limit:g} or more: a share of {share:.3g}, at '
        f'least {limit:g}'
      )
  return PASS, ''


def _share(mask: np.ndarray) -> float:
  return float(mask.mean()) if mask.size else 1.0


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
  if np.array_equal(a, b):
    return 1.0
  # Scaled, so that squares of small gradients do not vanish.
  lengths = [np.linalg.norm(a), np.linalg.norm(b)]
  if not all(lengths):
    return 0.0
  return float(np.dot(a / lengths[0], b / lengths[1]))
