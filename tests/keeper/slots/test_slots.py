"""Slots, from inside and outside: what a run cannot reach, what it leaves, and what becomes of it when a slot dies."""

import os
import signal
from pathlib import Path

import pytest

from tests.keeper.keeper_harness import Client, alive, children, until, usage_of
from tests.keeper.slots.conftest import SlotHarness

SECRET = "hunter2-of-the-other"


def output(harness: SlotHarness, client: Client, script: str, id: str = "a") -> str:
    """What a run of this script prints."""
    client.send(harness.order(id, script))
    ended = client.ended(id)
    assert ended["cause"] == "exited", ended
    return harness.log(id).decode().strip()


def other_run(harness: SlotHarness, client: Client) -> None:
    """A run of another project, with a secret in its environment, its directory, its log and its memory."""
    script = f"echo {SECRET} >file; echo {SECRET}; exec sleep 1000"
    client.send(harness.order("other", script, env={"TOKEN": SECRET}, **harness.of("other")))
    until(lambda: SECRET.encode() in harness.log("other"), "the other run to begin")


def running(word: str) -> list[int]:
    """Processes of this machine with an argument."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word.encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def slots(harness: SlotHarness) -> list[int]:
    """The keeper's children that are slots: processes 1 of their own."""
    return [pid for pid in children(harness.keepers[-1].pid) if namespaces(pid) > namespaces(os.getpid())]


def namespaces(pid: int) -> int:
    """How many pid namespaces a process is in, one in the other."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return len(next(line for line in lines if line.startswith("NSpid:")).split()) - 1


def test_a_run_has_no_privileges(harness: SlotHarness, client: Client) -> None:
    wanted = "Uid:|Gid:|Groups|CapInh|CapPrm|CapEff|CapBnd|CapAmb|NoNewPrivs|Seccomp:"
    lines = output(harness, client, f"grep -E '{wanted}' /proc/self/status").splitlines()
    found = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
    user = harness.isolation["user"] if harness.as_root else harness.dir.parent.stat().st_uid
    assert found["Uid"] == found["Gid"] == [str(user)] * 4
    assert not harness.as_root or found["Groups"] == []
    assert {int(found[name][0], 16) for name in found if name.startswith("Cap")} == {0}
    assert found["NoNewPrivs"] == ["1"] and found["Seccomp"] == ["2"]


def test_a_run_sees_no_process_but_its_own(harness: SlotHarness, client: Client) -> None:
    other_run(harness, client)
    assert int(output(harness, client, "ls /proc | grep -c '^[0-9]'").split()[0]) <= 5
    assert output(harness, client, "cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n' | grep -a -c TOKEN", "b") == "0"


def test_the_memory_and_environment_of_the_slot_itself_are_out_of_reach(harness: SlotHarness, client: Client) -> None:
    tries = "cat /proc/1/environ; head -c 1 /proc/1/mem; ls -l /proc/1/fd/; ls -l /proc/1/cwd/"
    assert output(harness, client, f"({tries}) 2>/dev/null | wc -c") == "0"


def test_files_of_others_are_not_there(harness: SlotHarness, client: Client) -> None:
    other_run(harness, client)
    places = [harness.work / "other" / "file", harness.work / "other.log", harness.dir / "keeper.sock",
              harness.dir / "keeper.lock", harness.dir.parent / "server" / "admin.token"]  # fmt: skip
    assert all(path.exists() for path in places)
    assert output(harness, client, f"cat {' '.join(map(str, places))} 2>/dev/null | wc -c") == "0"
    assert output(harness, client, f"ls -A {harness.dir.parent}/*/ 2>/dev/null | grep -v :", "b") in ("", "b")


def test_places_to_write_are_its_own(harness: SlotHarness, client: Client) -> None:
    places = "/etc/x /usr/x /x /var/x /dev/x /proc/x /sys/x"
    script = f"for place in {places} {harness.dir}/x {harness.work}/x; do touch $place 2>/dev/null && echo $place; done"
    assert output(harness, client, f"{script}; touch here /tmp/x /var/tmp/x /dev/shm/x && echo own") == "own"
    assert output(harness, client, "ls -A /tmp /var/tmp /dev/shm | grep ^x", "b") == ""
    assert not Path("/tmp/x").exists() and not Path("/dev/shm/x").exists()
    assert (harness.work / "a" / "here").exists()


def test_a_directory_full_of_folders_is_cleared_from_the_private_places(harness: SlotHarness, client: Client) -> None:
    output(harness, client, "mkdir -p /tmp/x/y/z; chmod 0 /tmp/x/y; ln -s / /tmp/x/link; touch /tmp/x/file")
    assert output(harness, client, "ls -A /tmp | grep ^x", "b") == ""
    assert len(slots(harness)) == 1, "the second run had another slot"


def test_no_signal_leaves_the_slot(harness: SlotHarness, client: Client) -> None:
    other_run(harness, client)
    client.send(harness.order("a", "kill -INT 1; kill -TERM 1; kill -KILL 1; kill -KILL -1"))
    assert client.ended("a")["signal"] in (9, None)
    client.send({"do": "stop", "id": "other", "grace_ms": 60_000})
    assert client.ended("other")["signal"] == 15
    assert harness.keepers[0].poll() is None


def test_ways_out_are_refused(harness: SlotHarness, client: Client) -> None:
    script = """
