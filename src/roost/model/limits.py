"""Every limit of the model in one place, each with the reason for its size."""

NAME_LENGTH_MAX = 63  # a DNS label: names become host names and file names
LABELS_MAX = 64  # per node or workload; more is data, not labels
TEXT_LENGTH_MAX = 256  # a label's value, a zone, a cause: one line
COUNT_JOB_MAX = 1_000_000  # an array is one record until it runs; ids and rows stay small up to here
COUNT_SERVICE_MAX = 10_000  # replicas are all live at once
STEPS_MAX = 100
ARGUMENTS_MAX = 1_000
COMMAND_BYTES_MAX = 128 * 1024  # the kernel's own limit for one argument (MAX_ARG_STRLEN)
ENV_MAX = 500
DOCUMENT_BYTES_MAX = 512 * 1024  # one workload as stored; keeps a batch of 1,000 below the agents' frame limit
RESOURCE_KINDS_MAX = 32
CPU_MILLI_MAX = 1_000_000_000  # a million cores
BYTES_MAX = 1 << 53  # 8 PiB; exact in JSON numbers too
COUNTABLE_MAX = 1_000_000_000
DURATION_MS_MAX = 10 * 366 * 86_400_000  # ten years
RETRIES_MAX = 1_000
RULES_MAX = 32
RULE_LENGTH_MAX = 1_000
POOLS_MAX = 64
STORY_MAX = 50  # transitions kept per object
CANDIDATES_MAX = 5  # runners-up kept with a decision: enough to see why, small enough to store a million times
EXIT_CODE_MAX = 255

DEFAULT_PROJECT = "default"
DEFAULT_POOL = "default"
DEFAULT_PRIORITY = 50
DEFAULT_GRACE_MS = 10_000
DEFAULT_KEEP_MS = 7 * 86_400_000
DEFAULT_RETRIES = 3
