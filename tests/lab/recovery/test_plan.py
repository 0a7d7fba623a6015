"""The plan of recovery: it is that of its seed, and within its bounds."""

from roost_lab.recovery.jobs import LINE_BYTES, PART_LINES
from roost_lab.recovery.plan import JOBS, LOG_BYTES, OUTPUT_BYTES, SHARED, STORES, WITHIN_S, plan_round


def test_a_seed_gives_the_same_rounds() -> None:
    assert plan_round(7, "etcd", 3) == plan_round(7, "etcd", 3)
    assert plan_round(7, "etcd", 3) != plan_round(8, "etcd", 3)


def test_each_round_kills_the_leader_and_all_kinds_come() -> None:
    for store in STORES:
        rounds = [plan_round(seed, store, 0) for seed in range(200)]
        kinds = {kill.what for planned in rounds for kill in planned.kills}
        expected = {"leader", "agent", "keeper", "node"} | ({"server", "blobs"} if store in SHARED else set())
        assert kinds == expected
        assert all("leader" in [kill.what for kill in planned.kills] for planned in rounds)
        assert all(0 <= kill.at_s <= WITHIN_S for planned in rounds for kill in planned.kills)


def test_jobs_are_of_all_sizes_and_their_lines_differ() -> None:
    jobs = [job for seed in range(200) for job in plan_round(seed, "sqlite", 0).jobs]
    assert len(jobs) == 200 * JOBS
    sizes = [job.lines * len(job.parts) * LINE_BYTES for job in jobs]
    assert min(sizes) < 4 * LOG_BYTES[0] and max(sizes) > LOG_BYTES[1] // 2
    assert max(max(job.parts) for job in jobs) // LINE_BYTES < PART_LINES
    assert OUTPUT_BYTES[0] <= min(min(job.parts) for job in jobs)
