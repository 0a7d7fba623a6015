"""Views of instances whose images are on their way. Nothing of it is stored: only the leader knows, from heartbeats."""

from typing import TypeVar

import msgspec

from roost.core.state.state import State
from roost.model.records.instance import Instance
from roost.model.states import InstanceState
from roost.schema.work import InstanceDetail, InstanceView, StoryLine

V = TypeVar("V", bound=InstanceView)


def with_pull(state: State, instance: Instance, view: V) -> V:
    contact = state.liveness.get(instance.node) if instance.state == InstanceState.PLACED else None
    percent = contact.usage.pulling.get(instance.token) if contact is not None and contact.usage is not None else None
    if percent is None:
        return view
    return msgspec.structs.replace(view, pulling=percent, message=f"pulling {percent} %")


def story_with_pull(state: State, instance: Instance, detail: InstanceDetail) -> InstanceDetail:
    if detail.pulling is None:
        return detail
    line = StoryLine(state.now_ms, instance.state, detail.message, state.revision, attempt=instance.attempt)
    return msgspec.structs.replace(detail, story=[*detail.story, line])
