"""The filter is run by a small interpreter of BPF here, for both processors; the kernel runs it in
tests/integration/sandbox."""

import itertools
import struct

import pytest

from grue.sandbox import seccomp
from grue.sandbox.seccomp import MACHINES, REFUSED, Machine, Wanted, program

ALLOWED, ASKED, KILLED = 0x7FFF0000, 0x7FC00000, 0x80000000


def verdict(here: Machine, wanted: Wanted, name: str | int, *args: int, audit: int | None = None) -> int:
    number = name if isinstance(name, int) else here.calls[name]
    padded = [*args, 0, 0, 0, 0, 0, 0][:6]
    return run(program(here, wanted), struct.pack("<IIQ6Q", number, audit or here.audit, 0, *padded))


def run(code: bytes, data: bytes) -> int:
    at = accumulator = 0
    while True:
        op, true, false, value = struct.unpack_from("<HBBI", code, 8 * at)
        at += 1
        match op:
            case 0x20:
                (accumulator,) = struct.unpack_from("<I", data, value)
            case 0x54:
                accumulator &= value
            case 0x15:
                at += true if accumulator == value else false
            case 0x35:
                at += true if accumulator >= value else false
            case 0x05:
                at += value
            case 0x06:
                return value
            case _:
                raise AssertionError(f"unknown instruction {op:#x}")


def allowed(here: Machine, wanted: Wanted, name: str, *args: int) -> bool:
    return verdict(here, wanted, name, *args) == ALLOWED


@pytest.fixture(params=sorted(MACHINES))
def here(request: pytest.FixtureRequest) -> Machine:
    return MACHINES[request.param]


NONE, TCP, ANY = (Wanted(network=network) for network in ("none", "tcp", "any"))


def test_another_architecture_is_killed_and_x32_has_no_calls(here: Machine) -> None:
    assert verdict(here, ANY, 0, audit=0x40000003) == KILLED
    if here.x32:
        assert verdict(here, ANY, 0x40000000 + 41, 16, 3, 0) == 0x00050000 | 38


def test_what_is_longer_than_a_jump_reaches_is_jumped_over() -> None:
    load = seccomp._stmt(seccomp._LOAD, 0)
    rows = [(10 * number, [load] * 200 + [seccomp._stmt(seccomp._RETURN, number)]) for number in range(8)]
    code = b"".join([load, *seccomp._search(rows)])
    for call in range(80):
        assert run(code, struct.pack("<I", call)) == call // 10


def test_every_row_is_refused_whatever_else_is_wanted(here: Machine) -> None:
    for names, error in REFUSED.items():
        for name in names.split():
            if name in here.calls:
                assert verdict(here, ANY, name) == 0x00050000 | error, name


@pytest.mark.parametrize("name", ["socket", "clone", "ioctl", "connect"])
def test_an_ordinary_call_is_allowed(here: Machine, name: str) -> None:
    assert allowed(here, ANY, name, 2, 0x80001, 0)


def test_sockets_are_those_of_the_network_that_is_wanted(here: Machine) -> None:
    inet, inet6, unix, netlink, packet, vsock = 2, 10, 1, 16, 17, 40
    stream, dgram, raw = 1, 2, 3
    flags = 0x80000 | 0x800
    for family in (inet, inet6):
        assert [allowed(here, w, "socket", family, stream | flags, 0) for w in (NONE, TCP, ANY)] == [
            False,
            True,
            True,
        ]
        assert [allowed(here, w, "socket", family, dgram | flags, 17) for w in (NONE, TCP, ANY)] == [
            False,
            False,
            True,
        ]
        for kind, protocol in ((raw, 1), (stream, 262), (stream, 132), (dgram, 1), (5, 132)):
            assert not allowed(here, ANY, "socket", family, kind, protocol), (kind, protocol)
    for family in (packet, vsock, unix):
        assert not allowed(here, ANY, "socket", family, stream, 0)
    assert not allowed(here, ANY, "socket", netlink, raw, 15)
    assert [allowed(here, w, "socket", netlink, raw, 0) for w in (NONE, TCP, ANY)] == [False, True, True]
    assert allowed(here, Wanted(network="none", unix_sockets=True), "socket", unix, stream | flags, 0)
    assert allowed(here, NONE, "socketpair", unix, stream, 0)
    assert not allowed(here, ANY, "socketpair", 30, stream, 0)
    assert not allowed(here, ANY, "socketpair", unix, dgram | flags, 0), "it sends to any address"
    assert allowed(here, Wanted(network="none", unix_sockets=True), "socketpair", unix, dgram | flags, 0)


