"""Memory, times and shares of a small model by hand."""

import dataclasses

import pytest

from hpmoe.backend_ascend.simulator.machines import machine as machine_lib
from hpmoe.backend_ascend.simulator.plan import collectives
from hpmoe.backend_ascend.simulator.plan import decoder_sizes
from hpmoe.backend_ascend.simulator.plan import decoder_sizes_test
from hpmoe.backend_ascend.simulator.plan import device_memory as memory_lib
from hpmoe.backend_ascend.simulator.plan import moe_layer
from hpmoe.backend_ascend.simulator.plan import operators
from hpmoe.backend_ascend.simulator.plan import plan as plan_lib
from hpmoe.backend_ascend.simulator.plan import published
from hpmoe.backend_ascend.simulator.plan import step as step_lib
from hpmoe.backend_ascend.simulator.plan import unit_costs

Plan = plan_lib.Plan
TINY = decoder_sizes_test.TINY
A3 = machine_lib.load('ascend_a3')


def _setting(model=TINY, devices=1, **changes) -> plan_lib.Setting:
  return plan_lib.Setting(
    model, A3, devices, **dict(sequence=4, global_batch=8) | changes
  )


def _costs(setting) -> unit_costs.Costs:
  return unit_costs.Costs(setting, moe_layer.Roofline(setting.machine))


def _unit_memory(plan, setting=None) -> dict[str, unit_costs.UnitMemory]:
  return _costs(setting or _setting()).memory(plan)


def _memories(plan):
  setting = _setting(devices=plan.devices)
  return memory_lib.memories(setting, plan, _unit_memory(plan, setting))


class TestMemory:
  """Four tokens of `TINY` in bfloat16."""

  # Norm, queries with keys and values, what attention gives, residual.
  ATTENTION = 64 + 2 * 4 * (8 + 4 + 4) + 64 + 64
  DENSE = ATTENTION + 64 + 2 * 4 * 32 + 2 * 4 * 16 + 64
  # Norm, shared gate-up and SwiGLU, then eight rows: x, gate-up, SwiGLU, y.
  MOE = ATTENTION + 64 + 2 * 4 * 12 + 2 * 8 * (8 + 8 + 4 + 8) + 64
  HEAD = 64 + 4 * 4 * 32

  def test_nothing_is_recomputed(self):
    unit_memory = _unit_memory(Plan())
    assert unit_memory['dense'].saved_bytes == self.DENSE
    assert unit_memory['moe'].saved_bytes == self.MOE
    assert unit_memory['head'].saved_bytes == self.HEAD
    (memory,) = _memories(Plan())
    assert memory.activations == self.DENSE + 2 * self.MOE + self.HEAD
    count = TINY.count()
    assert memory.weights == 2 * count and memory.gradients == 4 * count
    assert memory.optimizer == 12 * count

  def test_norms_and_activations_are_recomputed(self):
    unit_memory = _unit_memory(Plan(recompute='cheap'))
    assert unit_memory['dense'].saved_bytes == self.DENSE - 2 * 64 - 2 * 4 * 16
    assert unit_memory['dense'].working == 2 * 64 + 2 * 4 * 16
    assert (
      unit_memory['moe'].saved_bytes
      == self.MOE - 2 * 64 - 2 * 4 * 4 - 2 * 8 * 4
    )

  def test_layers_are_recomputed(self):
    unit_memory = _unit_memory(Plan(recompute='layer'))
    assert (
      unit_memory['moe'].saved_bytes == 64
      and unit_memory['moe'].working == self.MOE
    )

  def test_micro_batches_in_flight_add_up(self):
    # Two stages of 1F1B, chunks (embedding, dense) and (moe, moe, head): the
    # first holds two micro-batches.
    assert plan_lib.chunks(TINY, 2, 1, 0) == (
      ('embedding', 'dense'),
      ('moe', 'moe', 'head'),
    )
    first, second = _memories(Plan(pp=2))
    assert first.activations == 2 * self.DENSE
    assert second.activations == 2 * self.MOE + self.HEAD

  def test_data_parallel_ranks_share_the_optimizer(self):
    # With two experts a rank, whose states nobody else has.
    (memory,) = _memories(Plan(dp=2, ep=2))
    experts = 2 * 4 * 96
    shared = TINY.count() - experts
    assert memory.weights == 2 * (shared + experts / 2)
    assert memory.optimizer == 12 * (shared + experts) / 2

  def test_what_is_offloaded_is_not_in_the_device(self):
    (memory,) = _memories(Plan(offload=True))
    # Two units on their way; the host has all.
    assert memory.activations == 2 * self.MOE
    assert memory.host == self.DENSE + 2 * self.MOE + self.HEAD


