"""Virtual machines of a keeper, with real QEMU: boot, log, power, leases and ends."""

import os
import signal
import socket
from pathlib import Path

from tests.components.guest import MEMORY
from tests.keeper.keeper_harness import now_ms, until, usage_of
from tests.keeper.machines.machine_bench import MachineBench, gone

TICKS = "echo ready; n=0; while :; do n=$((n+1)); echo tick $n; sleep 1; done"


def test_a_guest_that_powers_off_ends_its_run_and_its_console_is_the_log(bench: MachineBench) -> None:
    bench.start("1", "stty -F /dev/ttyS0 raw; printf 'a\\000\\377\\r\\nz'; dmesg -n 1")
    assert bench.powered("1") == ("running", 0, "")
    ended = bench.client.ended("1")
    assert (ended["cause"], ended["code"], ended.get("error")) == ("exited", 0, None)
    assert b"a\0\xff\r\nz" in bench.harness.log("1")
    assert ended["log_size"] == len(bench.harness.log("1"))
    assert list((bench.harness.work / "1").iterdir()) == [], "no socket is left"
    assert [event["event"] for event in bench.client.others()] == ["started"]


def test_a_machine_is_stopped_by_its_power_button(bench: MachineBench) -> None:
    bench.start("1", "echo ready; sleep 1000")
    bench.writes("1", b"ready")
    bench.client.send({"do": "stop", "id": "1", "grace_ms": 60_000})
    ended = bench.client.ended("1")
    assert (ended["cause"], ended["code"], ended["signal"]) == ("stopped", 0, None)
    assert b"Power down" in bench.harness.log("1")
    used = usage_of(ended)  # of QEMU with its guest
    assert used.cpu_ms is not None and used.cpu_ms > 100
    assert used.memory_max is not None and used.memory_max > 40 << 20 and not used.memory_is_bound


def test_a_machine_that_does_not_listen_is_ended_after_the_grace(bench: MachineBench) -> None:
    bench.start("1", "deaf; echo ready; sleep 1000")
    bench.writes("1", b"ready")
    qemu = bench.qemu("1")
    bench.client.send({"do": "stop", "id": "1", "grace_ms": 300})
    ended = bench.client.ended("1")
    assert (ended["cause"], ended["signal"]) == ("stopped", signal.SIGKILL)
    gone(qemu)


def test_power_commands_are_carried_out_one_after_another(bench: MachineBench) -> None:
    bench.start("1", TICKS, leased=False)
    assert bench.powered("1") == ("running", 0, "")
    bench.writes("1", b"tick")
    bench.power("1", 1, "pause")
    assert bench.powered("1") == ("paused", 1, "")
    bench.power("1", 2, "resume")
    bench.power("1", 2, "stop")  # its serial is known
    assert bench.powered("1") == ("running", 2, "")
    bench.power("1", 3, "stop")
    bench.power("1", 4, "pause")
    bench.power("1", 5, "start")
    bench.power("1", 6, "reset")
    assert bench.powered("1") == ("stopped", 3, "")
    assert bench.powered("1") == ("stopped", 4, "the machine is stopped, so it has nothing to pause")
    assert bench.powered("1") == ("running", 5, "")
    assert bench.powered("1") == ("running", 6, "")
    bench.writes("1", b"ready", count=2)
    bench.power("1", 7, "reboot")
    assert bench.powered("1") == ("running", 7, "")
    bench.writes("1", b"ready", count=3)
    bench.power("1", 8, "stop", grace_ms=0)
    assert bench.powered("1") == ("stopped", 8, "")
    (run,) = bench.reconnect().runs["runs"]
    assert (run["state"], run["power"], run["power_serial"]) == ("running", "stopped", 8)
    bench.client.send({"do": "stop", "id": "1"})
    assert bench.client.ended("1")["code"] == 0


def test_a_machine_may_begin_stopped_or_paused(bench: MachineBench) -> None:
    bench.start("1", "echo ready", {"power": "stopped", "power_serial": 4})
    assert bench.powered("1") == ("stopped", 4, "")
    bench.power("1", 4, "start")
    bench.power("1", 5, "start")
    assert bench.powered("1") == ("running", 5, "")
    assert bench.client.ended("1")["code"] == 0
    bench.start("2", "echo ready", {"power": "paused"})
    assert bench.powered("2") == ("paused", 0, "")
    bench.power("2", 1, "resume")
    assert bench.powered("2") == ("running", 1, "")
    assert bench.client.ended("2")["code"] == 0


def test_a_guest_that_panics_is_an_error(bench: MachineBench) -> None:
    bench.start("1", "echo c > /proc/sysrq-trigger")
    ended = bench.client.ended("1")
    assert (ended["cause"], ended["error"]) == ("error", "the guest's kernel has panicked; its log has the reason")


def test_qemu_that_dies_is_an_error_with_its_last_words(bench: MachineBench) -> None:
    bench.start("1", "sleep 1000", {"kernel": "/no/kernel"})
    ended = bench.client.ended("1")
    assert ended["cause"] == "error"
    assert "/no/kernel" in ended["error"], ended
    bench.start("4", "sleep 1000", {"network": {"mode": "user", "forward": [[1, 1], [1, 1]]}})
    assert "QEMU ended with code 1: " in bench.client.ended("4")["error"]
    bench.start("2", "sleep 1000")
    assert bench.powered("2")[0] == "running"
    os.kill(bench.qemu("2"), signal.SIGKILL)
    assert bench.client.ended("2")["error"] == "QEMU was ended by signal 9"
    bench.start("3", "sleep 1000", {"program": "/no/qemu"})
    assert bench.client.ended("3")["error"].endswith("/no/qemu: No such file or directory")


