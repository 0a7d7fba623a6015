"""Usage: what attempts used."""

import msgspec

from roost.model.protocol import Report
from roost.model.records.instance import Instance
from roost.model.records.usage import RunUsage


def usage_of(instance: Instance, report: Report) -> RunUsage | None:
    """What an attempt used whose end is reported; None: it never began."""
    if not instance.started_ms and report.usage is None:
        return None
    wall_ms = max(0, report.started_ago_ms - report.ended_ago_ms)
    return msgspec.structs.replace(report.usage or RunUsage(), wall_ms=wall_ms)
