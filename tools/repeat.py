"""Run tests many times while other processes keep the cores busy, and print the counts: `make repeat`.

TIMES runs, LOOPS busy loops, ARGS for pytest. Tests that depend on time, threads or processes show here what they
assume about the machine.
"""

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from tools.test import environment

BUSY = "while True: pass"
LOGS = Path(".repeat")  # output of the runs that failed


def main(arguments: list[str]) -> int:
    """The exit code for make: 0 when every run passed."""
    times, loops = int(os.environ.get("TIMES", "20")), int(os.environ.get("LOOPS", "2"))
    LOGS.mkdir(exist_ok=True)
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(loops)]
    counts: Counter[str] = Counter()
    try:
        for number in range(1, times + 1):
            began = time.monotonic()
            failed = run(number, arguments)
            counts.update(failed or ["passed"])
            result = f"failed: {', '.join(failed)}" if failed else "passed"
            print(f"repeat: {number} of {times}, {time.monotonic() - began:.0f} s: {result}", flush=True)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    print(f"repeat: {times} runs under {loops} busy loops: {counts.pop('passed', 0)} passed")
    for name, count in counts.most_common():
        print(f"repeat: {count} x {name}")
    return int(bool(counts))


def run(number: int, arguments: list[str]) -> list[str]:
    """The tests that failed in one run; its output is kept only then."""
    log = LOGS / f"{number}.log"
    with log.open("wb") as output:
        command = [sys.executable, "-m", "pytest", "-q", "-n", "0", *arguments]
        code = subprocess.run(command, env=environment(), stdout=output, stderr=output).returncode
    text = log.read_text(errors="replace")
    if code == 0:
        log.unlink()
        return []
    return [line.split()[1] for line in text.splitlines() if line.startswith(("FAILED ", "ERROR "))] or [f"exit {code}"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
