"""What a host says it offers and uses: checked against this machine, and against files of machines we do not have."""

import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import psutil

from roost.agent.host import fingerprint
from roost.agent.host.fingerprint import UNBOUNDED, UsageMeter
from roost.keeper import cgroup
from roost.model.limits import PORT_ANY_FIRST, PORT_ANY_LAST
from roost.model.records.node import Facts
from tests.keeper.keeper_harness import now_ms

GIB = 1 << 30


def test_this_host_offers_what_it_has(tmp_path: Path) -> None:
    facts = fingerprint.facts(str(tmp_path / "not" / "there" / "yet"))
    assert 0 < facts.resources["cpu"] <= len(os.sched_getaffinity(0)) * 1000
    assert 0 < facts.resources["memory"] <= psutil.virtual_memory().total
    assert abs(facts.resources["disk"] - psutil.disk_usage(str(tmp_path)).free) < GIB
    assert facts.arch == {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    assert facts.drivers == ("process",)
    assert facts.labels["os"] == "linux" and facts.labels["kernel"] == platform.release()
    assert facts.labels["hostname"] == platform.node()
    assert facts.labels["limits"] == cgroup.detect().kind


def test_wishes_come_before_what_was_found(tmp_path: Path) -> None:
    resources = {"cpu": 500, "memory": GIB, "disk": 0, "licence": 3}
    wishes = Facts(resources, labels={"os": "mine", "disk": "nvme"}, zone="a")
    facts = fingerprint.facts(str(tmp_path), wishes)
    assert facts.resources == {"cpu": 500, "memory": GIB, "disk": 0, "licence": 3} | gpus(facts.resources)
    assert (facts.labels["os"], facts.labels["disk"], facts.zone, facts.pool) == ("mine", "nvme", "a", "default")


def gpus(resources: dict[str, int]) -> dict[str, int]:
    return {name: amount for name, amount in resources.items() if name == "gpu"}


def test_several_agents_share_a_machine(tmp_path: Path) -> None:
    whole, third = fingerprint.facts(str(tmp_path)), fingerprint.facts(str(tmp_path), Facts({"disk": 7}), 3)
    assert third.resources["cpu"] == whole.resources["cpu"] // 3
    assert third.resources["memory"] == whole.resources["memory"] // 3
    assert third.resources["disk"] == 7


def with_gpus(tmp_path: Path, *models: str) -> str:
    """A machine with these GPUs, as NVIDIA's driver tells of them."""
    proc = container_v2(tmp_path)
    for number, model in enumerate(models):
        text = f"Model: \t\t {model}\nIRQ:   \t\t 9{number}\nGPU UUID: \t GPU-{number}\nDevice Minor: \t {number}\n"
        machine(tmp_path, {f"proc/driver/nvidia/gpus/0000:0{number}:00.0/information": text})
    return proc


def test_gpus_are_counted_and_have_a_model(tmp_path: Path) -> None:
    proc = with_gpus(tmp_path, "NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB")
    facts = fingerprint.facts(str(tmp_path), proc=proc)
    assert (facts.resources["gpu"], facts.gpu_model) == (2_000, "NVIDIA A100-SXM4-40GB")
    answer = fingerprint.facts(str(tmp_path), Facts({"gpu": 1_000}, gpu_model="mine", taints=("gpu",)), proc=proc)
    assert (answer.resources["gpu"], answer.gpu_model, answer.taints) == (1_000, "mine", ("gpu",))


def test_gpus_of_different_models_have_none_in_common(tmp_path: Path) -> None:
    facts = fingerprint.facts(str(tmp_path), proc=with_gpus(tmp_path, "NVIDIA T4", "NVIDIA A100"))
    assert (facts.resources["gpu"], facts.gpu_model) == (2_000, "")


def test_of_several_agents_on_a_machine_the_first_has_the_gpus(tmp_path: Path) -> None:
    proc = with_gpus(tmp_path, "NVIDIA T4", "NVIDIA T4", "NVIDIA T4")
    first, second = (fingerprint.facts(str(tmp_path), share=2, number=item, proc=proc) for item in (1, 2))
    assert (first.resources["gpu"], first.gpu_model) == (3_000, "NVIDIA T4")
    assert ("gpu" in second.resources, second.gpu_model) == (False, "")


def test_the_ports_of_a_node_are_those_its_keeper_claimed(tmp_path: Path) -> None:
    facts = fingerprint.facts(str(tmp_path), ports="20500-20999")
    assert (facts.port_first, facts.port_last) == (20_500, 20_999)
    facts = fingerprint.facts(str(tmp_path))
    assert (facts.port_first, facts.port_last) == (PORT_ANY_FIRST, PORT_ANY_LAST)


def test_a_machine_without_gpus_offers_none(tmp_path: Path) -> None:
    facts = fingerprint.facts(str(tmp_path), proc=container_v2(tmp_path))
    assert ("gpu" in facts.resources, facts.gpu_model, facts.taints) == (False, "", ())


def test_what_we_hold_already_can_be_had_again(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "big").write_bytes(os.urandom(3 << 20))
    os.symlink("/", tmp_path / "everything")
    assert 3 << 20 <= fingerprint.own_files(str(tmp_path)) < 4 << 20
    assert fingerprint.own_files(str(tmp_path / "not-there")) == 0


def machine(tmp_path: Path, files: dict[str, str]) -> str:
    """A /proc (and what it mounts) as some other machine has it."""
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(tmp_path / "proc")


def container_v2(tmp_path: Path) -> str:
    return machine(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pod/box\n",
            "proc/self/mountinfo": f"29 23 0:26 / {tmp_path}/cg rw - cgroup2 cgroup2 rw\n",
            "proc/meminfo": "MemTotal:  8388608 kB\nMemFree: 1024 kB\nMemAvailable: 4194304 kB\n",
            "proc/stat": "cpu  100 0 50 1000 7 3 2 0 0 0\ncpu0 1\n",
            "cg/pod/box/cpu.max": "max 100000\n",
            "cg/pod/cpu.max": "50000 100000\n",
            "cg/pod/memory.max": f"{2 * GIB}\n",
            "cg/pod/box/memory.max": "max\n",
            "cg/pod/box/cpu.stat": "usage_usec 5000000\nuser_usec 1\n",
            "cg/pod/box/memory.current": f"{GIB}\n",
            "cg/pod/box/memory.stat": f"anon 1\ninactive_file {GIB // 4}\n",
        },
    )


