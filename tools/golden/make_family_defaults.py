"""Makes models/testdata/family_defaults.json from transformers' classes.

What a config.json means by each key that it lacks, as the configuration
classes of transformers say it; needs transformers beside the project:

    python -m hpmoe.tools.golden.make_family_defaults

openPangu's class is published with its weights and not in transformers; its
entry is copied by hand and kept.
"""

import dataclasses
import json

from absl import app
import transformers

from hpmoe.models import config as config_lib
from hpmoe.models import golden_testing as golden

FILE = golden.FOLDER.parent / 'family_defaults.json'


def main(argv) -> None:
  del argv
  defaults_by_type = json.loads(FILE.read_text())
  for model_type, family in config_lib.FAMILIES.items():
    model = getattr(transformers, family.architecture, None)
    if model is None or model_type in defaults_by_type:
      continue
    config_class = model.config_class
    if family.holder:
      config_class = config_class.sub_configs['text_config']
    defaults_by_type[model_type] = dict(
      source=f'transformers {transformers.__version__}',
      defaults=_defaults(config_class),
    )
  FILE.write_text(json.dumps(defaults_by_type, indent=1) + '\n')


def _defaults(config_class) -> dict:
  base = {f.name for f in dataclasses.fields(transformers.PreTrainedConfig)}
  files = config_class.attribute_map
  out = {
    files.get(field.name, field.name): field.default
    for field in dataclasses.fields(config_class)
    if field.name not in base
  }
  rope = config_class().rope_parameters
  if 'full_attention' in rope:  # a form for each kind of layer
    full = config_class().per_layer_config[5]
    out['global_head_dim'] = full.head_dim
    out['num_global_key_value_heads'] = None
    return out | {'rope_parameters': rope}
  beside = ('rope_theta', 'partial_rotary_factor')
  out |= {name: rope[name] for name in beside if name in rope}
  scaling = {n: v for n, v in rope.items() if n not in beside}
  plain = scaling == {'rope_type': 'default'}
  return out if plain else out | {'rope_scaling': scaling}


if __name__ == '__main__':
  app.run(main)
