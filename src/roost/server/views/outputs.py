"""How outputs look from outside: a summary with their instance; the files themselves are read one by one."""

from roost.model.records.files import FileSet, OutputGap, Outputs
from roost.schema.file_text import GAP_TEXTS
from roost.schema.work import GapView, OutputsSummary

GAPS_SHOWN = 10  # with an instance: a page of 1,000 stays readable; the outputs on their own have all


def outputs_summary(outputs: Outputs | None) -> OutputsSummary | None:
    if outputs is None:
        return None
    files = outputs.files or FileSet("")
    gaps = [gap_view(gap) for gap in outputs.gaps[:GAPS_SHOWN]]
    count = len(outputs.gaps) + outputs.more_gaps
    return OutputsSummary(digest=files.digest, files=files.files, size=files.size, gaps=gaps, gaps_count=count)


def gap_view(gap: OutputGap) -> GapView:
    return GapView(gap.path, gap.problem, gap.required, GAP_TEXTS[gap.problem])
