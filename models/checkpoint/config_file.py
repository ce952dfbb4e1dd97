"""config.json, and the files beside weights that travel with them."""

from collections.abc import Container, Mapping
import json
import pathlib
from typing import Any

from hpmoe.models import config as config_lib
from hpmoe.models import families
from hpmoe.reference.contract import messages

NAME = 'config.json'
TOKENIZER = 'tokenizer.json'
TEMPLATES = 'additional_chat_templates'
_AUTO = 'AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)'
_OF_PIECES = f'pip install transformers sentencepiece protobuf; {_AUTO}'
# The pattern is in the model's own code alone.
_OF_RANKS = (
  'pip install transformers tiktoken; convert_slow_tokenizer.TikTokenConverter('
  "FILE, pattern).converted().save('tokenizer.json'), pattern: pat_str in the "
  "folder's tokenization_*.py"
)
# Vocabularies that `vocabularies.py` reads.
PIECES, RANKS = 'tokenizer.model', 'tiktoken.model'
# Those in other formats -> what makes a tokenizer.json of one.
_VOCABULARIES = {
  'spiece.model': _OF_PIECES,
  'sentencepiece.bpe.model': _OF_PIECES,
  'tekken.json': f'pip install transformers; {_AUTO}',
  'qwen.tiktoken': _OF_RANKS,
  'vocab.json': f'pip install transformers; {_AUTO}',
}
_EXTRAS = (
  'added_tokens.json',
  'chat_template.jinja',
  'generation_config.json',
  'merges.txt',
  'special_tokens_map.json',
  TOKENIZER,
  'tokenizer_config.json',
  PIECES,
  RANKS,
  *_VOCABULARIES,
)


def read(
  folder: pathlib.Path,
) -> tuple[dict[str, Any], config_lib.ModelConfig]:
  """Returns the contents of config.json, and what they mean.

  Weights in float16 are float32 from here on: every value is one.

  Raises:
    ValueError: there is no such file, it is not JSON, or it is not the config
      of a model here; names the field.
  """
  path = folder / NAME
  if not path.is_file():
    raise ValueError(f'{folder}: expected a folder with {NAME}, got none')
  fields = config_lib.read_json(path)
  architectures = {
    name
    for family in config_lib.FAMILIES.values()
    for name in (family.architecture, *family.other_architectures)
  }
  for name in fields.get('architectures') or ():
    if name not in architectures:
      expected = messages.refuse_choice(sorted(architectures), name)
      raise ValueError(f'{path}: architectures: {expected}')
  widened = {
    name: 'float32'
    for name in ('dtype', 'torch_dtype')
    if fields.get(name) == 'float16'
  }
  try:
    return fields, config_lib.from_hf(fields | widened)
  except ValueError as error:
    raise ValueError(f'{path}: {error}') from error


def describe(fields: Mapping[str, Any], dtype: str) -> dict[str, Any]:
  """Returns the contents of config.json for weights that were read.

  The weights are dequantised, and `dtype` is theirs.
  """
  text = families.unwrap(fields)
  if families.FAMILIES[text['model_type']].read_as:
    fields = config_lib.from_hf({**fields, 'dtype': dtype}).to_hf()
  stored_fields = {
    k: v for k, v in fields.items() if k != 'quantization_config'
  }
  name = 'torch_dtype' if 'torch_dtype' in stored_fields else 'dtype'
  return stored_fields | {name: dtype}


def write_json(path: pathlib.Path, content: Mapping[str, Any]) -> None:
  path.write_text(json.dumps(content, indent=2, sort_keys=True) + '\n')


def extras(folder: pathlib.Path) -> dict[str, bytes]:
  """Returns the files of a folder that belong to its model's text, by name."""
  names = [name for name in _EXTRAS if (folder / name).is_file()]
  templates = sorted((folder / TEMPLATES).glob('*.jinja'))
  names += [f'{TEMPLATES}/{path.name}' for path in templates]
  names += sorted(p.name for p in folder.glob('*.py') if is_code(p.name))
  return {name: (folder / name).read_bytes() for name in names}


def is_code(name: str) -> bool:
  """Says whether a file is a model's own tokenizer; it is never run."""
  return name.startswith('tokenization_') and name.endswith('.py')


def check_tokenizer(files: Container[str]) -> None:
  """Refuses a folder whose vocabulary is in a file that is not read.

  Args:
    files: the names of its files.

  Raises:
    ValueError: names the file.
  """
  if TOKENIZER in files:
    return
  for name, advice in _VOCABULARIES.items():
    if name in files:
      raise ValueError(
        f'{name}: expected {TOKENIZER} beside it, got none; {advice}'
      )