def test_arguments_decide_about_namespaces_limits_and_terminals(here: Machine) -> None:
    assert allowed(here, ANY, "clone", 0x1200011)
    assert not allowed(here, ANY, "clone", 0x10000000 | 17)
    assert not allowed(here, ANY, "unshare", 0x10000000)
    assert allowed(here, ANY, "unshare", 0x400)
    assert not allowed(here, ANY, "setrlimit", 15)
    assert allowed(here, ANY, "setrlimit", 7)
    assert not allowed(here, ANY, "prlimit64", 0, 15, 0x7FFF00001000)
    assert not allowed(here, ANY, "prlimit64", 0, 15, 5 << 32)
    assert not allowed(here, ANY, "prlimit64", 77, 7, 0x7FFF00001000)
    assert allowed(here, ANY, "prlimit64", 0, 15, 0)
    assert allowed(here, ANY, "setpriority", 0, 0, 5)
    assert not allowed(here, ANY, "setpriority", 2, 0, 5), "all processes of the user"
    assert not allowed(here, ANY, "setpriority", 0, 77, 5)
    assert allowed(here, ANY, "ioprio_set", 1, 0, 0)
    for name in ("setparam", "setscheduler", "setaffinity", "setattr"):
        assert [allowed(here, ANY, f"sched_{name}", pid) for pid in (0, 77)] == [True, False]
    assert allowed(here, ANY, "prlimit64", 0, 7, 0x7FFF00001000)
    for request in (0x5412, 0x541C, 0x40086602, 0x40046602, 0x401C5820, 0x40806685):
        assert not allowed(here, ANY, "ioctl", 0, request)
    for request in (0x5401, 0x80086601):
        assert allowed(here, ANY, "ioctl", 0, request)
    for name, at in (("sendto", 3), ("sendmsg", 2), ("sendmmsg", 3)):
        fast_open = [0] * at + [0x20000000]
        assert not allowed(here, TCP, name, *fast_open)
        assert allowed(here, ANY, name, *fast_open)
        assert allowed(here, TCP, name, 0)


def test_nothing_listens_and_no_route_is_set_where_hosts_are_listed(here: Machine) -> None:
    assert [allowed(here, wanted, "listen", 3, 9) for wanted in (NONE, TCP, ANY)] == [True, False, True]
    for level, option in ((1, 25), (1, 62), (0, 4), (41, 6), (41, 57)):
        assert [allowed(here, w, "setsockopt", 3, level, option) for w in (TCP, ANY)] == [False, True]
    for level, option in ((41, 26), (6, 6), (1, 9), (0, 1)):
        assert allowed(here, TCP, "setsockopt", 3, level, option)


@pytest.mark.parametrize("network", ["none", "tcp", "any"])
def test_every_combination_fits_into_a_filter_and_refuses_all_rows(here: Machine, network: str) -> None:
    for unix, watches, ask in itertools.product((False, True), (False, True), ((), ("connect", "listen"))):
        wanted = Wanted(network=network, unix_sockets=unix, watches=watches, ask=ask)
        assert len(program(here, wanted)) // 8 < 4096
        assert verdict(here, wanted, "ptrace") != ALLOWED
        assert verdict(here, wanted, 463) == 0x00050000 | 95
        assert verdict(here, wanted, 0xFFF) == ALLOWED


def test_folders_are_watched_only_if_that_is_wanted(here: Machine) -> None:
    assert not allowed(here, ANY, "inotify_add_watch", 3)
    assert allowed(here, Wanted(network="none", watches=True), "inotify_add_watch", 3)


def test_calls_that_are_asked_about_go_to_the_listener(here: Machine) -> None:
    assert verdict(here, Wanted(network="tcp", ask=("connect",)), "connect", 3) == ASKED
    assert verdict(here, TCP, "connect", 3) == ALLOWED
    listens = Wanted(network="tcp", unix_sockets=True, ask=("connect", "listen"))
    assert verdict(here, listens, "listen", 3) == ASKED
