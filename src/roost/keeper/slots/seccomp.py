"""System calls that no run needs and that open ways out of a slot: they are refused by a filter that all inherit."""

import ctypes
import os
import struct

from roost.keeper.slots.system import CLONE_NEWUSER, checked, libc

_PR_SET_SECCOMP, _MODE_FILTER = 22, 2
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _EPERM, _ENOSYS = 0x7FFF_0000, 0x0005_0001, 0x0005_0026
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # offsets in what the filter is given; little-endian machines
_X32 = 0x4000_0000

# Common to all architectures: io_uring_setup, _enter, _register; then clone3, which glibc does without.
_REFUSED, _ABSENT = (425, 426, 427), (435,)


class _Calls:
    """The numbers of one architecture: those with a flag that is looked at, and those that are refused."""

    def __init__(self, clone: int, unshare: int, *refused: int) -> None:
        self.flagged = (clone, unshare)
        self.refused = (*refused, *_REFUSED)


# refused: ptrace, bpf, keyctl, add_key, request_key, userfaultfd, perf_event_open, kexec_load, kexec_file_load,
# init_module, finit_module, delete_module, open_by_handle_at
_X86_64 = _Calls(56, 272, 101, 321, 250, 248, 249, 323, 298, 246, 320, 175, 313, 176, 304)
_I386 = _Calls(120, 310, 26, 357, 288, 286, 287, 374, 336, 283, 128, 350, 129, 342)
_AARCH64 = _Calls(220, 97, 117, 280, 219, 217, 218, 282, 241, 104, 294, 105, 273, 106, 265)

#: machine → audit numbers of the architectures whose calls its kernel takes
_KNOWN = {
    "x86_64": {0xC000_003E: _X86_64, 0x4000_0003: _I386},
    "aarch64": {0xC000_00B7: _AARCH64},
}


def is_known() -> bool:
    return os.uname().machine in _KNOWN


def install() -> None:
    """For this process and all that it starts. Calls of another architecture are refused as a whole."""
    program = b"".join(_program(_KNOWN[os.uname().machine]))
    code = ctypes.create_string_buffer(program, len(program))
    filter_ = ctypes.create_string_buffer(struct.pack("@HP", len(program) // 8, ctypes.addressof(code)))
    checked(libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, filter_, 0, 0), "seccomp")


def _program(architectures: "dict[int, _Calls]") -> list[bytes]:
    found = [_instruction(_LOAD, _ARCHITECTURE)]
    for number, calls in architectures.items():
        part = _part(calls)
        found += [_instruction(_EQUAL, number, 0, len(part)), *part]
    return [*found, _instruction(_RETURN, _ENOSYS)]


def _part(calls: _Calls) -> list[bytes]:
    """Ends with an answer whatever the call is."""
    found = [_instruction(_LOAD, _NUMBER), _instruction(_AT_LEAST, _X32, 0, 1), _instruction(_RETURN, _ENOSYS)]
    for number in calls.refused:
        found += [_instruction(_EQUAL, number, 0, 1), _instruction(_RETURN, _EPERM)]
    for number in _ABSENT:
        found += [_instruction(_EQUAL, number, 0, 1), _instruction(_RETURN, _ENOSYS)]
    for number in calls.flagged:
        found += [
            _instruction(_EQUAL, number, 0, 4),
            _instruction(_LOAD, _FIRST_ARGUMENT),
            _instruction(_ANY_BIT, CLONE_NEWUSER, 0, 1),
            _instruction(_RETURN, _EPERM),
            _instruction(_RETURN, _ALLOW),
        ]
    return [*found, _instruction(_RETURN, _ALLOW)]


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
