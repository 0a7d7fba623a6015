"""Views of usage: what attempts used."""

from roost.model.records.usage import RunUsage
from roost.schema.work import RunUsageView


def run_usage_view(usage: RunUsage | None) -> RunUsageView | None:
    if usage is None:
        return None
    found = {"cpu": usage.cpu_ms, "memory": usage.memory_max, "io": usage.io_read}
    return RunUsageView(
        wall_ms=usage.wall_ms,
        cpu_ms=usage.cpu_ms,
        memory_max=usage.memory_max,
        memory_is_bound=usage.memory_is_bound,
        io_read=usage.io_read,
        io_written=usage.io_written,
        unmeasured=[name for name, amount in found.items() if amount is None],
    )
