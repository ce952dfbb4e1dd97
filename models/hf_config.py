"""What config.json means, in Hugging Face's words."""

from collections.abc import Mapping, Sequence
from typing import Any

from hpmoe.models import config_checks
from hpmoe.models import families
from hpmoe.models import rope_scaling

require, is_int = config_checks.require, config_checks.is_int
_LIMITED = 'group_limited_greedy'
# Whole numbers below it are floats.
_HUGE = 2**1023
# Fields that files have as null where they are 0.
NULL_IF_ZERO = (
  *('clip_qkv', 'final_logit_softcapping', 'num_global_key_value_heads'),
)
# What null means where it is not None itself.
_WORDS = ('layer_types', 'mlp_layer_types')
_NULLS: dict[str, Any] = {
  **dict.fromkeys(('clip_qkv', 'final_logit_softcapping'), 0.0),
  **dict.fromkeys((*config_checks.MAY_BE_ZERO, 'head_dim'), 0),
  **dict.fromkeys(('mlp_only_layers', 'eos_token_id', *_WORDS), ()),
}
_MAY_BE_NULL = (
  *config_checks.OPTIONAL_SIZES,
  *('bos_token_id', 'rope_scaling', 'num_key_value_heads'),
)
_ROPE = ('rope_theta', 'rope_scaling', 'rope_parameters')
_WINDOW_THETA = 'window_rope_theta'
_KINDS = ('sliding_attention', 'full_attention')
# Sizes of layers without a window in `per_layer_config` -> the key for all.
_OWN_SIZES = {
  'head_dim': 'global_head_dim',
  'num_key_value_heads': 'num_global_key_value_heads',
}
# Numbers that a file may hold beside a form of rope, in it, or both.
_BESIDE = ('rope_theta', 'partial_rotary_factor')


