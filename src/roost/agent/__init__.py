"""The agent: runs on each node, carries out its assignment, and reports what happened."""

import os

# gRPC reads this once, when it is imported. It would write a line to stderr for every handshake that fails,
# and any process that can reach the port can make that happen.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
