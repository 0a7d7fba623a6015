"""Starts the keeper by path, without site-packages: `python -I -S keeper.py --dir DIR -- AGENT_ARGV...`.

Only this file is compiled anew at each start, so it holds nothing else; the keeper itself is in keeper_loop.
"""

import os
import sys


def main() -> int:
    """Find the package this file belongs to, and begin."""
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    from roost.agent.keeper_loop import main as run  # noqa: PLC0415  (the path has to be there first)

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
