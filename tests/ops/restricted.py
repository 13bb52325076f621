"""Runs a command under the restrictions that our systemd units make, as far as this machine lets us.

    python restricted.py HOME WRITABLE[:WRITABLE…] COMMAND…

Always: no new privileges, 4,096 descriptors, umask 0077. On Linux, where they are known for the machine, the system
call filters for RestrictAddressFamilies=AF_UNIX and MemoryDenyWriteExecute=yes, as systemd itself makes them. With the
right to it, a mount namespace in which all but the writable directories below HOME is read-only; as root, an empty
capability bounding set. The first line on standard error says in JSON what is in force; then COMMAND takes over.
"""

import ctypes
import json
import os
import platform
import resource
import socket
import struct
import sys

LIBC = ctypes.CDLL(None, use_errno=True)
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP = 24, 38, 22
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
CALLS = {"x86_64": (41, 9, 10), "aarch64": (198, 222, 226)}
"""The numbers of socket, mmap and mprotect."""
PROT_WRITE, PROT_EXEC = 2, 4
LOAD, EQUAL, ANY, AND, RETURN = 0x20, 0x15, 0x45, 0x54, 0x06
ALLOW, EPERM, EAFNOSUPPORT = 0x7FFF0000, 0x50000 | 1, 0x50000 | 97


def call(function: str, *arguments: object) -> bool:
    """Whether a function of the C library succeeded."""
    return bool(getattr(LIBC, function)(*arguments) == 0)


def instruction(code: int, k: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("HBBI", code, yes, no, k)


def rule(number: int, argument: int, *judge: bytes) -> bytes:
    """For the system call `number`: load one of its arguments and judge it; the others go on."""
    body = instruction(LOAD, 16 + 8 * argument) + b"".join(judge) + instruction(RETURN, ALLOW)
    return instruction(EQUAL, number, 0, len(body) // 8) + body


def program(sock: int, mmap: int, mprotect: int) -> bytes:
    write_exec = PROT_WRITE | PROT_EXEC
    return b"".join(
        (
            instruction(LOAD, 0),
            rule(sock, 0, instruction(EQUAL, socket.AF_UNIX, 1, 0), instruction(RETURN, EAFNOSUPPORT)),
            rule(
                mmap,
                2,
                instruction(AND, write_exec),
                instruction(EQUAL, write_exec, 0, 1),
                instruction(RETURN, EPERM),
            ),
            rule(mprotect, 2, instruction(ANY, PROT_EXEC, 0, 1), instruction(RETURN, EPERM)),
            instruction(RETURN, ALLOW),
        )
    )


def filter_calls() -> bool:
    numbers = CALLS.get(platform.machine())
    if numbers is None:
        return False
    code = ctypes.create_string_buffer(program(*numbers))
    address = ctypes.addressof(code)
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", (len(code) - 1) // 8, address))
    return call("prctl", PR_SET_SECCOMP, 2, ctypes.byref(header), 0, 0)


def mount(place: str, flags: int) -> bool:
    return call("mount", place.encode(), place.encode(), None, ctypes.c_ulong(flags), None)


def read_only(home: str, writable: list[str]) -> bool:
    try:
        namespaces = 0x00020000 | (0 if os.geteuid() == 0 else 0x10000000)
        uid, gid = os.geteuid(), os.getegid()
        if not call("unshare", namespaces):
            return False
        if uid:
            for name, text in (("uid_map", f"{uid} {uid} 1"), ("setgroups", "deny"), ("gid_map", f"{gid} {gid} 1")):
                with open(f"/proc/self/{name}", "w") as file:
                    file.write(text)
    except OSError:
        return False
    return (
        mount("/", MS_REC | MS_PRIVATE)
        and mount(home, MS_BIND)
        and all(mount(place, MS_BIND) for place in writable)
        and mount(home, MS_REMOUNT | MS_BIND | MS_RDONLY)
    )


def drop_capabilities() -> bool:
    """Empty the bounding set and all others, so that root is a user like any other."""
    if os.geteuid() != 0:
        return False
    dropped = [call("prctl", PR_CAPBSET_DROP, number, 0, 0, 0) for number in range(41)]
    header = struct.pack("Ii", 0x20080522, 0)
    return any(dropped) and call("capset", header, bytes(24))


def main(home: str, writable: str, *command: str) -> None:
    in_force = {
        "read_only": sys.platform == "linux" and read_only(home, writable.split(":")),
        "capabilities": sys.platform == "linux" and drop_capabilities(),
        "privileges": sys.platform == "linux" and call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        "calls": sys.platform == "linux" and filter_calls(),
    }
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    os.umask(0o077)
    print(json.dumps(in_force), file=sys.stderr, flush=True)
    os.execvp(command[0], command)


main(*sys.argv[1:])
