"""Who asks, and what is set aside: projects with weights and quotas, reservations, and what pools have in common."""

import msgspec

from roost.model import limits
from roost.model.errors import Invalid
from roost.model.records.node import Facts
from roost.model.spec.names import check_name, check_text
from roost.model.spec.placement import between, taints_of
from roost.model.spec.runs.isolation import check_user
from roost.model.states import IsolationLevel, PoolStatus

WHEN_FAILED = ("move", "cancel")
INSTANCES = "instances"  # in a quota: how many may hold room at once
FILES, FILE_BYTES = "files", "file_bytes"  # in a quota: of the inputs and outputs that its workloads keep


class Project(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    """Who asks. Its quota bounds what its instances hold; what it does not name is not bounded."""

    name: str
    weight: int = 1  # of two projects that want more than there is, one of weight 2 gets twice as much
    quota: dict[str, int] = {}  # cpu in milli-cores, memory, disk and file_bytes in bytes, gpu in thousandths, others
    borrow: bool = False  # may go beyond its quota with what other projects leave of theirs
    counted: bool = False  # the quota is only looked at, not enforced
    isolation: IsolationLevel = IsolationLevel.NONE  # its processes run only on nodes that offer at least this
    run_as: tuple[str, ...] = ()  # users of nodes that its processes may have besides its own: names, or root


class Reservation(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    name: str
    project: str
    nodes: tuple[str, ...]
    start_ms: int
    end_ms: int = 0  # 0: until it is given back


class Pool(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    name: str
    strategy: str = ""  # "": the server's
    overcommit: dict[str, int] = {}  # resource -> percent of what a node has that may be promised
    labels: dict[str, str] = {}  # of its nodes, where those do not say otherwise
    taints: tuple[str, ...] = ()  # of its nodes, besides their own
    zone: str = ""  # of its nodes, where those do not say otherwise
    rack: str = ""
    region: str = ""
    projects: tuple[str, ...] = ()  # projects that may use it; empty: all
    when_failed: str = "move"  # move | cancel: what becomes of unfinished work if it fails
    fallback: str = ""  # the pool that takes what asked for this one, as long as it has failed
    fail_after_ms: int = 0  # failed after this long without a connected node; 0: only by an operator
    status: PoolStatus = PoolStatus.READY
    reason: str = ""  # why it is draining or failed
    failed_by: str = ""  # operator | silence: what was declared by silence ends when a node is back


def check_project(project: Project) -> None:
    check_name(project.name, "name")
    between(project.weight, 1, limits.SHARE_WEIGHT_MAX, "weight")
    between(len(project.quota), 0, limits.RESOURCE_KINDS_MAX, "quota", "kinds of resources")
    for name, amount in project.quota.items():
        check_name(name, "quota")
        between(amount, 0, limits.BYTES_MAX, f"quota.{name}")
    between(len(project.run_as), 0, limits.RUN_AS_MAX, "run_as", "users")
    for index, user in enumerate(project.run_as):
        check_user(user, f"run_as[{index}]")


def facts_in_pool(facts: Facts, pool: Pool) -> Facts:
    """A node with the settings of its pool, where its own are empty; taints add up."""
    return msgspec.structs.replace(
        facts,
        labels=pool.labels | facts.labels,
        taints=tuple(dict.fromkeys((*facts.taints, *pool.taints))),
        zone=facts.zone or pool.zone,
        rack=facts.rack or pool.rack,
        region=facts.region or pool.region,
    )


def check_pool(pool: Pool) -> None:
    """Refuse absurd values. The core checks strategy and fallback."""
    check_name(pool.name, "name")
    between(len(pool.labels), 0, limits.LABELS_MAX, "labels", "labels")
    for name, value in pool.labels.items():
        if not name:
            raise Invalid("labels", "a label needs a name")
        check_text(name, "labels")
        check_text(value, f"labels.{name:.80}")
    taints_of(list(pool.taints), "taints")
    for field in ("zone", "rack", "region"):
        check_text(getattr(pool, field), field)
    between(len(pool.projects), 0, limits.POOL_PROJECTS_MAX, "projects", "projects")
    for index, project in enumerate(pool.projects):
        check_name(project, f"projects[{index}]")
    if pool.when_failed not in WHEN_FAILED:
        raise Invalid("when_failed", f"this is {' or '.join(WHEN_FAILED)}, not {pool.when_failed!r:.40}")
    if pool.fallback:
        check_name(pool.fallback, "fallback")
    if pool.fallback == pool.name:
        raise Invalid("fallback", "a pool cannot stand in for itself")
    if pool.fail_after_ms:
        between(pool.fail_after_ms, limits.FAIL_AFTER_MS_MIN, limits.DURATION_MS_MAX, "fail_after", "milliseconds")
    for name, percent in pool.overcommit.items():
        if name not in ("cpu", "memory"):
            raise Invalid(f"overcommit.{name}", "only cpu and memory can be promised more than once")
        between(percent, 100, limits.OVERCOMMIT_MAX, f"overcommit.{name}", "percent")
