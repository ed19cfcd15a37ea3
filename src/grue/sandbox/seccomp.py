"""The system calls that a boxed program may not make, and the BPF program that refuses them.

Landlock limits files, TCP and a few other things; this filter limits what Landlock cannot. It sees the
numbers in a call's registers but no memory, so it can compare flags and protocols, not paths or addresses.
"""

import functools
import platform
import struct
from collections.abc import Sequence

from msgspec import Struct

EPERM, EACCES, ENOSYS, EOPNOTSUPP = 1, 13, 38, 95

_ALLOW, _ERRNO, _NOTIFY, _KILL = 0x7FFF0000, 0x00050000, 0x7FC00000, 0x80000000
_REFUSE = _ERRNO | EPERM
_LOAD, _EQUAL, _AND, _RETURN, _AT_LEAST, _JUMP = 0x20, 0x15, 0x54, 0x06, 0x35, 0x05
_NR, _ARCH, _ARGS = 0, 4, 16

_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_SOCK_TYPE = 0xF
_STREAM, _DGRAM, _RAW, _SEQPACKET = 1, 2, 3, 5
_IPPROTO_TCP, _IPPROTO_UDP = 6, 17
_NAMESPACES = 0x7E020080  # CLONE_NEW{USER,PID,NET,IPC,UTS,CGROUP,NS,TIME}
_RLIMIT_RTTIME = 15
_PRIO_PROCESS, _IOPRIO_WHO_PROCESS = 0, 1
_SOL_SOCKET, _SO_BINDTODEVICE, _SO_BINDTOIFINDEX = 1, 25, 62
_IPPROTO_IP, _IP_OPTIONS = 0, 4
_IPPROTO_IPV6, _IPV6_2292PKTOPTIONS, _IPV6_RTHDR = 41, 6, 57
_ROUTES = (
    (_SOL_SOCKET, _SO_BINDTODEVICE),
    (_SOL_SOCKET, _SO_BINDTOIFINDEX),
    (_IPPROTO_IP, _IP_OPTIONS),
    (_IPPROTO_IPV6, _IPV6_2292PKTOPTIONS),
    (_IPPROTO_IPV6, _IPV6_RTHDR),
)
"""Levels and options of `setsockopt` that decide which way packets go."""

_MSG_FASTOPEN = 0x20000000
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_FS_IOC_SETFLAGS, _FS_IOC32_SETFLAGS = 0x40086602, 0x40046602
_FS_IOC_FSSETXATTR, _FS_IOC_ENABLE_VERITY = 0x401C5820, 0x40806685
_FS_FLAGS = (_FS_IOC_SETFLAGS, _FS_IOC32_SETFLAGS, _FS_IOC_FSSETXATTR, _FS_IOC_ENABLE_VERITY)
_FARTHEST = 255  # how many instructions a conditional jump can skip at most


class Machine(Struct, frozen=True):
    """The kernel's numbers for one kind of processor."""

    audit: int  # the number of the architecture (`AUDIT_ARCH_...`)
    x32: bool  # whether a second set of system calls exists; all of these are refused
    calls: dict[str, int]

    def __hash__(self) -> int:
        return hash(self.audit)


