"""Dumps a small model of any family of transformers, in torch's Python.

Writes FOLDER/model and FOLDER/dump of the configuration FOLDER/config.json,
whose key `architectures` names the class.

Run as: python family_torch_testing.py FOLDER
"""

import json
import pathlib
import sys

import torch
import transformers

sys.path.append(str(pathlib.Path(__file__).parents[1] / 'dumps'))

import msprobe_torch_testing  # noqa: E402


def make_model(fields):
  """Returns a model of other weights than those of its class."""
  (architecture,) = fields['architectures']
  model_class = getattr(transformers, architecture)
  torch.manual_seed(0)
  model = model_class._from_config(model_class.config_class(**fields))
  with torch.no_grad():
    for parameter in model.parameters():
      if parameter.dim() > 1:
        parameter.normal_(std=0.25)
      else:  # norms stay near what they are
        parameter.add_(torch.randn_like(parameter) / 16)
  return model.eval()


def main():
  (folder,) = map(pathlib.Path, sys.argv[1:])
  model = make_model(json.loads((folder / 'config.json').read_text('utf-8')))
  model.save_pretrained(folder / 'model')
  tokens = torch.arange(24).reshape(2, 12) * 7 % 48
  msprobe_torch_testing.dump_run(
    model, folder / 'dump', lambda: model(tokens, use_cache=False)
  )


if __name__ == '__main__':
  main()
