"""How much work an event is, in units (see `Step.limit`): batches are cut by weight, not by number."""

from roost.model import events as happened

REPORT_UNITS = 5  # 45 us with the placement that follows
HELLO_UNITS = 10
SPEC_UNITS = 2  # 11 us, and as much for the commit and its readers
OTHER_UNITS = 5
HEARTBEATS_PER_UNIT = 5


def weight(event: happened.Event) -> int:
    match happened.inner(event):
        case happened.Submit(specs=specs):
            return OTHER_UNITS + SPEC_UNITS * len(specs)
        case happened.ReportsReceived(reports=reports):
            return 1 + REPORT_UNITS * len(reports)
        case happened.NodeConnected(hello=hello):
            return HELLO_UNITS + REPORT_UNITS * len(hello.runs)
        case happened.HeartbeatsReceived(heartbeats=heartbeats):
            return 1 + len(heartbeats) // HEARTBEATS_PER_UNIT
        case _:
            return OTHER_UNITS
