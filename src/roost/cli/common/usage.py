"""How usage looks in a shell."""

from roost.model.spec.units import show_duration, show_size
from roost.schema.work import RunUsageView


def run_usage_text(usage: RunUsageView | None) -> str:
    """`1.2s of cpu, at most 64MiB of memory, 4KiB read, 0B written; io not measured on this node`."""
    if usage is None:
        return ""
    parts: list[str] = []
    if usage.cpu_ms is not None:
        parts.append(f"{show_duration(usage.cpu_ms)} of cpu")
    if usage.memory_max is not None:
        bound = "less than " if usage.memory_is_bound else ""
        parts.append(f"{bound}{show_size(usage.memory_max)} of memory")
    if usage.io_read is not None and usage.io_written is not None:
        parts.append(f"{show_size(usage.io_read)} read, {show_size(usage.io_written)} written")
    lacking = f"{', '.join(usage.unmeasured)} not measured on this node" if usage.unmeasured else ""
    return "; ".join(filter(None, (", ".join(parts), lacking)))
