"""Layers of tests, by the letters of the notation."""

from hpmoe.reference.contract import config as config_lib


def make_config(
  *, r, t, e, k, d, f, n: int | None = None, s: int = 0, **parts: bool
) -> config_lib.MoEConfig:
  """Returns the layer of R, T, E, K, D, F and perhaps N, S and `parts`."""
  return config_lib.MoEConfig(
    num_ranks=r,
    num_tokens=t,
    num_experts=e,
    top_k=k,
    d_model=d,
    d_ff=f,
    capacity=n,
    d_shared=s,
    **parts,
  )
