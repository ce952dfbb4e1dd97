"""A machine on which messages take times that a head can add up."""

from hpmoe.backend_ascend.simulator.machines import machine as machine_lib

# A flit a second; a packet of four flits of payload behind one of header, and
# a request for each.
HAND = dict(
  nvlink=1.0,
  whole=1.0,
  flit=1.0,
  packet=4.0,
  asked_bytes=4.0,
  header_flits=1.0,
  target_ids=0.0,
  hop_latency=10.0,
  virtual_channels=1.0,
  merge_table=1e9,
  merge_timeout=0.0,
  rank_order=0.0,
)


def machine(**figures: float) -> machine_lib.Machine:
  """Returns the machine by hand, with other figures."""
  return machine_lib.load('cais').with_figures(**HAND | figures)
