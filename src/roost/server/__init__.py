"""The server: the one loop that decides, and the doors through which events come and effects go."""

import os

# gRPC reads this once, when it is imported. It would write a line to stderr for every handshake that fails, and every
# client that can reach the port can make that happen.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
# And this: the server forks to answer questions (engine/questions.py). gRPC's fork handlers abort the child (SIGABRT)
# while calls are in progress, so a value from the environment must not turn them on.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
