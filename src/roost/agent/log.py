"""The agent's log for the operator of its machine: few lines, one per change."""

import sys
import time


def log(message: str) -> None:
    """One line to stderr, which the keeper has put into the agent's log."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    print(f"{stamp} agent: {message}", file=sys.stderr, flush=True)
