"""A process that reads a stranger's evidence gives up what it does not need, for good: before it reads.

With Landlock (Linux 5.13; TCP from 6.7) it opens no file but those below the paths that it names; with seccomp it
starts no program, opens no socket, looks into no process and sends no signal. Both hold for good.
Where the kernel has one of them not, the other holds, and `confine` says which. Standard library only.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import struct
from collections.abc import Iterable
from pathlib import Path

NO_NEW_PRIVILEGES = "no new privileges"
LANDLOCK = "Landlock"
SECCOMP = "seccomp"
ALL = (NO_NEW_PRIVILEGES, LANDLOCK, SECCOMP)
_libc = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_NO_NEW_PRIVS = 38

# ---- Landlock: the numbers are the same on all machines --------------------------------------------------------------

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION = 1
_BELOW_PATH = 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | 1 << 14 | 1 << 15
_RIGHTS_BY_VERSION = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""How many rights over files each version knows: what a ruleset does not handle stays allowed."""
_TCP_FROM, _SCOPES_FROM = 4, 6


def landlock_version() -> int:
    """0 where the kernel does not have it, or does not let us use it."""
    if platform.system() != "Linux":
        return 0
    return max(0, int(_libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(_VERSION))))


def _landlock(reads: Iterable[Path], writes: Iterable[Path]) -> bool:
    version = landlock_version()
    if version < 1:
        return False
    rights = (1 << _RIGHTS_BY_VERSION.get(version, 16)) - 1
    words = [rights]
    if version >= _TCP_FROM:
        words.append(3)  # neither bind nor connect
    if version >= _SCOPES_FROM:
        words.append(3)  # neither abstract sockets nor signals of others
    attributes = struct.pack(f"={len(words)}Q", *words)
    rules = int(_libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint(0)))
    if rules < 0:
        return False
    try:
        allowed = [(path, _READ_FILE | _READ_DIR) for path in reads]
        allowed += [(path, rights & ~_EXECUTE) for path in writes]
        for path, given in allowed:
            _allow(rules, path, given & rights)
        return int(_libc.syscall(_RESTRICT_SELF, ctypes.c_int(rules), ctypes.c_uint(0))) == 0
    finally:
        os.close(rules)


def _allow(rules: int, path: Path, rights: int) -> None:
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # what is not there needs no leave
    try:
        given = rights if path.is_dir() else rights & _OF_FILES
        rule = struct.pack("=Qi", given, handle)
        _libc.syscall(_ADD_RULE, ctypes.c_int(rules), ctypes.c_uint(_BELOW_PATH), rule, ctypes.c_uint(0))
    finally:
        os.close(handle)


# ---- seccomp ---------------------------------------------------------------------------------------------------------

_DENIED = {
    # programs, other processes, signals
    "execve": (59, 221),
    "execveat": (322, 281),
    "fork": (57, None),
    "vfork": (58, None),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424),
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "process_madvise": (440, 440),
    # the network
    "socket": (41, 198),
    "connect": (42, 203),
    "bind": (49, 200),
    "listen": (50, 201),
    "accept": (43, 202),
    "accept4": (288, 242),
    # what only helps whoever attacks the kernel
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "open_by_handle_at": (304, 265),
    "personality": (135, 92),
}
"""System calls by their numbers on x86-64 and on AArch64."""
_MACHINES = {"x86_64": (0, 0xC000003E, 317, 56), "aarch64": (1, 0xC00000B7, 277, 220)}
"""Column of the table above, the kernel's name for the machine, and the numbers of `seccomp` and `clone`."""
_CLONE3 = 435
_X32 = 0x40000000
_OFFSET_OF_NUMBER, _OFFSET_OF_MACHINE, _OFFSET_OF_FLAGS = 0, 4, 16
"""In what the kernel shows of a call; flags are its first argument."""
_CLONE_THREAD = 0x10000
_LOAD, _IS, _AT_LEAST, _HAS_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_EPERM, _ENOSYS = 1, 38
_SET_FILTER, _ALL_THREADS = 1, 1


def _seccomp() -> bool:
    machine = _MACHINES.get(platform.machine())
    if machine is None or platform.system() != "Linux":
        return False
    column, architecture, seccomp, clone = machine
    numbers = sorted(number for row in _DENIED.values() if (number := row[column]) is not None)
    # Each line is a test, and where to go on if it holds and if it does not; "" is the next line.
    lines: list[tuple[int, str, str, int]] = [
        (_LOAD, "", "", _OFFSET_OF_MACHINE),
        (_IS, "", "refuse", architecture),
        (_LOAD, "", "", _OFFSET_OF_NUMBER),
        (_AT_LEAST, "refuse", "", _X32),
        *((_IS, "refuse", "", number) for number in numbers),
        (_IS, "not there", "", _CLONE3),  # the C library then takes `clone`, whose flags can be seen here
        (_IS, "", "allow", clone),
        (_LOAD, "", "", _OFFSET_OF_FLAGS),
        (_HAS_BIT, "allow", "refuse", _CLONE_THREAD),
        (_RETURN, "", "", _ALLOW),
        (_RETURN, "", "", _ERRNO | _EPERM),
        (_RETURN, "", "", _ERRNO | _ENOSYS),
    ]
    ends = {"allow": len(lines) - 3, "refuse": len(lines) - 2, "not there": len(lines) - 1}
    code = b""
    for at, (test, if_so, if_not, value) in enumerate(lines):
        jumps = [ends.get(label, at + 1) - at - 1 for label in (if_so, if_not)]
        code += struct.pack("=HBBI", test, *jumps, value)
    filters = ctypes.create_string_buffer(code)
    given = _Program(len(lines), ctypes.cast(filters, ctypes.c_void_p))
    answer = _libc.syscall(seccomp, ctypes.c_uint(_SET_FILTER), ctypes.c_uint(_ALL_THREADS), ctypes.byref(given))
    return int(answer) == 0


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filters", ctypes.c_void_p))


# ---- together --------------------------------------------------------------------------------------------------------


def confine(reads: Iterable[Path], writes: Iterable[Path]) -> tuple[str, ...]:
    """From now on this process gets no new privileges, and where the kernel can do that, it may read below `reads`,
    write below `writes`, and do nothing else to the world. Returns what holds. Called while there is one
    thread: Landlock reaches no other."""
    holds = []
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0:
        holds.append(NO_NEW_PRIVILEGES)
        if _landlock(reads, writes):
            holds.append(LANDLOCK)
        if _seccomp():
            holds.append(SECCOMP)
    return tuple(holds)


def end_with_parent() -> None:
    """Be killed when the thread that started us ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def hide_from_own_user() -> None:
    """Let no other process of this user read our memory and environment: passwords may be in both."""
    _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
