"""Outputs in messages: how many files were kept, and which were not."""

import sys
from collections.abc import Iterable

from roost.cli.common.output import echo_err
from roost.cli.common.targets import Target
from roost.model.spec.units import show_size
from roost.schema.work import GapView, OutputsSummary

GAPS_SHOWN_MAX = 5  # `roost outputs` has the rest


def files_text(files: int, size: int) -> str:
    return f"{files:,} file{'s' * (files != 1)} ({show_size(size)})"


def gap_text(gap: GapView) -> str:
    return f"{gap.path or 'all outputs'}: {gap.message}"


def gap_texts(outputs: OutputsSummary) -> list[str]:
    """What was not kept, and how many more."""
    more = outputs.gaps_count - len(outputs.gaps)
    return [*map(gap_text, outputs.gaps), *([f"and {more:,} more"] if more else [])]


def report_kept(target: Target, outputs: Iterable[OutputsSummary | None]) -> None:
    """After a run that was followed. What was kept is a hint for people; what was not is always reported."""
    found = [item for item in outputs if item is not None]
    files = sum(item.files for item in found)
    if files and sys.stderr.isatty():
        echo_err(f"{files_text(files, sum(item.size for item in found))} kept: `roost get {target}`")
    gaps = [gap_text(gap) for item in found for gap in item.gaps]
    for text in list(dict.fromkeys(gaps))[:GAPS_SHOWN_MAX]:
        echo_err(f"not kept: {text}")
