"""What a node finds of QEMU: a program that answers, KVM that runs a guest, images and bridges that are there."""

import os
from pathlib import Path

import pytest

from roost.drivers.qemu import probe
from roost.drivers.qemu.host import MachineHost, QemuProgram
from roost.drivers.qemu.probe import find_qemu, look_again, runs_kvm
from tests.components.guest import shared_guest


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def own_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with programs of its own, and without KVM."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    monkeypatch.setattr(probe, "KVM", str(tmp_path / "kvm"))
    monkeypatch.setattr(probe, "IMAGE_PROGRAM", "own-img")
    monkeypatch.setattr(probe, "FIRMWARE", (str(tmp_path / "uefi"),))
    script(tmp_path / "own-img", "true")
    return tmp_path


def test_qemu_is_found_with_its_release_and_firmware(own_path: Path) -> None:
    path = script(own_path / "qemu-system-x86_64", "echo QEMU emulator version 9.1.0 '(v9)'")
    assert find_qemu("auto", "amd64") == QemuProgram(path, "9.1.0")
    (own_path / "uefi").write_bytes(b"x")
    assert find_qemu(path, "amd64") == QemuProgram(path, "9.1.0", firmware=str(own_path / "uefi"))


def test_a_machine_without_what_is_needed_offers_none(own_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = script(own_path / "qemu", "echo version 9.1")
    assert find_qemu(path, "amd64") is not None
    assert find_qemu("none", "amd64") is None
    assert find_qemu(path, "riscv64") is None
    assert find_qemu(script(own_path / "other", "echo hello"), "amd64") is None
    monkeypatch.setattr(probe, "IMAGE_PROGRAM", "absent-img")
    assert find_qemu(path, "amd64") is None


def test_what_was_found_is_kept_until_a_part_is_another(own_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    note, program = str(own_path / "qemu.json"), own_path / "qemu"
    first = find_qemu(script(program, "echo version 9.1; exit 33"), "amd64", note)
    monkeypatch.setattr(probe, "_run", lambda argv, s: 1 / 0)
    assert find_qemu(str(program), "amd64", note) == first == QemuProgram(str(program), "9.1")
    (own_path / "qemu.json").write_bytes(b"{")
    with pytest.raises(ZeroDivisionError):
        find_qemu(str(program), "amd64", note)
    monkeypatch.undo()
    monkeypatch.setattr(probe, "KVM", str(own_path / "kvm"))
    monkeypatch.setattr(probe, "IMAGE_PROGRAM", str(own_path / "own-img"))
    find_qemu(str(program), "amd64", note)
    (own_path / "kvm").write_bytes(b"")
    found = find_qemu(str(program), "amd64", note)
    assert found is not None and found.has_kvm, "its device is new"


def test_kvm_counts_only_if_a_guest_ran(own_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    works, fails = script(own_path / "works", "exit 33"), script(own_path / "fails", "exit 1")
    assert not runs_kvm(works), "there is no device"
    (own_path / "kvm").write_bytes(b"")
    assert runs_kvm(works) and not runs_kvm(fails)
    monkeypatch.setattr(probe, "TRIAL_S_MAX", 0.05)
    assert not runs_kvm(script(own_path / "crawls", "exec sleep 30"))


def test_the_guest_of_the_trial_really_ends_qemu(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the same without KVM, which this machine may not have."""
    program, run = shared_guest().program, probe._run
    emulated = {"kvm": "tcg", "host": "max"}
    monkeypatch.setattr(probe, "_run", lambda argv, s: run([emulated.get(word, word) for word in argv], 60.0))
    monkeypatch.setattr(probe, "KVM", os.devnull)
    assert runs_kvm(program)
    monkeypatch.setattr(probe, "BOOT_SECTOR", bytes(512))
    monkeypatch.setattr(probe, "_run", lambda argv, s: run([emulated.get(word, word) for word in argv], 1.5))
    assert not runs_kvm(program)


def test_images_bridges_and_qemu_come_and_go(tmp_path: Path) -> None:
    program, image = script(tmp_path / "qemu", ""), tmp_path / "image"
    image.write_bytes(b"x")
    named = MachineHost("/m", {"one": str(image)}, {"lan": "no-such-bridge"})
    found = look_again(named, QemuProgram(program, "9.1", has_kvm=True, firmware="/uefi"))
    assert found.offers() == ("accel/kvm", "accel/tcg", "firmware/uefi", "image/one")
    image.unlink()
    assert look_again(named, QemuProgram(program, "9.1")).offers() == ("accel/tcg",)
    os.unlink(program)
    found = look_again(named, QemuProgram(program, "9.1"))
    assert (found.offers(), found.labels()) == ((), {})
