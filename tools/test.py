"""Run all tests and count them: first what may run side by side, then what must be alone, one total at the end."""

import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

# Two even on one core: tests wait more than they work, and a suite that only passes alone is a defect.
WORKERS_MIN = 2
ALONE = "serial"
OK, NOTHING_COLLECTED = 0, 5


def main(message: list[str]) -> int:
    """The exit code for make: 0 when something ran and nothing failed."""
    workers = max(WORKERS_MIN, len(os.sched_getaffinity(0)))
    stages = {
        f"{workers} at a time": ["-n", str(workers), "--dist", "worksteal", "-m", f"not ({ALONE})"],
        "one at a time": ["-n", "0", "-m", ALONE],
    }
    total: Counter[str] = Counter()
    codes = []
    for name, options in stages.items():
        print(f"test: {name}", flush=True)
        code, counts = run_stage([*options, *message])
        codes.append(code)
        total += counts
    print(f"test: total: {total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped", flush=True)
    broken = [code for code in codes if code not in (OK, NOTHING_COLLECTED)]
    if broken:
        return broken[0]
    return OK if total.total() else NOTHING_COLLECTED


def run_stage(options: list[str]) -> tuple[int, Counter[str]]:
    """One pytest process; its exit code and its counts."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "junit.xml"
        command = [sys.executable, "-m", "pytest", "-q", f"--junit-xml={report}", *options]
        code = subprocess.run(command).returncode
        return code, count(report)


def count(report: Path) -> Counter[str]:
    """Counts out of pytest's own report. A crash before the report counts as one failure."""
    if not report.exists():
        return Counter(failed=1)
    counts: Counter[str] = Counter()
    for suite in ElementTree.parse(report).getroot().iter("testsuite"):
        failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        skipped = int(suite.get("skipped", 0))
        counts.update(passed=int(suite.get("tests", 0)) - failed - skipped, failed=failed, skipped=skipped)
    return counts


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
