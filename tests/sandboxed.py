"""Runs a command inside a real sandbox: `python sandboxed.py RULE… -- COMMAND…`.

write-only=DIR    writing is allowed below DIR (and /dev) only, as agents' sandboxes on Linux do it (Landlock)
no-sockets        connect() fails with EPERM, as under a seccomp profile that forbids the network and Unix sockets
no-privilege      modes count, also for root: no capability is left

Written from the kernel's documentation; nothing of the package is imported.
"""

import ctypes
import os
import platform
import struct
import sys
from collections.abc import Sequence

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
_LANDLOCK_CREATE_RULESET, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG, _PATH_BENEATH = 1, 1
# Writing, removing and making of every kind (Landlock's first version), and with later ones renaming and truncating.
_WRITES = {1: 0x1FF2, 2: 0x3FF2, 3: 0x7FF2}
_CONNECT = {"x86_64": 42, "aarch64": 203}
_CAPABILITY_VERSION_3 = 0x20080522


def landlock_version() -> int:
    """Which version of Landlock the kernel has; below 1: none."""
    if sys.platform != "linux":
        return 0
    return int(_libc().syscall(_LANDLOCK_CREATE_RULESET, None, 0, _VERSION_FLAG))


def can_forbid_sockets() -> bool:
    return sys.platform == "linux" and platform.machine() in _CONNECT


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def _no_new_privileges() -> None:
    _checked(_libc().prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))


def write_only(directories: Sequence[str]) -> None:
    libc, rights = _libc(), _WRITES[min(landlock_version(), 3)]
    handled = ctypes.create_string_buffer(struct.pack("=Q", rights), 8)
    ruleset = _checked(libc.syscall(_LANDLOCK_CREATE_RULESET, handled, ctypes.c_size_t(8), 0))
    for directory in directories:
        where = os.open(directory, os.O_PATH | os.O_DIRECTORY)
        rule = ctypes.create_string_buffer(struct.pack("=Qi", rights, where), 12)
        _checked(libc.syscall(_LANDLOCK_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0))
        os.close(where)
    _no_new_privileges()
    _checked(libc.syscall(_LANDLOCK_RESTRICT_SELF, ruleset, 0))
    os.close(ruleset)


def no_sockets() -> None:
    load_number, if_equal, answer = 0x20, 0x15, 0x06
    allowed, refused = 0x7FFF0000, 0x00050000 | 1  # EPERM
    program = b"".join(
        struct.pack("=HBBI", *instruction)
        for instruction in (
            (load_number, 0, 0, 0),
            (if_equal, 0, 1, _CONNECT[platform.machine()]),
            (answer, 0, 0, refused),
            (answer, 0, 0, allowed),
        )
    )
    code = ctypes.create_string_buffer(program, len(program))
    header = ctypes.create_string_buffer(struct.pack("@HP", len(program) // 8, ctypes.addressof(code)))
    _no_new_privileges()
    _checked(_libc().prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, header, 0, 0))


def no_privilege() -> None:
    if os.geteuid() != 0 or sys.platform != "linux":
        return  # modes count for everybody but root
    _no_new_privileges()
    _checked(_libc().prctl(24, 1, 0, 0, 0))  # PR_CAPBSET_DROP CAP_DAC_OVERRIDE, or the exec would give it back
    _checked(_libc().prctl(24, 2, 0, 0, 0))  # CAP_DAC_READ_SEARCH
    header = ctypes.create_string_buffer(struct.pack("=Ii", _CAPABILITY_VERSION_3, 0), 8)
    _checked(_libc().capset(header, ctypes.create_string_buffer(24)))


def main(words: Sequence[str]) -> None:
    split = words.index("--")
    rules, command = words[:split], words[split + 1 :]
    if directories := [rule.partition("=")[2] for rule in rules if rule.startswith("write-only=")]:
        write_only([*directories, "/dev"])
    if "no-privilege" in rules:
        no_privilege()
    if "no-sockets" in rules:
        no_sockets()
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
