"""What a cache of keys and values holds, and how much of it."""

from hpmoe.models import config as config_lib


def shapes(config: config_lib.ModelConfig) -> dict[str, tuple[int, ...]]:
  """Returns the shape of what one layer keeps of one token, by name."""
  if config.family.attention == 'mla':
    return {
      'compressed': (config.kv_lora_rank,),
      'rotated': (config.qk_rope_head_dim,),
    }
  shape = (config.num_key_value_heads, config.head_dim)
  return {'keys': shape, 'values': shape}


def check(held: int, count: int, capacity: int) -> None:
  """Refuses `count` more tokens than there is room for beside those held.

  Raises:
    ValueError: there is no room; says how much there is.
  """
  if held + count > capacity:
    raise ValueError(
      f'cache: expected room for {held + count} tokens, got {capacity}'
    )
