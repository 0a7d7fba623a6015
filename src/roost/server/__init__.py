"""The server: the one loop that decides, and the doors through which events come and effects go."""

import os

# gRPC reads this once, when it is imported. It would write a line to stderr for every handshake that fails, and anybody
# who can reach the port can make that happen.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
