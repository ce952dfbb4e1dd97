"""Collectives on a fabric of two levels, by hand."""

import dataclasses

import pytest

from hpmoe.backend_ascend.simulator.machines import machine as machine_lib
from hpmoe.backend_ascend.simulator.plan import collectives


@pytest.fixture(name='a2')
def _a2():
  """Nodes of eight: 100 GB/s and 1 us inside of one, 10 GB/s and 10 us out."""
  return machine_lib.load('ascend_a2').with_figures(
    mesh_link=100e9,
    rdma_link=10e9,
    node_latency=1e-6,
    far_latency=10e-6,
    collective=1.0,
  )


@pytest.mark.parametrize(
  'size, ranks, stride, seconds',
  [
    # Inside of a node: 7/8 of 800 MB at 100 GB/s, seven steps.
    (800e6, 8, 1, 7e-3 + 7e-6),
    # Four nodes: each rank's share of 25 MB to three others at 10 GB/s, then
    # 7/8 of 800 MB inside of each.
    (800e6, 32, 1, 75e6 / 10e9 + 30e-6 + 700e6 / 100e9 + 7e-6),
    # Four ranks, one on each node, have far links only: 3/4 of 80 MB.
    (80e6, 4, 8, 60e6 / 10e9 + 3 * 10e-6),
    (1e9, 1, 1, 0),
  ],
)
def test_all_gather_on_two_levels(a2, size, ranks, stride, seconds):
  seconds_taken = collectives.all_gather(a2, size, ranks, stride)
  assert seconds_taken == pytest.approx(seconds)


def test_send(a2):
  assert collectives.send(a2, 1e6, 1) == pytest.approx(1e-5 + 1e-6)
  assert collectives.send(a2, 1e6, 8) == pytest.approx(1e-4 + 1e-5)


def test_levels_that_share_a_link_add_up_on_it():
  # Given dies of which two are a package, and nodes of 16 on the same links as
  # what is farther: 62 of 64 shares leave the package.
  a3 = machine_lib.load('ascend_a3')
  traffic = collectives.on_links(a3, collectives.shares(a3, 64), 64)
  assert traffic['egress'] == traffic['ingress'] == pytest.approx(62 / 64)


@pytest.mark.parametrize('name', ['ascend_a2', 'ascend_a3', 'hopper'])
@pytest.mark.parametrize('ranks', [1, 2, 8, 24, 64])
@pytest.mark.parametrize('stride', [1, 2, 16])
def test_shares_add_up(name, ranks, stride):
  machine = machine_lib.load(name)
  total = sum(collectives.shares(machine, ranks, stride))
  assert total + 1 / ranks == pytest.approx(1)


def test_a_link_that_ranks_share_is_divided(a2):
  # Given one adapter for the eight ranks of a node, when they all send, then
  # each has an eighth.
  classes = dict(a2.fabric.classes)
  for name in ('rdma_out', 'rdma_in'):
    classes[name] = dataclasses.replace(classes[name], owner='node')
  shared = dataclasses.replace(
    a2, fabric=dataclasses.replace(a2.fabric, classes=classes)
  )
  assert collectives.send(shared, 8e6, 8) == pytest.approx(
    8 * 8e6 / 10e9 + 10e-6
  )


def test_a_fabric_that_ends_is_named(a2):
  fabric = dataclasses.replace(a2.fabric, routes=a2.fabric.routes[:1])
  node = dataclasses.replace(a2, fabric=fabric)
  with pytest.raises(ValueError, match='machine: expected a fabric of 32'):
    collectives.all_gather(node, 1.0, 32)
