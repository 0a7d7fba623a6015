"""Submit a job from Python, wait for it without polling, and read what it wrote.

ROOST_CONFIG=DIR/client.toml python examples/run_and_read.py
"""

import sys

from roost.client import ApiError, Client, find_config

DOCUMENT = {
    "name": "primes",
    "count": 4,
    "resources": {"cpu": "50m"},
    "command": 'for n in $(seq $((ROOST_INDEX * 10 + 2)) $((ROOST_INDEX * 10 + 11))); do factor "$n"; done',
}


def main() -> int:
    """Print the primes that the four instances find."""
    with Client(*find_config()) as client:
        try:
            workload = client.workloads.run_to_end(DOCUMENT, timeout_s=60)
        except ApiError as error:
            print(f"the server says no: {error} ({error.code})", file=sys.stderr)
            return 1
        for instance in workload.instances:
            lines = client.logs.read(instance.project, instance.name, instance.index).decode().splitlines()
            primes = [arguments[1] for line in lines if len(arguments := line.split()) == 2]
            print(f"instance {instance.index} on {instance.node}: {' '.join(primes)}")
        return 0 if workload.state == "succeeded" else 1


if __name__ == "__main__":
    sys.exit(main())