def test_the_tightest_bound_above_us_counts(tmp_path: Path) -> None:
    proc = container_v2(tmp_path)
    assert fingerprint.bounds_of(f"{proc}/self") == (500, 2 * GIB)
    facts = fingerprint.facts(str(tmp_path), proc=proc)
    assert (facts.resources["cpu"], facts.resources["memory"]) == (500, 2 * GIB)


def test_v1_bounds_are_found_per_controller(tmp_path: Path) -> None:
    proc = machine(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/a/b\n2:cpu,cpuacct:/a\n0::/\n",
            "proc/self/mountinfo": f"1 1 0:1 / {tmp_path}/m rw - cgroup cgroup rw,memory\n"
            f"2 1 0:2 / {tmp_path}/c rw - cgroup cgroup rw,cpu,cpuacct\n",
            "m/a/b/memory.limit_in_bytes": "9223372036854771712\n",
            "m/a/memory.limit_in_bytes": f"{GIB}\n",
            "c/a/cpu.cfs_quota_us": "150000\n",
            "c/a/cpu.cfs_period_us": "100000\n",
            "c/cpu.cfs_quota_us": "-1\n",
            "c/cpu.cfs_period_us": "100000\n",
        },
    )
    assert fingerprint.bounds_of(f"{proc}/self") == (1500, GIB)
    assert fingerprint.memory_bound(f"{tmp_path}/m/a/b") == UNBOUNDED, "no machine has that much"


def test_a_machine_without_cgroups_has_no_bounds(tmp_path: Path) -> None:
    assert fingerprint.bounds_of(machine(tmp_path, {"proc/self/cgroup": ""}) + "/self") == (UNBOUNDED, UNBOUNDED)


def test_a_bounded_group_measures_itself(tmp_path: Path) -> None:
    meter = UsageMeter(str(tmp_path), proc=container_v2(tmp_path))
    first = meter.usage(1_000)
    assert (first.cpu_milli, first.memory) == (0, GIB - GIB // 4)
    (tmp_path / "cg/pod/box/cpu.stat").write_text("usage_usec 5250000\n")
    assert meter.usage(2_000).cpu_milli == 250
    assert meter.usage(2_000).cpu_milli == 0


def test_an_unbounded_one_measures_the_machine_and_says_its_share(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "",
        "proc/stat": "cpu  100 0 50 1000 7 3 2 0 0 0\n",
        "proc/meminfo": "MemTotal: 4000 kB\nMemFree: 10 kB\nMemAvailable: 1000 kB\n",
    }
    meter = UsageMeter(str(tmp_path), share=2, proc=machine(tmp_path, files))
    meter.usage(1_000)
    (tmp_path / "proc" / "stat").write_text("cpu  200 0 50 1000 900 3 2 0 0 0\n")
    usage = meter.usage(2_000)
    ticks_ms = 1000 // os.sysconf("SC_CLK_TCK")
    assert usage.cpu_milli == 100 * ticks_ms // 2, "waiting for a disk is not work"
    assert usage.memory == 3000 * 1024 // 2


def test_this_machine_is_measured(tmp_path: Path) -> None:
    meter = UsageMeter(str(tmp_path))
    start = now_ms()
    meter.usage(start)
    spent_s = time.process_time()
    while time.process_time() - spent_s < 0.3:
        pass
    past_ms = now_ms() - start
    usage = meter.usage(start + past_ms)
    ticks_ms = 2 * 1000 // os.sysconf("SC_CLK_TCK")
    assert (300 - ticks_ms) * 1000 // past_ms <= usage.cpu_milli <= os.cpu_count() * 1000 + 200
    assert abs(usage.memory - psutil.virtual_memory().used) < 2 * GIB
    assert abs(usage.disk - psutil.disk_usage(str(tmp_path)).used) < GIB


def test_nothing_heavy_is_loaded() -> None:
    """An agent has to be up in a third of a second."""
    script = "import sys, roost.agent.host.fingerprint; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert "roost.agent.host.fingerprint" in loaded
    assert not {"psutil", "grpc", "numpy", "asyncio"} & set(loaded)
