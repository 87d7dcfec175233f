"""Becomes a service: ties its life to the supervisor's and, for PostgreSQL under root, steps down from root.

Run as a program of its own (`python launch.py ... -- command`) rather than in `preexec_fn`, which may
deadlock in a process with threads. Linux only; standard library only, so that it starts in milliseconds.
"""

import argparse
import ctypes
import os
import pwd
import struct
import sys

PR_SET_PDEATHSIG = 1
PR_SET_KEEPCAPS = 8
PR_SET_SECUREBITS = 28
SECBIT_NO_SETUID_FIXUP = 4
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE = 2
CAPABILITY_VERSION_3 = 0x20080522
# Either lets the stepped-down process reach its own files below folders that only root may enter
# (/root is 0700 on most systems). Reading suffices; containers often hold only the second.
CAP_DAC_READ_SEARCH = 2
CAP_DAC_OVERRIDE = 1
SYS_CAPSET = {"x86_64": 126, "aarch64": 91}

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def _permitted() -> int:
    with open("/proc/self/status") as handle:  # noqa: PTH123 - pathlib would double this program's start
        for line in handle:
            if line.startswith("CapPrm:"):
                return int(line.split()[1], 16)
    return 0


def step_down(user: str) -> None:
    """Become `user`, with nothing left of root but the right to walk to its own files."""
    entry = pwd.getpwnam(user)
    wanted = next((c for c in (CAP_DAC_READ_SEARCH, CAP_DAC_OVERRIDE) if _permitted() >> c & 1), None)
    os.setgroups([])
    # access(2), by which PostgreSQL looks for its own programs, leaves capabilities out of account without
    # this bit. Refused in some containers, where the way to those programs must then be open to all.
    _libc.prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP, 0, 0, 0)
    _check(_libc.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0), "prctl(PR_SET_KEEPCAPS)")
    os.setresgid(entry.pw_gid, entry.pw_gid, entry.pw_gid)
    os.setresuid(entry.pw_uid, entry.pw_uid, entry.pw_uid)
    mask = 0 if wanted is None else 1 << wanted
    header = ctypes.create_string_buffer(struct.pack("<Ii", CAPABILITY_VERSION_3, 0))
    # Effective, permitted, inheritable of capabilities 0-31, then the same of 32-63.
    sets = ctypes.create_string_buffer(struct.pack("<6I", mask, mask, mask, 0, 0, 0))
    number = SYS_CAPSET[os.uname().machine]
    _check(_libc.syscall(number, header, sets), "capset")
    if wanted is not None:
        raised = _libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, wanted, 0, 0)
        _check(raised, "prctl(PR_CAP_AMBIENT_RAISE)")


def main() -> None:
    """Prepare this process as the options say, and replace it by the command."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--parent", type=int, help="end when this process, the supervisor, is gone")
    parser.add_argument("--death-signal", type=int, default=15)
    parser.add_argument("--user")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    if options.user:
        step_down(options.user)  # before PR_SET_PDEATHSIG, which a change of user clears
    if options.parent is not None:
        _check(_libc.prctl(PR_SET_PDEATHSIG, options.death_signal, 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")
        if os.getppid() != options.parent:
            sys.exit("the supervisor has gone")
    os.execv(options.command[0], options.command)  # noqa: S606 - there is no shell to involve


if __name__ == "__main__":
    main()
