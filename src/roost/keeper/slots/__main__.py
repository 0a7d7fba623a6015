"""`python -I -S roost/keeper/slots/__main__.py FD`: the process that makes slots. `--probe`: what is possible here."""

import os
import socket
import sys


def main(argument: str) -> int:
    source = os.path.abspath(__file__)
    for _ in range(4):
        source = os.path.dirname(source)
    sys.path.append(source)
    if argument == "--probe":
        return int(__import__("roost.keeper.slots.probe", fromlist=["main"]).main())
    zygote = __import__("roost.keeper.slots.zygote", fromlist=["serve"])
    with socket.socket(fileno=int(argument)) as link:
        zygote.serve(link)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
