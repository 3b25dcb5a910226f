"""Attacks of native code in a script process, each in a process that has given up its privileges.

    python -m tests.support.script_process_attacks FOLDER

Prints a JSON object: for each attack `SIGSYS` if the kernel ended its process, the name of the error, or `done`. The
attacks are aimed at the parent of that process and at the file `victim` in the folder.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import sys
from collections.abc import Callable

from connectivity.mapping.script_protocol import ScriptLimits
from connectivity.mapping.worker import drop_privileges

_LIBC = ctypes.CDLL(None, use_errno=True)
_PTRACE_SEIZE, _SET_DUMPABLE, _SET_SECCOMP = 0x4206, 4, 22
_PIDFD_OPEN, _IO_URING_SETUP, _X32 = 434, 425, 0x40000000
_GET_PID = 39 if os.uname().machine == "x86_64" else 172

Attack = Callable[[], int]


def _attacks(victim: bytes, other: bytes, parent: int) -> dict[str, Attack]:
    """Return the attacks by name; each returns -1 and sets errno if it fails."""
    c = _LIBC
    memory = ctypes.create_string_buffer(64)
    return {
        "open": lambda: c.open(victim, os.O_RDONLY),
        "open the memory of the parent": lambda: c.open(b"/proc/%d/mem" % parent, os.O_RDWR),
        "truncate": lambda: c.truncate(victim, ctypes.c_long(0)),
        "rename": lambda: c.rename(victim, other),
        "link": lambda: c.link(victim, other),
        "symlink": lambda: c.symlink(victim, other),
        "unlink": lambda: c.unlink(victim),
        "mkdir": lambda: c.mkdir(other, 0o700),
        "chmod": lambda: c.chmod(victim, 0o777),
        "chown": lambda: c.chown(victim, -1, -1),
        "utimes": lambda: c.utimes(victim, None),
        "chdir": lambda: c.chdir(b"/tmp"),
        "signal the parent": lambda: c.kill(parent, signal.SIGCONT),
        "signal a thread of the parent": lambda: c.syscall(_tgkill(), parent, parent, signal.SIGCONT),
        "trace the parent": lambda: c.ptrace(_PTRACE_SEIZE, parent, None, None),
        "read the memory of the parent": lambda: c.process_vm_readv(parent, memory, 0, memory, 0, 0),
        "write to the memory of the parent": lambda: c.process_vm_writev(parent, memory, 0, memory, 0, 0),
        "open the parent": lambda: c.syscall(_PIDFD_OPEN, parent, 0),
        "change the limits of the parent": lambda: c.prlimit(parent, 0, None, memory),
        "change the priority of the parent": lambda: c.setpriority(0, parent, 19),
        "open a socket": lambda: c.socket(2, 1, 0),
        "open a socket pair": lambda: c.socketpair(1, 1, 0, memory),
        "open a pipe": lambda: c.pipe(memory),
        "copy a file descriptor": lambda: c.dup(0),
        "start a process": lambda: c.fork(),
        "run a program": lambda: c.execv(b"/bin/true", (ctypes.c_char_p * 2)(b"/bin/true", None)),
        "share memory": lambda: c.shmget(0, 4096, 0o1600),
        "make a file in memory": lambda: c.memfd_create(b"x", 0),
        "use io_uring": lambda: c.syscall(_IO_URING_SETUP, 1, memory),
        "be dumpable again": lambda: c.prctl(_SET_DUMPABLE, 1, 0, 0, 0),
        "replace the filter": lambda: c.prctl(_SET_SECCOMP, 1, 0, 0, 0),
        "become root": lambda: c.setuid(0),
        "call by the other convention of the machine": lambda: c.syscall(_GET_PID | _X32),
    }


def _tgkill() -> int:
    return 234 if os.uname().machine == "x86_64" else 131


def _outcome(attack: Attack) -> str:
    """Run an attack in its own process and return the outcome."""
    child = os.fork()
    if child == 0:
        drop_privileges(ScriptLimits())
        ctypes.set_errno(0)
        os._exit(ctypes.get_errno() if attack() == -1 else 0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return errno.errorcode.get(os.WEXITSTATUS(status), "done")


def main(folder: str) -> None:
    """Print the outcomes of all attacks."""
    victim, other = (os.path.join(folder, name).encode() for name in ("victim", "other"))
    print(json.dumps({name: _outcome(attack) for name, attack in _attacks(victim, other, os.getpid()).items()}))


if __name__ == "__main__":
    main(sys.argv[1])