_X86_64 = """
socket=41 connect=42 sendto=44 sendmsg=46 socketpair=53 clone=56 shmget=29 shmat=30 semget=64 msgget=68
ptrace=101 syslog=103 setrlimit=160 chroot=161 acct=163 settimeofday=164 mount=165 umount2=166 swapon=167
swapoff=168 reboot=169 sethostname=170 setdomainname=171 iopl=172 ioperm=173 init_module=175
delete_module=176 quotactl=179 pivot_root=155 ioctl=16 clock_settime=227 mq_open=240 kexec_load=246
add_key=248 request_key=249 keyctl=250 unshare=272 open_by_handle_at=304 setns=308 process_vm_readv=310
process_vm_writev=311 kcmp=312 finit_module=313 bpf=321 kexec_file_load=320 userfaultfd=323
perf_event_open=298 fanotify_init=300 prlimit64=302 sendmmsg=307 execveat=322 open=2 openat=257 openat2=437
execve=59 creat=85 mkdir=83 mkdirat=258 unlink=87 unlinkat=263 rmdir=84 rename=82 renameat=264 renameat2=316
link=86 linkat=265 symlink=88 symlinkat=266 truncate=76 listen=50 setsockopt=54 shmctl=31 semop=65
semctl=66 semtimedop=220 msgsnd=69 msgrcv=70 msgctl=71 setxattr=188 lsetxattr=189 fsetxattr=190
removexattr=197 lremovexattr=198 fremovexattr=199 setpriority=141 ioprio_set=251 sched_setparam=142
sched_setscheduler=144 sched_setaffinity=203 sched_setattr=314 inotify_add_watch=254 mq_unlink=241
"""
_AARCH64 = """
socket=198 connect=203 sendto=206 sendmsg=211 socketpair=199 clone=220 shmget=194 shmat=196 semget=190
msgget=186 ptrace=117 syslog=116 setrlimit=164 chroot=51 acct=89 settimeofday=170 mount=40 umount2=39
swapon=224 swapoff=225 reboot=142 sethostname=161 setdomainname=162 init_module=105 delete_module=106
quotactl=60 pivot_root=41 ioctl=29 clock_settime=112 mq_open=180 kexec_load=104 add_key=217 request_key=218
keyctl=219 unshare=97 open_by_handle_at=265 setns=268 process_vm_readv=270 process_vm_writev=271 kcmp=272
finit_module=273 bpf=280 kexec_file_load=294 userfaultfd=282 perf_event_open=241 fanotify_init=262
prlimit64=261 sendmmsg=269 execveat=281 openat=56 openat2=437 execve=221 mkdirat=34 unlinkat=35
renameat2=276 renameat=38 linkat=37 symlinkat=36 truncate=45 listen=201 setsockopt=208 shmctl=195
semop=193 semctl=191 semtimedop=192 msgsnd=189 msgrcv=188 msgctl=187 setxattr=5 lsetxattr=6 fsetxattr=7
removexattr=14 lremovexattr=15 fremovexattr=16 setpriority=140 ioprio_set=30 sched_setparam=118
sched_setscheduler=119 sched_setaffinity=122 sched_setattr=274 inotify_add_watch=27 mq_unlink=181
"""
_EVERYWHERE = """
open_tree=428 move_mount=429 fsopen=430 fsconfig=431 fsmount=432 fspick=433 mount_setattr=442
io_uring_setup=425 io_uring_enter=426 io_uring_register=427 pidfd_getfd=438 process_madvise=440 clone3=435
quotactl_fd=443 open_tree_attr=467 setxattrat=463 removexattrat=466 file_setattr=469
"""


def _calls(text: str) -> dict[str, int]:
    named = (entry.partition("=") for entry in f"{text} {_EVERYWHERE}".split())
    return {name: int(number) for name, _, number in named}


MACHINES = {
    "x86_64": Machine(0xC000003E, x32=True, calls=_calls(_X86_64)),
    "aarch64": Machine(0xC00000B7, x32=False, calls=_calls(_AARCH64)),
}


def machine() -> Machine | None:
    """Return the system call numbers of this machine's processor; `None`: an unknown processor."""
    return MACHINES.get(platform.machine())


def known_machine() -> Machine:
    """Return `machine()`, which is not `None` where `coverage` says that grue can make boxes."""
    here = machine()
    assert here is not None, "`coverage` says that the processor is known"
    return here


REFUSED = {
    # These calls read or change other processes of this user.
    "ptrace process_vm_readv process_vm_writev kcmp pidfd_getfd process_madvise": EPERM,
    # An io_uring opens files and sockets without a system call that a filter could see.
    "io_uring_setup io_uring_enter io_uring_register": ENOSYS,
    # These calls change which file a path leads to, and Landlock's rules are made from paths.
    "mount umount2 pivot_root chroot open_tree open_tree_attr move_mount fsopen fsconfig fsmount fspick"
    " mount_setattr setns": EPERM,
    "open_by_handle_at": EPERM,  # it opens a file by a handle, without a path
    "add_key request_key keyctl": EPERM,  # the user's keyrings hold credentials of other programs
    # These calls can observe the whole machine, or are used by many exploits of the kernel.
    "bpf perf_event_open userfaultfd fanotify_init": EPERM,
    # These calls administer the machine. This matters if grue runs as root.
    "init_module finit_module delete_module kexec_load kexec_file_load reboot swapon swapoff acct quotactl"
    " quotactl_fd settimeofday clock_settime sethostname setdomainname iopl ioperm syslog": EPERM,
    # These calls use memory, semaphores and queues that programs of this user share, and that are not files.
    # The id of a shared memory segment (`shmat`) is a small number, which a program could guess.
    "shmget shmat shmctl semget semop semtimedop semctl msgget msgsnd msgrcv msgctl mq_open mq_unlink": EPERM,
    # Access lists of files are attributes, and Landlock has no rule for attributes. The errno is that of a
    # file system without attributes; programs that copy files ignore it.
    "setxattr lsetxattr fsetxattr setxattrat removexattr lremovexattr fremovexattr removexattrat"
    " file_setattr": EOPNOTSUPP,
    # The flags of `clone3` cannot be seen, and may ask for a new user namespace. After ENOSYS, glibc uses
    # `clone`, whose flags are in a register: `_conditions` checks them.
    "clone3": ENOSYS,
}
"""System calls that are refused whatever their arguments, each group with its errno."""


