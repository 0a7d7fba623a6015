"""What the first bytes of a file say, and which files no machine is made of."""

import os
from pathlib import Path

import pytest

from roost.drivers.container.images import ImageUnavailable
from roost.drivers.qemu.images import ImageHead, check_source, head_of, read_head, sole_file
from roost.model.records.files import InputProblem

LINUX = bytes(0x202) + b"HdrS" + bytes(100)
ARM = bytes(0x38) + b"ARM\x64" + bytes(100)
ELF = b"\x7fELF" + bytes(14) + (183).to_bytes(2, "little") + bytes(100)
UNUSABLE = InputProblem.IMAGE_UNUSABLE


def qcow2(size: int, *, version: int = 3, backing: int = 0, features: int = 0) -> bytes:
    """The header of an empty disk."""
    numbers = ((version, 4), (backing, 8), (0, 4), (16, 4), (size, 8), (0, 40), (features, 8), (0, 24))
    return b"QFI\xfb" + b"".join(number.to_bytes(length, "big") for number, length in numbers)


@pytest.mark.parametrize(
    "head, found",
    [
        (qcow2(1 << 30), ImageHead("qcow2", 1 << 30)),
        (qcow2(1 << 30, version=2), ImageHead("qcow2", 1 << 30)),
        (qcow2(1 << 30, backing=200), ImageHead("qcow2", 1 << 30, leads_outside=True)),
        (qcow2(1 << 30, features=4), ImageHead("qcow2", 1 << 30, leads_outside=True)),
        (LINUX, ImageHead("kernel", 500, "amd64")),
        (ARM, ImageHead("kernel", 500, "arm64")),
        (ELF, ImageHead("kernel", 500, "arm64")),
        (b"\xeb\x3c\x90", ImageHead("raw", 500)),
    ],
)
def test_a_file_is_known_by_its_first_bytes(head: bytes, found: ImageHead) -> None:
    assert head_of(head, 500) == found


@pytest.mark.parametrize(
    "head, says",
    [
        (b"", "it is empty"),
        (b"KDMV" + bytes(100), "VMDK; convert it with `qemu-img convert -O qcow2`"),
        (qcow2(1, version=9), "damaged qcow2"),
        (qcow2(1)[:60], "damaged qcow2"),
    ],
)
def test_what_no_machine_is_made_of_says_so(head: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        head_of(head, len(head))


def refusal(tmp_path: Path, data: bytes, *, field: str, name: str = "one", size: int = 0) -> ImageUnavailable:
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises(ImageUnavailable) as caught:
        check_source(name, field, str(path), "amd64", size, 1 << 40)
    return caught.value


def test_a_kernel_for_other_processors_is_refused_and_another_node_may_have_a_better_one(tmp_path: Path) -> None:
    error = refusal(tmp_path, ARM, field="kernel")
    assert (error.image, error.problem, str(error)) == ("one", InputProblem.WRONG_ARCHITECTURE, "arm64, not amd64")
    assert not error.is_final
    assert refusal(tmp_path, ARM, field="kernel", name="blob:one").is_final, "it is the same everywhere"


def test_a_disk_is_no_kernel_and_a_kernel_is_no_disk(tmp_path: Path) -> None:
    assert "give it as `image`" in str(refusal(tmp_path, qcow2(1 << 20), field="kernel"))
    assert "give it as `kernel`" in str(refusal(tmp_path, LINUX, field="image"))


def test_a_disk_is_not_made_smaller_than_its_image(tmp_path: Path) -> None:
    error = refusal(tmp_path, qcow2(2 << 30), field="image", size=1 << 30)
    assert (error.problem, str(error)) == (UNUSABLE, "its disk has 2GiB, more than the machine's 1GiB")
    check_source("one", "image", str(tmp_path / "file"), "amd64", 2 << 30, 1 << 40)


def test_a_disk_that_is_larger_than_that_of_the_node_may_fit_another_node(tmp_path: Path) -> None:
    error = refusal(tmp_path, qcow2(2 << 40), field="image", name="blob:one")
    assert (error.problem, error.is_final) == (UNUSABLE, False)
    assert str(error) == "its disk has 2TiB, and that of the node 1TiB"


def test_an_image_that_is_gone_may_be_on_another_node(tmp_path: Path) -> None:
    for path in ("", str(tmp_path / "absent")):
        with pytest.raises(ImageUnavailable) as caught:
            check_source("one", "image", path, "amd64", 0, 1 << 40)
        assert (caught.value.problem, caught.value.is_final) == (InputProblem.IMAGE_GONE, False)


def test_a_pipe_is_no_image_and_does_not_hold_the_agent(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="no regular file"):
        read_head(str(tmp_path / "pipe"))


def test_a_named_image_is_one_file(tmp_path: Path) -> None:
    folder = tmp_path / "image"
    folder.mkdir()
    with pytest.raises(ImageUnavailable, match="it has 0 files"):
        sole_file("blob:one", str(folder))
    (folder / "disk").write_bytes(qcow2(1 << 30))
    assert sole_file("blob:one", str(folder)) == f"{folder}/disk"
    (folder / "other").write_bytes(b"x")
    with pytest.raises(ImageUnavailable, match="it has 2 files"):
        sole_file("blob:one", str(folder))


def test_a_named_image_cannot_lead_to_files_of_the_node(tmp_path: Path) -> None:
    """A guest would read them as its disk."""
    (tmp_path / "disk").write_bytes(qcow2(1 << 30, backing=200))
    with pytest.raises(ImageUnavailable, match="it names other files") as caught:
        sole_file("blob:one", str(tmp_path))
    assert (caught.value.problem, caught.value.is_final) == (UNUSABLE, True)
    (tmp_path / "disk").unlink()
    (tmp_path / "disk").symlink_to("/etc/shadow")
    with pytest.raises(ImageUnavailable, match="no regular file"):
        sole_file("blob:one", str(tmp_path))
