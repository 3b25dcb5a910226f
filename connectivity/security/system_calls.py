"""Takes rights away from this process for good: system calls, new privileges, readable memory.

`ctypes` calls `prctl`, which Python does not have. The filter is the kernel's seccomp: a short program that reads the number
of each system call and ends the process for one that is not listed. Numbers differ by machine, so both tables are here.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys

_SET_DUMPABLE, _SET_SECCOMP, _SET_NO_NEW_PRIVS = 4, 22, 38
_FILTER_MODE = 2

_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_NUMBER_OFFSET, _ARCHITECTURE_OFFSET = 0, 4
_KILL_PROCESS, _ALLOW = 0x80000000, 0x7FFF0000

_NAMES = (
    # The most frequent first: the kernel compares from the beginning.
    *("clock_gettime", "read", "write", "setitimer", "brk", "mmap", "munmap", "mremap", "mprotect", "madvise", "futex"),
    *("gettimeofday", "getrandom", "sched_yield", "rt_sigreturn", "restart_syscall", "exit", "exit_group"),
)
"""The time, the open pipes, the timer that ends the process, and memory."""

_MACHINES = {
    "x86_64": (0xC000003E, (228, 0, 1, 38, 12, 9, 11, 25, 10, 28, 202, 96, 318, 24, 15, 219, 60, 231)),
    "aarch64": (0xC00000B7, (113, 63, 64, 103, 214, 222, 215, 216, 226, 233, 98, 169, 278, 124, 139, 128, 93, 94)),
}
"""The kernel's identifier of each architecture, and the numbers of `_NAMES`."""


class NotSupported(Exception):
    """This system cannot do it; the text says why."""


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def keep_only_computing() -> None:
    """Make the kernel end this process at system calls that computing does not need.

    Allowed are those for time, memory, and reading and writing open files. The process must have one thread only. Raises
    NotSupported.
    """
    machine = os.uname().machine
    if sys.platform != "linux" or machine not in _MACHINES:
        raise NotSupported(f"the filter of system calls does not support {sys.platform} on {machine}")
    instructions = _filter(*_MACHINES[machine])
    program = _Program(len(instructions) // 8, instructions)
    _prctl(_SET_NO_NEW_PRIVS, 1)
    _prctl(_SET_SECCOMP, _FILTER_MODE, ctypes.addressof(program))


def hide_memory() -> None:
    """Forbid other processes of the same user to read or change this one's memory, and core dumps.

    Programs that this process starts are not hidden. Raises NotSupported.
    """
    if sys.platform != "linux":
        raise NotSupported(f"the operating system {sys.platform} has no prctl")
    _prctl(_SET_DUMPABLE, 0)


def _filter(architecture: int, numbers: tuple[int, ...]) -> bytes:
    """Return the program of a filter that allows these system calls of this architecture."""
    allowed = [
        _instruction(_JUMP_IF_EQUAL, number, if_equal=len(numbers) - index) for index, number in enumerate(numbers)
    ]
    return b"".join(
        [
            _instruction(_LOAD, _ARCHITECTURE_OFFSET),
            _instruction(_JUMP_IF_EQUAL, architecture, if_different=len(numbers) + 1),
            _instruction(_LOAD, _NUMBER_OFFSET),
            *allowed,
            _instruction(_RETURN, _KILL_PROCESS),
            _instruction(_RETURN, _ALLOW),
        ]
    )


def _instruction(code: int, value: int, *, if_equal: int = 0, if_different: int = 0) -> bytes:
    """Return one instruction; a jump skips as many instructions as given."""
    return struct.pack("=HBBI", code, if_equal, if_different, value)


def _prctl(option: int, *arguments: int) -> None:
    words = [ctypes.c_ulong(argument) for argument in (*arguments, 0, 0, 0, 0)[:4]]
    if ctypes.CDLL(None, use_errno=True).prctl(option, *words) != 0:
        raise NotSupported(f"the kernel refused prctl {option}: {os.strerror(ctypes.get_errno())}")