import ctypes, os, threading, subprocess
call = ctypes.CDLL(None, use_errno=True).syscall
def errno(*arguments):
    return ctypes.get_errno() if call(*arguments) < 0 else 0
machine = os.uname().machine
unshare, ptrace, keyctl = {"x86_64": (272, 101, 250), "aarch64": (97, 117, 219)}[machine]
print(errno(unshare, 0x10000000), errno(ptrace, 0, 0, 0, 0), errno(keyctl, 0, 0), errno(425, 1, 0), errno(435, 0, 0))
threading.Thread(target=print, args=("threads",)).start()
print(subprocess.run(["id", "-u"], capture_output=True).returncode)
"""
    client.send(harness.order("a", ["/usr/bin/python3", "-c", script]))
    assert client.ended("a")["code"] == 0, harness.log("a")
    assert harness.log("a").decode().split("\n")[:3] == ["1 1 1 1 38", "threads", "0"]


@pytest.mark.parametrize("way", ["setsid", "setsid -f", "env -i setsid sh -c 'sleep {} & exec sleep {}'"])
def test_nothing_outlives_its_run(harness: SlotHarness, client: Client, way: str) -> None:
    name = f"{os.getpid()}{len(way)}"
    client.send(harness.order("a", f"{way.format(name, name)} sleep {name} & sleep 0.1; exit 3"))
    assert client.ended("a")["code"] == 3
    assert running(name) == []
    assert output(harness, client, "ls /proc | grep -c '^[0-9]'", "b") in ("3", "4", "5")


def test_two_hundred_processes_that_do_not_listen_end_at_once(harness: SlotHarness, client: Client) -> None:
    name = f"{os.getpid()}77"
    script = f"trap '' TERM; for i in $(seq 200); do setsid sleep {name} & done; echo; wait"
    client.send(harness.order("a", script))
    until(lambda: len(running(name)) == 200, "the processes to begin")
    client.send({"do": "stop", "id": "a", "grace_ms": 0})
    ended = client.ended("a")
    assert (ended["cause"], ended["signal"]) == ("stopped", 9)
    assert running(name) == []


def test_a_lease_that_ends_leaves_nothing(harness: SlotHarness, client: Client) -> None:
    name = f"{os.getpid()}88"
    client.send({"do": "lease", "until": 1 << 50}, harness.order("a", f"setsid sleep {name}", leased=True))
    until(lambda: running(name), "the process to begin")
    client.send({"do": "lease", "until": 0})
    assert client.ended("a")["cause"] == "lease"
    assert running(name) == []


def test_runs_of_a_project_have_one_slot_after_another_and_other_projects_another(
    harness: SlotHarness, client: Client
) -> None:
    output(harness, client, "true", "a")
    (slot,) = slots(harness)
    output(harness, client, "true", "b")
    assert slots(harness) == [slot]
    client.send(harness.order("c", "true", **harness.of("other")))
    client.ended("c")
    assert len(slots(harness)) == 2
    client.send(harness.order("d", "sleep 1000"), harness.order("e", "sleep 1000"))
    assert client.next("started", "d")["pid"] != client.next("started", "e")["pid"]
    assert len(slots(harness)) == 3


def test_a_slot_that_is_stopped_cannot_hold_a_run(harness: SlotHarness, client: Client) -> None:
    client.send(harness.order("a", "sleep 1000"))
    slot = client.next("started", "a")["pid"]
    os.kill(slot, signal.SIGSTOP)
    client.send({"do": "stop", "id": "a", "grace_ms": 50})
    assert (client.ended("a")["signal"], alive(slot)) == (9, False)
    assert output(harness, client, "echo next", "b") == "next"


def test_a_run_whose_slot_dies_says_so(harness: SlotHarness, client: Client) -> None:
    client.send(harness.order("a", "sleep 1000"))
    os.kill(client.next("started", "a")["pid"], signal.SIGKILL)
    ended = client.ended("a")
    assert (ended["signal"], ended["error"]) == (9, "its slot ended (signal 9)")
    assert output(harness, client, "echo next", "b") == "next"


def test_the_process_that_makes_slots_is_started_again(harness: SlotHarness, client: Client) -> None:
    output(harness, client, "true", "a")
    (maker,) = [pid for pid in running("-X") if pid in children(harness.keepers[0].pid) and pid not in slots(harness)]
    os.kill(maker, signal.SIGKILL)
    until(lambda: not alive(maker), "it to end")
    client.send(harness.order("b", "true", **harness.of("other")))
    assert client.ended("b")["code"] == 0


def test_nothing_survives_the_keeper(harness: SlotHarness, client: Client) -> None:
    name = f"{os.getpid()}99"
    client.send(harness.order("a", f"env -i setsid -f sleep {name}; env -i setsid sleep {name}"))
    until(lambda: len(running(name)) == 2, "the processes to begin")
    keeper = harness.keepers[0]
    left = [pid for pid in children(keeper.pid) if "slots" in Path(f"/proc/{pid}/cmdline").read_text()]
    assert len(left) == 2
    keeper.kill()
    keeper.wait()
    until(lambda: not running(name) and not any(map(alive, left)), "everything to end")


def test_a_whole_step_may_be_larger_than_a_packet(harness: SlotHarness, client: Client) -> None:
    client.send(harness.order("a", "echo ${#LARGE}", env={"LARGE": "x" * 100_000}))
    assert client.ended("a")["code"] == 0
    assert harness.log("a") == b"100000\n"


def test_what_cannot_be_started_says_why(harness: SlotHarness, client: Client) -> None:
    client.send(harness.order("a", ["no-such-program"]), harness.order("b", ["/etc/passwd"]))
    assert "no-such-program: not found in PATH" in client.ended("a")["error"]
    assert "/etc/passwd: not executable" in client.ended("b")["error"]
    assert output(harness, client, "echo next", "c") == "next"


def test_the_user_has_a_name(harness: SlotHarness, client: Client) -> None:
    if harness.as_root:
        assert output(harness, client, "whoami") == f"roost-{harness.isolation['user']}"


def test_limits_hold_and_a_lack_of_memory_is_reported(harness: SlotHarness, client: Client) -> None:
    if "memory" not in client.runs["enforces"]:
        client.send(harness.order("a", "true", limits={"cpu_m": 0, "memory": 64 << 20}))
        assert "memory cannot be limited" in client.next("started", "a")["limits"]
        return
    script = "x = bytearray(256 << 20); print(len(x))"
    limits = {"cpu_m": 500, "memory": 64 << 20}
    client.send(harness.order("a", ["/usr/bin/python3", "-c", script], limits=limits))
    ended = client.ended("a")
    assert (ended["signal"], ended["oom"]) == (9, True)
    client.send(harness.order("b", ["/usr/bin/python3", "-c", script]))
    ended = client.ended("b")
    assert (ended["code"], ended["oom"], harness.log("b")) == (0, False, b"268435456\n")


def test_usage_is_of_one_run_with_its_orphans_and_not_of_those_before_it(harness: SlotHarness, client: Client) -> None:
    spin = "import time; [0 for _ in iter(lambda: time.process_time() > 0.2, True)]"
    parent = f"import os; os.fork() and os._exit(0); {spin}; open('done', 'w')"  # its child is an orphan
    script = f'python3 -c "{parent}"; until [ -e done ]; do sleep 0.01; done'
    client.send(harness.order("a", script))
    first = usage_of(client.ended("a"))
    client.send(harness.order("b", "true"))
    second = usage_of(client.ended("b"))
    assert first.cpu_ms is not None and first.cpu_ms >= 200
    assert second.cpu_ms is not None and second.cpu_ms < 100
    assert second.memory_max is not None and second.memory_is_bound