def test_the_lease_ends_a_machine(bench: MachineBench) -> None:
    bench.client.send({"do": "lease", "until": now_ms() + 600_000})
    bench.start("1", "sleep 1000", leased=True)
    assert bench.powered("1")[0] == "running"
    qemu = bench.qemu("1")
    bench.client.send({"do": "lease", "until": now_ms()})
    assert bench.client.ended("1")["cause"] == "lease"
    gone(qemu)


def test_the_lease_ends_a_machine_whose_keeper_hangs(bench: MachineBench) -> None:
    bench.client.send({"do": "lease", "until": now_ms() + 600_000})
    bench.start("1", "sleep 1000", leased=True)
    assert bench.powered("1")[0] == "running"
    bench.client.send({"do": "lease", "until": now_ms() + 2_000})
    bench.client.others()
    qemu, supervisor = bench.qemu("1"), bench.supervisor("1")
    bench.keeper.send_signal(signal.SIGSTOP)
    gone(qemu, supervisor)
    bench.keeper.send_signal(signal.SIGCONT)
    assert bench.client.ended("1")["cause"] == "lease"


def test_the_lease_ends_a_machine_whose_supervisor_hangs(bench: MachineBench) -> None:
    bench.client.send({"do": "lease", "until": now_ms() + 600_000})
    bench.start("1", "sleep 1000", leased=True)
    assert bench.powered("1")[0] == "running"
    qemu, supervisor = bench.qemu("1"), bench.supervisor("1")
    os.kill(supervisor, signal.SIGSTOP)
    bench.client.send({"do": "lease", "until": now_ms()})
    assert bench.client.ended("1")["cause"] == "lease"
    gone(qemu, supervisor)


def test_qemu_ends_with_its_supervisor_and_with_its_keeper(bench: MachineBench) -> None:
    bench.start("1", "sleep 1000")
    assert bench.powered("1")[0] == "running"
    qemu = bench.qemu("1")
    os.kill(bench.supervisor("1"), signal.SIGKILL)
    ended = bench.client.ended("1")
    assert (ended["cause"], ended["signal"]) == ("exited", signal.SIGKILL)
    gone(qemu)
    bench.start("2", "sleep 1000")
    assert bench.powered("2")[0] == "running"
    qemu, supervisor = bench.qemu("2"), bench.supervisor("2")
    bench.keeper.kill()
    bench.keeper.wait()
    gone(qemu, supervisor)


def test_qemu_ends_with_a_supervisor_that_is_killed_together_with_its_keeper(bench: MachineBench) -> None:
    bench.start("1", "sleep 1000")
    assert bench.powered("1")[0] == "running"
    qemu, supervisor = bench.qemu("1"), bench.supervisor("1")
    bench.keeper.send_signal(signal.SIGSTOP)
    os.kill(supervisor, signal.SIGKILL)
    bench.keeper.kill()
    gone(qemu)


def test_a_machine_is_not_started_twice(bench: MachineBench) -> None:
    bench.start("1", "sleep 1000")
    assert bench.powered("1")[0] == "running"
    supervisor = bench.supervisor("1")
    bench.start("2", "sleep 1000")
    ended = bench.client.ended("2")
    assert ended["cause"] == "error"
    assert ended["error"].endswith(f"another machine has them (process {supervisor})")


def test_a_client_types_at_the_console_and_sees_its_output(bench: MachineBench) -> None:
    bench.start("1", "echo ready; read line; echo heard $line; read line")
    bench.writes("1", b"ready")
    first, second = attached(bench.harness.work / "1"), attached(bench.harness.work / "1")
    assert second.recv(100) == b"console: another client is attached\r\n"
    first.sendall(b"hello\n")
    seen = b""
    while b"heard hello" not in seen:
        data = first.recv(100)
        assert data, seen
        seen += data
    first.close()
    bench.writes("1", b"heard hello")
    again = attached(bench.harness.work / "1")
    again.sendall(b"\n")
    assert bench.client.ended("1")["code"] == 0


def attached(directory: Path) -> socket.socket:
    found = socket.socket(socket.AF_UNIX)
    found.settimeout(60)
    fd = os.open(directory, os.O_RDONLY)
    until(lambda: (directory / "console.sock").exists(), "the console")
    found.connect(f"/proc/self/fd/{fd}/console.sock")
    os.close(fd)
    return found


def test_the_limits_of_a_run_leave_room_for_qemu(bench: MachineBench) -> None:
    """And its processes are in the group that has them, where the keeper can make one."""
    limits = {"cpu_m": 1_000, "memory": MEMORY}
    bench.start("1", "head -c 12000000 /dev/zero | tail -c 12000000 | wc -c", limits=limits)
    assert bench.powered("1")[0] == "running"
    groups = Path(f"/proc/{bench.qemu('1')}/cgroup").read_text()
    ended = bench.client.ended("1")
    assert (ended["cause"], ended["oom"]) == ("exited", False), ended
    assert b"12000000" in bench.harness.log("1")
    if any("memory" in able for able in bench.client.runs["enforces"]):
        assert groups.count("roost-") >= 2, groups