class TestConservation:
  @pytest.mark.parametrize('layers', [61, 66, 5])
  @pytest.mark.parametrize('pad', [0, 1, 3])
  @pytest.mark.parametrize('pp, vpp', [(1, 1), (4, 1), (16, 2), (3, 7)])
  def test_every_layer_is_in_one_stage(self, layers, pad, pp, vpp):
    model = dataclasses.replace(published.PANGU_ULTRA_MOE, layers=layers)
    chunks = plan_lib.chunks(model, pp, vpp, pad)
    assert len(chunks) == pp * vpp
    assert sum(chunks, ()) == model.units()
    counts = plan_lib.counts(model, pp, vpp, pad).sum((0, 1))
    assert [*counts] == [model.units().count(k) for k in decoder_sizes.KINDS]

  @pytest.mark.parametrize('tp, ep', [(1, 1), (1, 32), (8, 4)])
  def test_shares_add_up_to_the_model(self, tp, ep):
    model = published.PANGU_ULTRA_MOE
    setting = _setting(model, tp * ep * 2, sequence=8192, global_batch=2 * ep)
    plan = Plan(tp=tp, pp=2, ep=ep, dp=ep)
    unit_memory = _unit_memory(plan, setting)
    shared, experts = memory_lib.parameters(setting, plan, unit_memory)
    of_experts = 59 * 256 * model.parameters()['expert']  # MTP has some, too
    assert experts.sum() * tp * ep == pytest.approx(of_experts)
    if tp == 1:
      part = model.parameters()
      mtp = part['mtp'] + part['attention'] + part['norms'] + part['shared']
      whole = model.count() + mtp + part['router'] + 256 * part['expert']
      assert shared.sum() + of_experts == pytest.approx(whole)

  def test_a_step_has_its_parts(self):
    setting = _setting(devices=4, overlap=frozenset())
    plan = Plan(tp=2, pp=2, dp=1)
    costs = _costs(setting)
    cost = step_lib.cost(costs, plan)
    assert cost.seconds == pytest.approx(
      cost.pipeline + cost.gradients + cost.optimizer
    )
    assert cost.tokens_per_second * cost.seconds * 4 == pytest.approx(8 * 4)
    parts = step_lib.parts(costs, cost)
    assert sum(parts.values()) == pytest.approx(cost.seconds)
    assert parts['waits'] / cost.pipeline == pytest.approx(cost.bubble)


class TestTimes:
  def test_a_product_by_hand(self):
    # 16384 x 7680 x 1024 at 0.7653 of 353.9 TFLOPS; its bytes take less.
    product = operators._product('p', 16384, 7680, 1024)
    rate = 24 * 14.7456e12 * A3['operator_efficiency']
    assert product.seconds(A3) == pytest.approx(
      2 * 16384 * 7680 * 1024 / rate + A3['launch']
    )
    assert product.back(A3) == pytest.approx(
      4 * 16384 * 7680 * 1024 / rate + 2 * A3['launch']
    )
    assert product.seconds(A3, 'int8') < product.seconds(A3)

  def test_a_norm_and_collectives_by_hand(self):
    share = operators.Share(published.PANGU_ULTRA_MOE, 8192, 2, 8, 4)
    norm = operators._norm(share, 'norm')
    assert norm.bytes_moved == 2 * 2 * 2048 * 7680
    assert norm.seconds(A3) == pytest.approx(
      norm.bytes_moved / A3['hbm'] + A3['launch']
    )
    # Latents are gathered and rows scattered.
    unit = share.unit('moe')
    assert unit.gathered == (2 * 16384 * (1536 + 512 + 64),)
    assert unit.scattered == (2 * 16384 * 7680,)
    assert unit.routed.ranks == 32 and unit.routed.tokens == 2048

  def test_gradients_by_hand(self):
    # Float32 sums and bfloat16 weights over two ranks, shared ones and experts,
    # and nothing hides them.
    setting = _setting(devices=2, overlap=frozenset())
    cost = step_lib.cost(_costs(setting), Plan(dp=2))
    rate = collectives.link_rate(A3, 'die_out')
    assert cost.gradients == pytest.approx(
      6 * TINY.count() / 2 / rate + 2 * A3['die_latency']
    )
    assert cost.optimizer == pytest.approx(
      (2 * 12 + 6) * TINY.count() / 2 / A3['hbm']
    )

  @pytest.mark.parametrize(
    'overlap, left',
    [
      ((), (1.0, 8.0)),
      (('tensor',), (1.0, 5.0)),  # six of sixteen hide
      (('exchange',), (0.0, 8.0)),
      # Two of six hide rows, and four are left for TP's sixteen.
      (('exchange', 'tensor'), (0.0, 6.0)),
    ],
  )
  def test_what_is_hidden_hides_nothing_else(self, overlap, left):
    passes = tuple(
      unit_costs.Pass(compute=compute, exchange=1.0, tensor=8.0)
      for compute in (2.0, 4.0)
    )
    exposed_passes = unit_costs._expose(passes, frozenset(overlap))
    assert [pass_.compute for pass_ in exposed_passes] == [2.0, 4.0]
    assert [(p.exchange, p.tensor) for p in exposed_passes] == [
      pytest.approx(left)
    ] * 2


class TestRefusals:
  @pytest.mark.parametrize(
    'plan, text',
    [
      (Plan(tp=3, dp=2), 'tp: expected a divisor of heads=2, got 3'),
      (Plan(dp=2), 'dp: expected TP x PP x DP = 6, got 2'),
      (Plan(dp=6, ep=4), 'ep: expected a divisor of DP = 6, got 4'),
      (Plan(dp=6, ep=3), 'ep: expected TP x EP to divide experts=4'),
      (Plan(dp=6, micro_batch=3), 'micro_batch: expected DP x micro-batch'),
      (Plan(pp=6, vpp=2), 'vpp: expected at most 5 chunks, got 2'),
      (Plan(dp=6, recompute='all'), "recompute: expected one of ('none',"),
    ],
  )
  def test_what_does_not_divide_is_named(self, plan, text):
    setting = _setting(devices=6, global_batch=24)
    assert setting.refusal(plan).startswith(text)

  def test_a_machine_without_memory_or_a_host_link(self):
    with pytest.raises(ValueError, match='machine: expected one that says its'):
      plan_lib.Setting(TINY, machine_lib.load('host'), 8)
    a2 = machine_lib.load('ascend_a2')
    refusal = dataclasses.replace(_setting(), machine=a2).refusal
    message = refusal(Plan(offload=True))
    assert message.startswith('offload: expected a machine that says')
