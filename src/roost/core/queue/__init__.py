"""The order of pending work: fair share, quotas, gangs, backfill reservations, preemption, prefill."""