class Wanted(Struct, frozen=True, kw_only=True):
    """The parts of a box on which its seccomp filter depends."""

    network: str  # `none`; `tcp`: only TCP, which the `Gate` decides about; `any`: TCP and UDP
    unix_sockets: bool = False
    watches: bool = False  # whether the program may watch any folder with inotify
    ask: tuple[str, ...] = ()  # system calls about which the filter asks the `Gate`


@functools.lru_cache
def program(here: Machine, wanted: Wanted) -> bytes:
    """Return a box's filter as a BPF program for the machine `here`: 8 bytes an instruction."""
    calls = here.calls
    code = [
        _stmt(_LOAD, _ARCH),
        # Kill a program that makes calls of another architecture, where numbers stand for other calls.
        _jump(_EQUAL, here.audit, 1, 0),
        _stmt(_RETURN, _KILL),
        _stmt(_LOAD, _NR),
    ]
    if here.x32:
        code += [_jump(_AT_LEAST, 0x40000000, 0, 1), _stmt(_RETURN, _ERRNO | ENOSYS)]
    checks = {
        name: [_stmt(_RETURN, _ERRNO | error)] for names, error in REFUSED.items() for name in names.split()
    }
    checks |= _conditions(wanted)
    checks |= {name: [_stmt(_RETURN, _NOTIFY)] for name in wanted.ask}
    numbered = sorted((calls[name], then) for name, then in checks.items() if name in calls)
    rows = [(0, [_stmt(_RETURN, _ALLOW)])]
    for number, then in numbered:
        if rows[-1][0] == number:
            rows.pop()
        if not rows or rows[-1][1] != then:
            rows.append((number, then))
        rows.append((number + 1, [_stmt(_RETURN, _ALLOW)]))
    return b"".join([*code, *_search(rows)])


def _search(rows: list[tuple[int, list[bytes]]]) -> list[bytes]:
    """Return BPF code that finds the last row whose number is not above the system call's, and runs its code.

    The search is binary, so that a box starts fast: the kernel runs a new filter once for each possible call.
    """
    if len(rows) == 1:
        return rows[0][1]
    half = len(rows) // 2
    below, above = _search(rows[:half]), _search(rows[half:])
    if len(below) <= _FARTHEST:
        return [_jump(_AT_LEAST, rows[half][0], len(below), 0), *below, *above]
    return [_jump(_AT_LEAST, rows[half][0], 0, 1), _stmt(_JUMP, len(below)), *below, *above]


def calls_program(here: Machine, calls: tuple[str, ...]) -> bytes:
    """Return a BPF program that reports the system calls `calls` to the listener and allows all others."""
    code = [_stmt(_LOAD, _ARCH), _jump(_EQUAL, here.audit, 1, 0), _stmt(_RETURN, _ALLOW), _stmt(_LOAD, _NR)]
    for name in calls:
        code += [_jump(_EQUAL, here.calls[name], 0, 1), _stmt(_RETURN, _NOTIFY)]
    return b"".join([*code, _stmt(_RETURN, _ALLOW)])


def _conditions(wanted: Wanted) -> dict[str, list[bytes]]:
    found = {
        "socket": _sockets(wanted),
        "socketpair": _pairs(wanted),
        # In a new user namespace a program has all capabilities, so it could use functions that the kernel
        # otherwise keeps for root, such as mounts and firewall rules, and exploit the faults in them.
        "clone": _only_if(_is(0, 0, _NAMESPACES)),
        "unshare": _only_if(_is(0, 0, _NAMESPACES)),
        # RTTIME is grue's mark on a server's processes, by which `descendants.py` finds those left running.
        "setrlimit": _first([(_REFUSE, _is(0, _RLIMIT_RTTIME))], _ALLOW),
        "prlimit64": _limits(),
        # These calls can change other processes of this user. The id 0 is the calling thread.
        "setpriority": _only_if(_is(0, _PRIO_PROCESS), _is(1, 0)),
        "ioprio_set": _only_if(_is(0, _IOPRIO_WHO_PROCESS), _is(1, 0)),
        **{
            f"sched_{name}": _only_if(_is(0, 0))
            for name in ("setparam", "setscheduler", "setaffinity", "setattr")
        },
        # `_TIOC...` put input into the terminal, which the user's shell would run outside the box. Those of
        # `_FS_FLAGS` change flags of a file (`chattr`), also of one that the program may only read.
        "ioctl": _first([(_REFUSE, _is(1, each)) for each in (_TIOCSTI, _TIOCLINUX, *_FS_FLAGS)], _ALLOW),
    }
    if wanted.network != "any":
        # With `MSG_FASTOPEN` these calls also connect the socket, past the check of `connect` in `gate.py`.
        for name, flags in (("sendto", 3), ("sendmsg", 2), ("sendmmsg", 3)):
            found[name] = _only_if(_is(flags, 0, _MSG_FASTOPEN))
    if wanted.network == "tcp":
        # `listen` without `bind` opens a port that the kernel chooses, and Landlock only checks `bind`.
        found["listen"] = _first([], _ERRNO | EACCES)
        # A program can bind its socket to a device, or set a list of hops. Packets for 127.0.0.1, which the
        # gate may allow, then leave this machine; if nobody answers them, the gate waits for minutes.
        routes = [(_REFUSE, _is(1, level), _is(2, option)) for level, option in _ROUTES]
        found["setsockopt"] = _first(routes, _ALLOW)
    if not wanted.watches:
        # Refuse inotify: it shows which files are used in any folder, and Landlock does not limit it.
        found["inotify_add_watch"] = _first([], _ERRNO | EACCES)
    return found


