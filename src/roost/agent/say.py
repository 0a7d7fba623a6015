"""What an agent tells whoever looks after its machine: few lines, one per change."""

import sys
import time


def say(words: str) -> None:
    """One line to stderr, which the keeper has put into the agent's log."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    print(f"{stamp} agent: {words}", file=sys.stderr, flush=True)
