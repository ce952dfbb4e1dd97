"""Small models with made weights, and an independent reader of their files."""

import json
import pathlib
from typing import Any

import ml_dtypes  # noqa: F401, safetensors needs it to return bfloat16.
import numpy as np
import safetensors
from safetensors import numpy as safetensors_numpy

from hpmoe.models import config as config_lib
from hpmoe.models import parameters as parameters_lib

TESTDATA = pathlib.Path(__file__).parent / 'testdata'
# Made by transformers; the last two of Mixtral and of GPT-OSS hold the same
# weights.
FOLDERS = (
  *('deepseek_v3', 'qwen3_moe', 'mixtral', 'mixtral_stacked'),
  *('gpt_oss', 'gpt_oss_mxfp4'),
)


def parameters(
  config: config_lib.ModelConfig, seed: int
) -> dict[str, np.ndarray]:
  """Returns normal values under the names of a model."""
  rng = np.random.default_rng(seed)
  return {
    name: rng.standard_normal(spec.shape).astype(spec.dtype)
    for name, spec in parameters_lib.parameter_shapes(config).items()
  }


def tensors(folder: pathlib.Path) -> dict[str, np.ndarray]:
  """Returns every tensor of a folder, by the safetensors library."""
  arrays = {}
  for path in sorted(folder.glob('*.safetensors')):
    with safetensors.safe_open(path, 'np') as file:
      arrays |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
  return arrays


def assert_same(
  actual: dict[str, np.ndarray], want: dict[str, np.ndarray]
) -> None:
  """Fails unless both hold the same tensors, bit for bit."""
  assert set(actual) == set(want)
  for name, tensor in want.items():
    assert actual[name].dtype == tensor.dtype, name
    assert actual[name].shape == tensor.shape, name
    assert actual[name].tobytes() == tensor.tobytes(), name


def read_fields(folder: pathlib.Path) -> dict[str, Any]:
  """Returns the contents of a folder's config.json."""
  return json.loads((folder / 'config.json').read_text())


def save(path: pathlib.Path, arrays: dict[str, np.ndarray]) -> None:
  """Writes tensors to a safetensors file."""
  contiguous = {n: np.ascontiguousarray(t) for n, t in arrays.items()}
  safetensors_numpy.save_file(contiguous, path)


def write_folder(
  out: pathlib.Path,
  like: pathlib.Path,
  arrays: dict[str, np.ndarray],
  **fields: Any,
) -> pathlib.Path:
  """Writes a folder with the config of `like` but for `fields`; returns it."""
  out.mkdir()
  save(out / 'model.safetensors', arrays)
  text = json.dumps(read_fields(like) | fields)
  (out / 'config.json').write_text(text)
  return out
