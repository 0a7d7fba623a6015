"""`python -I -S roost/keeper/commands/__main__.py FD`: one command inside a run; FD is the link to its agent."""

import os
import socket
import sys


def main(argument: str) -> int:
    source = os.path.abspath(__file__)
    for _ in range(4):
        source = os.path.dirname(source)
    sys.path.append(source)
    supervisor = __import__("roost.keeper.commands.supervisor", fromlist=["serve"])
    with socket.socket(fileno=int(argument)) as link:
        supervisor.serve(link)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
