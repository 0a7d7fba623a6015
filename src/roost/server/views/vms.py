"""The power of virtual machines as it looks from outside."""

from roost.model.records.instance import Instance
from roost.model.states import InstanceState
from roost.schema.work import PowerView
from roost.server.views.view_of import view_of


def power_view(instance: Instance) -> PowerView | None:
    power = instance.power
    if power is None or instance.state != InstanceState.RUNNING:
        return None
    return view_of(PowerView, power, state=power.reported or power.wanted, pending=power.is_pending)
