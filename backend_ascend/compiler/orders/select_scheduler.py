"""The scheduler of each policy of an order."""

from hpmoe.backend_ascend.compiler.orders import orders
from hpmoe.backend_ascend.compiler.orders import placement
from hpmoe.reference.contract import granularity


def select_scheduler(options: granularity.Options) -> placement.Scheduler:
  """Returns the scheduler that options ask for."""
  if options.order.policy == 'list':
    # It reads machines, which other policies do without.
    from hpmoe.backend_ascend.compiler.orders import list_order

    return list_order.place
  return orders.in_order