def read(fields: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the fields of `ModelConfig` that the contents of config.json mean.

  Where a key is absent, the default of the family's reference implementation
  holds.  Reads `rope_parameters`, as transformers 5 writes it, as well as
  `rope_theta` with `rope_scaling`, and both where they agree.  Keys that do not
  change the arithmetic are not read.

  Raises:
    ValueError: a field is missing, out of range, unknown, or asks for what no
      model here computes; names the field as the file does.
  """
  fields = families.unwrap(fields)
  model_type = families.check_type(fields.get('model_type'))
  family = families.FAMILIES[model_type]
  _check_keys(model_type, fields)
  fields = _with_one_rope(family, _without_lists(family, fields))
  fields = _with_own_sizes(family, fields)
  fields = _with_layer_types(family, _with_rotary_part(family, fields))
  fields = _with_groups(family, _with_rope(family, fields))
  values = {name: _value(family, name, fields) for name in family.defaults}
  values.pop('topk_method', None)
  if not values.pop('use_sliding_window', True):
    values['sliding_window'] = None
  if family.window_layers:
    values |= _place_windows(family, values, values.pop('max_window_layers'))
  if values['num_key_value_heads'] is None:
    values['num_key_value_heads'] = values['num_attention_heads']
  if (end := values.pop('moe_layer_end_index', -1)) != -1:
    layers = values['num_hidden_layers']
    values['mlp_only_layers'] = tuple(range(end + 1, layers))
  values |= _dense_layers(values.pop('mlp_layer_types', ()), values)
  if 'intermediate_size' not in values:  # a family without dense blocks
    values['intermediate_size'] = values['moe_intermediate_size']
  dtype = fields.get('dtype') or fields.get('torch_dtype') or 'float32'
  values |= family.constants
  return values | dict(model_type=family.read_as or model_type, dtype=dtype)


def _place_windows(
  family: families.Family, values: Mapping[str, Any], border: int
) -> dict[str, Any]:
  """Returns the kind of each layer, and the window if a layer has it."""
  kinds, window = values['layer_types'], values['sliding_window']
  if not kinds:
    layers = range(values['num_hidden_layers'])
    has_window = [layer >= border for layer in layers]
    if family.window_layers == 'by_turns_below':
      has_window = [layer < border and layer % 2 == 0 for layer in layers]
    kinds = tuple(_KINDS[not (window and own)] for own in has_window)
  is_near = _KINDS[0] in kinds
  require(
    window is not None or not is_near, 'layer_types', 'no window', [*kinds][:4]
  )
  return dict(layer_types=kinds, sliding_window=window if is_near else None)


def _dense_layers(
  kinds: Sequence[str], values: Mapping[str, Any]
) -> dict[str, Any]:
  """Returns the fields for dense layers, from the kind of each layer."""
  if not kinds:
    return {}
  layers, kinds_allowed = values['num_hidden_layers'], {'dense', 'sparse'}
  fine = len(kinds) == layers and {*kinds} <= kinds_allowed
  expected = f'num_hidden_layers={layers} of {sorted(kinds_allowed)}'
  require(fine, 'mlp_layer_types', expected, [*kinds][:4])
  dense = tuple(i for i, kind in enumerate(kinds) if kind == 'dense')
  if dense == tuple(range(len(dense))):
    return dict(first_k_dense_replace=len(dense), mlp_only_layers=())
  return dict(first_k_dense_replace=0, mlp_only_layers=dense)


def name_fields(family: families.Family) -> dict[str, str]:
  """Returns the name in config.json of each field that a family has."""
  return {name: family.renamed.get(name, name) for name in family.defaults}


def _check_keys(model_type: str, fields: Mapping[str, Any]) -> None:
  """Checks that every key is known, and requests nothing unsupported."""
  family = families.FAMILIES[model_type]
  read = {
    *name_fields(family).values(),
    *_ROPE,
    *family.unused,
    *families.UNUSED,
  }
  read.update(*family.also_named.values())
  for name, stated in family.stated.items():
    value = fields.get(name, family.unstated[name])
    require(value == stated, name, repr(stated), value)
    read.add(name)
  fixed = {k: v for k, v in families.FIXED.items() if k not in read}
  fixed |= family.fixed
  for name, entry in family.entries.items():
    if name not in family.defaults:
      fixed[name] = [entry] * len(fields.get(name) or ())
  read -= set(fixed)
  for name, value in fields.items():
    if name in read or value is None or value == fixed.get(name):
      continue
    other = f'a key that a {model_type} here computes with'
    expected = repr(fixed[name]) if name in fixed else other
    raise ValueError(f'{name}: expected {expected}, got {value!r}')


def _value(
  family: families.Family, field: str, fields: Mapping[str, Any]
) -> Any:
  """Returns the value of a field, which a file holds under any of its names."""
  file_key = family.renamed.get(field, field)
  names = (file_key, *family.also_named.get(field, ()))
  stated = {name: fields[name] for name in names if name in fields}
  first = next(iter(stated), file_key)
  stated.setdefault(first, family.defaults[field])
  for name, value in stated.items():
    agrees = value == stated[first]
    require(agrees, name, f'{first}={stated[first]!r}', value)
  if stated[first] is None and field in _MAY_BE_NULL:
    return None
  required = family.defaults[field] is None
  if stated[first] is None and field in _NULLS and not required:
    return _NULLS[field]
  return _typed(first, family.defaults[field], stated[first])


def _typed(file_key: str, default: Any, value: Any) -> Any:
  """Returns a value of config.json in the type of the field's default."""
  if isinstance(value, rope_scaling.RopeScaling) or isinstance(default, str):
    return value
  if isinstance(default, tuple):
    value = value if isinstance(value, (list, tuple)) else [value]
    if file_key in _WORDS and all(isinstance(v, str) for v in value):
      return tuple(value)
    if isinstance((*default, 0)[0], float):
      return tuple(_typed(file_key, 0.0, number) for number in value)
    require(all(map(is_int, value)), file_key, 'integers', value)
    return tuple(value)
  if isinstance(default, bool):
    require(isinstance(value, bool), file_key, 'true or false', value)
    return value
  if isinstance(default, float):
    real = isinstance(value, float) or (is_int(value) and abs(value) < _HUGE)
    require(real, file_key, 'a number', value)
    return float(value)
  require(is_int(value), file_key, 'an integer', value)
  require(
    value <= config_checks.MAX_SIZE,
    file_key,
    f'<= {config_checks.MAX_SIZE}',
    value,
  )
  return value


def _with_groups(
  family: families.Family, fields: dict[str, Any]
) -> dict[str, Any]:
  """Returns fields without the groups that a 'greedy' router ignores."""
  if 'topk_method' not in family.defaults:
    return fields
  method = fields.get('topk_method', family.defaults['topk_method'])
  methods = ('greedy', _LIMITED)
  require(method in methods, 'topk_method', f'one of {methods}', method)
  return fields | (dict(n_group=1, topk_group=1) if method == 'greedy' else {})


def _with_rotary_part(
  family: families.Family, fields: Mapping[str, Any]
) -> dict[str, Any]:
  """Returns fields with the part of a head that rotates, if its width is."""
  name = 'partial_rotary_factor'
  width = fields.get(family.rotary_width)
  if width is None or fields.get(name) is not None:
    return dict(fields)
  whole = _value(family, 'head_dim', fields)
  fine = is_int(width) and 0 < width <= whole
  require(fine, family.rotary_width, f'1 to head_dim={whole}', width)
  return {**fields, name: width / whole}


def _without_lists(
  family: families.Family, fields: Mapping[str, Any]
) -> dict[str, Any]:
  """Returns fields with one number where a list has the same of each layer."""
  out = dict(fields)
  for name in family.per_layer:
    if isinstance(numbers := fields.get(name), list):
      fine = bool(numbers) and numbers == numbers[:1] * len(numbers)
      require(fine, name, 'the same number for each layer', numbers[:4])
      out[name] = numbers[0]
  return out


def _with_layer_types(
  family: families.Family, fields: dict[str, Any]
) -> dict[str, Any]:
  """Returns fields with a kind of each layer, if an interval says it."""
  interval = fields.get(family.layer_interval)
  if interval is None or fields.get('layer_types') is not None:
    return fields
  fine = is_int(interval) and interval > 0
  require(fine, family.layer_interval, '>= 1', interval)
  layers = _value(family, 'num_hidden_layers', fields)
  first, last = family.layer_pattern[0], family.layer_pattern[-1]
  kinds = [first if (i + 1) % interval else last for i in range(layers)]
  return {**fields, 'layer_types': kinds}


def nest_rope(out: dict[str, Any]) -> None:
  """Gives the contents of config.json a form of rope for each kind of layer.

  `rope_parameters` `{kind of layer: form}` in place of flat fields.
  """
  form = dict(out.pop('rope_scaling'))
  form['rope_type'] = form.pop('type', form.get('rope_type'))
  window = {'rope_type': 'default', 'rope_theta': out.pop(_WINDOW_THETA)}
  full = form | {'rope_theta': out.pop('rope_theta')}
  out['rope_parameters'] = dict(zip(_KINDS, (window, full), strict=True))


def _with_one_rope(
  family: families.Family, fields: dict[str, Any]
) -> dict[str, Any]:
  """Returns fields with the form of rope of layers without a window.

  That of the others is a base alone.
  """
  key = 'rope_parameters'
  forms = fields.get(key)
  if not family.rope_by_kind or forms is None:
    return fields
  fine = isinstance(forms, Mapping) and {*forms} == {*_KINDS}
  fine = fine and all(isinstance(form, Mapping) for form in forms.values())
  require(fine, key, f'an object for each of {_KINDS}', forms)
  window, full = (dict(forms.get(kind) or {}) for kind in _KINDS)
  fine = window.pop('rope_type', 'default') == 'default'
  theta = window.pop('rope_theta', family.defaults[_WINDOW_THETA])
  expected = "rope_type 'default' and rope_theta alone"
  require(fine and not window, f'{key}.{_KINDS[0]}', expected, forms[_KINDS[0]])
  return fields | {key: full, _WINDOW_THETA: theta}


def _with_own_sizes(
  family: families.Family, fields: dict[str, Any]
) -> dict[str, Any]:
  """Returns fields with sizes of layers without a window, if listed by layer.

  As transformers 5.24 writes them, in place of a key for all such layers.
  """
  key = 'per_layer_config'
  by_layer = fields.get(key)
  if not family.rope_by_kind or by_layer is None:
    return fields
  kinds = fields.get('layer_types') or ()
  full = {str(i) for i, kind in enumerate(kinds) if kind == _KINDS[1]}
  sizes = [*by_layer.values()] if isinstance(by_layer, Mapping) else []
  first = sizes[0] if sizes and isinstance(sizes[0], Mapping) else {'': 0}
  keys = {*map(str, by_layer)} if sizes else set()
  fine = bool(sizes) and keys == full and sizes == [first] * len(sizes)
  fine = fine and {*first} <= {*_OWN_SIZES}
  names = [*_OWN_SIZES]
  expected = f'the same {names} for each layer of {_KINDS[1]!r}'
  require(fine, key, expected, str(by_layer)[:60])
  heads = first.get('num_key_value_heads')
  fine = heads is None or fields.get('attention_k_eq_v') is True
  require(
    fine, f'{key}.num_key_value_heads', 'none without keys as values', heads
  )
  own = {'head_dim': _value(family, 'head_dim', fields), **first}
  return fields | {_OWN_SIZES[name]: value for name, value in own.items()}


def _with_rope(
  family: families.Family, fields: Mapping[str, Any]
) -> dict[str, Any]:
  """Returns fields with `rope_theta` and `rope_scaling`.

  A file may have one, or both of transformers' forms if they mean the same.
  """
  out = {name: value for name, value in fields.items() if name not in _ROPE[1:]}
  forms = {name: fields.get(name) for name in _ROPE[1:]}
  stated_forms = [name for name, form in forms.items() if form is not None]
  if not stated_forms and (default := family.defaults['rope_scaling']):
    stated_forms, forms = ['rope_scaling'], {'rope_scaling': default}
  read = [_rope(family, name, forms[name], out) for name in stated_forms]
  for name, rope in zip(stated_forms, read, strict=True):
    if rope != read[0]:
      raise ValueError(
        f'{name}: expected {stated_forms[0]}={read[0]}, got {rope}'
      )
  return out | (read[0] if read else {})


def _rope(
  family: families.Family, key: str, value: Any, fields: Mapping[str, Any]
) -> dict[str, Any]:
  """Returns the fields that one form of RoPE states, or the file beside it."""
  require(isinstance(value, Mapping), key, 'an object', value)
  numbers = {name: v for name, v in value.items() if v is not None}
  kind_names = [name for name in ('rope_type', 'type') if name in numbers]
  kinds = {str(numbers.pop(name)) for name in kind_names} or {'default'}
  kind_choices = ['default', *rope_scaling.KINDS]
  fine = len(kinds) == 1 and kinds <= {*kind_choices}
  require(fine, key, f'a type of {kind_choices}', sorted(kinds))
  (kind,) = kinds
  numbers = {n: v for n, v in numbers.items() if n not in family.rope_unused}
  beside = [name for name in _BESIDE if name in family.defaults]
  out = {name: _beside(family, key, name, numbers, fields) for name in beside}
  required, optional = rope_scaling.KINDS.get(kind, ((), ()))
  if not family.rope_alpha:
    optional = tuple(name for name in optional if name != 'alpha')
  if unknown := sorted(set(numbers) - {*required, *optional}):
    raise ValueError(
      f'{key}: expected of the type {kind!r} no key but '
      f'{[*beside, *required, *optional]}, got {unknown[0]!r}'
    )
  if kind == 'default':
    return out | {'rope_scaling': None}
  longest = _value(family, 'max_position_embeddings', fields)
  numbers.setdefault(rope_scaling.CONTEXT, longest)
  if kind == 'longrope' and rope_scaling.CONTEXT in numbers:
    numbers.setdefault(
      'factor', max(1.0, longest / numbers[rope_scaling.CONTEXT])
    )
  if kind == 'proportional':
    numbers.setdefault('factor', 1.0)
  for name in required:
    if name not in numbers:
      raise ValueError(f'{key}.{name}: expected a number, got none')
  types = rope_scaling.TYPES
  numbers = {
    n: _typed(f'{key}.{n}', types.get(n, 0.0), v) for n, v in numbers.items()
  }
  scaling = rope_scaling.RopeScaling(**numbers, kind=kind)
  rope_scaling.check(key, scaling, _pairs(family, {**fields, **out}))
  return out | {'rope_scaling': scaling}


def _beside(
  family: families.Family,
  key: str,
  name: str,
  numbers: dict[str, Any],
  fields: Mapping[str, Any],
) -> float:
  """Takes a number out of one form; the file's own, if any, must equal it."""
  outer = _value(family, name, fields)
  value = numbers.pop(name, outer)
  if name in fields and value != outer:
    raise ValueError(f'{key}.{name}: expected {name}={outer}, got {value!r}')
  return _typed(f'{key}.{name}', 0.0, value)


def _pairs(family: families.Family, fields: Mapping[str, Any]) -> int:
  """Returns the pairs of a head that rotate."""
  if family.attention == 'mla':
    return _value(family, 'qk_rope_head_dim', fields) // 2
  width = _value(family, 'head_dim', fields) or (
    _value(family, 'hidden_size', fields)
    // _value(family, 'num_attention_heads', fields)
  )
  return int(width * fields.get('partial_rotary_factor', 1.0)) // 2
