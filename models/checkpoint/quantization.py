"""Why quantised weights that are not read are not: what their files say."""

from collections.abc import Iterable, Mapping
import json
import pathlib
from typing import Any

# Read by `block_scales.py`, `mxfp4.py` and `packed_codes.py`.
_READ = ('fp8', 'mxfp4', 'modelopt', 'compressed-tensors', 'awq', 'gptq')
# What is left of weights that these tools quantised in another way.
_OF_OTHERS = ('weight_scale', 'weight_packed', 'weight_zero_point', 'qweight')
# ModelOpt's file, in folders whose config.json says nothing.
_MODELOPT = 'hf_quant_config.json'


def explain_refusal(
  folder: pathlib.Path, fields: Mapping[str, Any], unexpected: Iterable[str]
) -> str:
  """Returns why tensors are no model's, or '' where no quantisation is why.

  Args:
    folder: of the model.
    fields: the contents of its config.json.
    unexpected: names of tensors that the model does not have.
  """
  source, options = 'config.json', fields.get('quantization_config')
  if not options and (folder / _MODELOPT).is_file():
    source, options = _MODELOPT, _read_modelopt(folder / _MODELOPT)
  if not isinstance(options, Mapping):
    return ''
  method = options.get('quant_method', 'fp8')
  is_left = any(part in name for name in unexpected for part in _OF_OTHERS)
  if method in _READ and not is_left:
    return ''
  details = [str(options[n]) for n in ('quant_algo', 'format') if n in options]
  details += [f'{options[n]} bits' for n in ('bits', 'w_bit') if n in options]
  form = f' ({", ".join(details)})' if details else ''
  return (
    "expected weights in float, 'fp8', 'mxfp4', NVFP4, AWQ or GPTQ of 4 bits, "
    f'or int4 or int8 without zero points, got quant_method {method!r}{form} '
    f'in {source}; dequantise them first'
  )


def _read_modelopt(path: pathlib.Path) -> Mapping[str, Any]:
  try:
    content = json.loads(path.read_bytes())
    algorithm = content['quantization']['quant_algo']
  except (ValueError, KeyError, TypeError):
    algorithm = 'unknown'
  return dict(quant_method='modelopt', quant_algo=algorithm)
