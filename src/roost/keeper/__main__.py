"""Starts the keeper by path, without site-packages: `python -I -S roost/keeper/__main__.py --dir DIR -- AGENT_ARGV...`.

Only this file is compiled anew at each start, so it holds nothing else; the keeper itself is in loop.py.
"""

import os
import sys


def main() -> int:
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    loop = __import__("roost.keeper.loop", fromlist=["main"])  # by name: the path has to be there first
    return int(loop.main(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