def _sockets(wanted: Wanted) -> list[bytes]:
    rows: list[tuple[int, int, int]] = []
    if wanted.unix_sockets:
        rows += [(_AF_UNIX, kind, 0) for kind in (_STREAM, _DGRAM, _SEQPACKET)]
    if wanted.network != "none":
        # Landlock's rules for TCP do not apply to raw sockets, MPTCP, SCTP, SMC, VSOCK and others.
        rows += [(family, _STREAM, ip) for family in (_AF_INET, _AF_INET6) for ip in (0, _IPPROTO_TCP)]
        rows += [(_AF_NETLINK, kind, 0) for kind in (_DGRAM, _RAW)]  # 0: NETLINK_ROUTE, to list interfaces
    if wanted.network == "any":
        rows += [(family, _DGRAM, ip) for family in (_AF_INET, _AF_INET6) for ip in (0, _IPPROTO_UDP)]
    allowed = [(_ALLOW, _is(0, family), _is(1, kind, _SOCK_TYPE), _is(2, ip)) for family, kind, ip in rows]
    return _first(allowed, _ERRNO | EACCES)


def _pairs(wanted: Wanted) -> list[bytes]:
    # A pair of datagram sockets needs `unix_sockets`: with `sendto`, either one reaches any Unix socket.
    kinds = (_STREAM, _SEQPACKET, *((_DGRAM,) if wanted.unix_sockets else ()))
    unix = _is(0, _AF_UNIX)
    rows: list[_Row] = [(_ALLOW, unix, _is(1, kind, _SOCK_TYPE)) for kind in kinds]
    return _first([*rows, (_ERRNO | EACCES, unix)], _REFUSE)


def _limits() -> list[bytes]:
    # `prlimit64(pid, limit, new, old)`: refuse any `pid` but 0, and a `new` RTTIME. `new` is a pointer, so
    # check both halves: the lower half of a valid address can be 0 too.
    own, of_rttime = _is(0, 0), _is(1, _RLIMIT_RTTIME)
    rows: list[_Row] = [(_ALLOW, own, _is(2, 0), _is(2, 0, upper=True)), (_REFUSE, own, of_rttime)]
    return _first([*rows, (_ALLOW, own)], _REFUSE)


_Condition = tuple[int, int, int]  # place of a half of an argument, bits of it to compare, their value
_Row = tuple[int, *tuple[_Condition, ...]]  # a verdict, and the conditions for it


def _is(argument: int, value: int, bits: int = 0xFFFFFFFF, *, upper: bool = False) -> _Condition:
    # The lower half comes first: x86-64 and ARM64 are little-endian.
    return _ARGS + 8 * argument + 4 * upper, bits, value


def _only_if(*conditions: _Condition) -> list[bytes]:
    return _first([(_ALLOW, *conditions)], _REFUSE)


def _first(rows: Sequence[_Row], otherwise: int) -> list[bytes]:
    """Return BPF code with the verdict of the first row whose conditions all hold, else `otherwise`."""
    code: list[bytes] = []
    for verdict, *conditions in rows:
        then = [_stmt(_RETURN, verdict)]
        for place, bits, value in reversed(conditions):
            then = [_stmt(_LOAD, place), _stmt(_AND, bits), _jump(_EQUAL, value, 0, len(then)), *then]
        code += then
    return [*code, _stmt(_RETURN, otherwise)]


def _stmt(code: int, value: int) -> bytes:
    return struct.pack("<HBBI", code, 0, 0, value)


def _jump(code: int, value: int, if_true: int, if_false: int) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, value)
