"""Run all tests and count them: first those that share the machine, then those that measure time; one total."""

import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

# Half of the time of a test is waiting for other processes and for leases: one test per core leaves the core idle.
WORKERS_PER_CORE = 2
WORKERS_MAX = 10  # on large machines the longest test decides, and each worker takes a second to start
SERIAL = "serial"
OK, NOTHING_COLLECTED = 0, 5
SLOWEST_SHOWN = 10


def main(arguments: list[str]) -> int:
    """The exit code for make: 0 when something ran and nothing failed."""
    cores = len(os.sched_getaffinity(0))
    crowd, few = min(WORKERS_PER_CORE * cores, WORKERS_MAX), min(cores, WORKERS_MAX)
    stages = {
        f"{crowd} at a time": ["-n", str(crowd), "--dist", "worksteal", "-m", f"not ({SERIAL})"],
        # A core each, because they assert bounds of time. By file, because the tests of one may share a server.
        f"{few} at a time": ["-n", str(few), "--dist", "loadfile", "-m", SERIAL],
    }
    total: Counter[str] = Counter()
    codes = []
    for name, options in stages.items():
        print(f"test: {name}", flush=True)
        code, counts, slowest = run_stage([*options, *arguments])
        for seconds, test in slowest:
            print(f"test: slow: {seconds:.0f} s {test}", flush=True)
        codes.append(code)
        total += counts
    print(f"test: total: {total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped", flush=True)
    broken = [code for code in codes if code not in (OK, NOTHING_COLLECTED)]
    if broken:
        return broken[0]
    return OK if total.total() else NOTHING_COLLECTED


def run_stage(options: list[str]) -> tuple[int, Counter[str], list[tuple[float, str]]]:
    """One pytest process; its exit code, its counts and its slowest tests. It lists why tests were skipped."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "junit.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-rfEs", f"--junit-xml={report}", *options]
        code = subprocess.run(command, env=environment()).returncode
        return code, count(report), slowest_of(report)


def environment() -> dict[str, str]:
    """Bytecode is written even where that is switched off: rewriting all assertions takes each worker ten seconds."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


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


def slowest_of(report: Path) -> list[tuple[float, str]]:
    """The tests where the time goes, in seconds."""
    if not report.exists():
        return []
    cases = ElementTree.parse(report).getroot().iter("testcase")
    times = [(float(case.get("time", 0)), f"{case.get('classname')}::{case.get('name')}") for case in cases]
    return sorted(times, reverse=True)[:SLOWEST_SHOWN]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
