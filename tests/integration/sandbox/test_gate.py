# ruff: noqa: E501 - tables
import errno
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import boxes
import pytest
from promises import GUARD_S

from grue.errors import SandboxError
from grue.runtime.processes.process_group import ProcessRegistry
from grue.sandbox import gate as gates
from grue.sandbox.box import HostPort, Sandbox
from grue.sandbox.gate import Gate
from grue.sandbox.launch import in_confined_thread
from grue.sandbox.learning import Watch, watching

needs_hosts = boxes.needs_hosts


@contextmanager
def server(answer: Callable[[bytes], bytes]) -> Iterator[tuple[int, list[bytes]]]:
    """A TCP server on loopback that answers what it reads first; yields its port and what it has read."""
    read: list[bytes] = []

    def serve() -> None:
        while True:
            try:
                client, _ = listening.accept()
            except OSError:
                return
            with client, suppress(OSError):  # the other side may have gone away
                data = client.recv(65536)
                read.append(data)
                if data:
                    client.sendall(answer(data))

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listening.getsockname()[1], read
        listening.shutdown(socket.SHUT_RDWR)


def http(_: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello"


FETCH = """
import sys, urllib.request
try: print(urllib.request.urlopen(sys.argv[1], timeout=60).read().decode())
except urllib.error.HTTPError as error: print(error.code, error.read().decode())
except OSError as error: print("failed", error)
"""
TUNNEL = """
import http.client, os, sys, urllib.parse
proxy = urllib.parse.urlsplit(os.environ["HTTPS_PROXY"])
link = http.client.HTTPConnection(proxy.hostname, proxy.port, timeout=60)
link.set_tunnel(sys.argv[1], int(sys.argv[2]))
try:
    link.request("GET", "/x"); print(link.getresponse().read().decode())
except OSError as error: print("failed", error)
"""
CONNECT = """
import socket, sys
try:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), 60) as s: s.sendall(b"x"); print(s.recv(9))
except OSError as error: print("failed", error)
"""


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Names that the proxy resolves, and to what."""
    known: dict[str, list[str]] = {}
    real = socket.getaddrinfo

    def look_up(host: str, port: int, *args: object, **options: object) -> object:
        found = known.get(host)
        if found is None:
            return real(host, port, *args, **options)  # type: ignore[arg-type]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return known


@needs_hosts
@pytest.mark.slow
def test_a_listed_host_is_reached_through_the_proxy(names: dict[str, list[str]]) -> None:
    names["api.example"] = ["127.0.0.1"]
    with server(http) as (port, read):
        box = Sandbox(network=(f"api.example:{port}", f"127.0.0.1:{port}"))
        assert boxes.python(box, FETCH, f"http://api.example:{port}/a?b=c").stdout == "hello\n"
        assert boxes.python(box, TUNNEL, "api.example", str(port)).stdout == "hello\n"
    assert read[0].startswith(b"GET /a?b=c HTTP/1.1\r\n")
    assert b"proxy" not in read[0].lower()
    assert read[1].startswith(b"GET /x HTTP/1.1\r\n")


@needs_hosts
@pytest.mark.slow
def test_other_hosts_ports_and_private_addresses_are_refused_with_the_reason(
    names: dict[str, list[str]],
) -> None:
    names["api.example"] = names["other.example"] = ["127.0.0.1"]
    with server(http) as (port, read):
        box = Sandbox(network=(f"api.example:{port}",))
        said = boxes.python(box, FETCH, f"http://other.example:{port}/").stdout
        assert (
            f"403 The sandbox of this program refuses other.example:{port}: it is not in the sandbox's list of hosts"
            in said
        )
        said = boxes.python(box, FETCH, "http://api.example:1/").stdout
        assert "refuses api.example:1" in said
        said = boxes.python(box, FETCH, f"http://api.example:{port}/").stdout
        assert "its address is private and is not listed itself" in said
        said = boxes.python(box, TUNNEL, "other.example", str(port)).stdout
        assert said.startswith("failed Tunnel connection failed: 403"), said
    assert not read


def test_a_listed_host_at_a_private_address_is_refused_with_the_address_to_add(
    names: dict[str, list[str]],
) -> None:
    names["mirror.example"] = ["10.1.2.3"]
    gate = Gate((HostPort.read("mirror.example:443"),))
    client, proxy = socket.socketpair()
    with client, proxy:
        assert gate._reach(proxy, "mirror.example", 443) is None
        assert b"its address is private" in client.recv(9999)
    gate.end()
    (refused,) = gate.refused
    assert (refused.where, refused.allow) == ("mirror.example:443", "10.1.2.3:443")


@needs_hosts
@pytest.mark.slow
def test_a_mirror_at_a_private_address_is_reached_in_the_box_that_was_learned(
    names: dict[str, list[str]],
) -> None:
    names["mirror.example"] = ["127.0.0.1"]
    watch = Watch()
    with server(http) as (port, _):
        url = f"http://mirror.example:{port}/"
        assert boxes.python(watching(watch), FETCH, url).stdout == "hello\n"
        learned = watch.proposal(cwd="/")
        assert learned.network == (f"mirror.example:{port}", f"127.0.0.1:{port}")
        assert boxes.python(learned, FETCH, url).stdout == "hello\n"


@needs_hosts
def test_the_address_that_was_checked_is_the_one_that_is_connected_to(
    names: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that changes between two look-ups (rebinding) is looked up once."""
    asked: list[str] = []
    names["api.example"] = ["127.0.0.1"]
    resolve = socket.getaddrinfo
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda host, *args, **more: (asked.append(host), resolve(host, *args, **more))[1],
    )
    with server(http) as (port, _):
        box = Sandbox(network=(f"api.example:{port}", f"127.0.0.1:{port}"))
        assert "hello" in boxes.python(box, FETCH, f"http://api.example:{port}/").stdout
    assert asked.count("api.example") == 1
    # And a peer that turns out to be another one is dropped.
    monkeypatch.setattr(
        Gate, "_may_connect", lambda self, host, address, port: len(checks.append(address) or checks) < 2
    )
    checks: list[str] = []
    with server(http) as (port, read):
        box = Sandbox(network=(f"api.example:{port}",))
        assert "did not answer" in boxes.python(box, FETCH, f"http://api.example:{port}/").stdout
    assert read in ([], [b""])


@needs_hosts
@pytest.mark.slow
def test_a_program_that_knows_no_proxy_reaches_listed_addresses_only() -> None:
    with server(lambda data: data) as (port, _), server(http) as (closed, read):
        box = Sandbox(network=(f"localhost:{port}", "example.com"))
        assert boxes.python(box, CONNECT, "127.0.0.1", str(port)).stdout == "b'x'\n"
        assert boxes.python(box, CONNECT, "localhost", str(port)).stdout == "b'x'\n"
        assert "failed [Errno 13]" in boxes.python(box, CONNECT, "127.0.0.1", str(closed)).stdout
        assert "failed [Errno 13]" in boxes.python(box, CONNECT, "93.184.216.34", "443").stdout
        assert "failed" in boxes.python(box, CONNECT, "example.com", "443").stdout
        assert not read


@needs_hosts
def test_the_port_of_the_proxy_elsewhere_is_no_way_out() -> None:
    """Landlock knows ports only: with a rule for the proxy's port, that port of any machine would be open."""
    code = """
import os, socket, urllib.parse
port = urllib.parse.urlsplit(os.environ["HTTP_PROXY"]).port
for address in ("127.0.0.2", "::1", "10.0.0.1"):
    try: socket.create_connection((address, port), 5); print("STOLEN")
    except OSError as error: print(error.errno)
with socket.socket() as s:  # bound to a device, packets for 127.0.0.1 would leave this machine by it
    for option, device in ((25, b"lo"), (62, 1)):
        try: s.setsockopt(socket.SOL_SOCKET, option, device); print("STOLEN")
        except OSError as error: print(error.errno)"""
    assert boxes.python(Sandbox(network=("a.example",)), code).stdout == "13\n13\n13\n1\n1\n"


@needs_hosts
@pytest.mark.slow
def test_node_and_non_blocking_sockets_connect() -> None:
    code = """
import asyncio, os, urllib.parse
async def ask():
    port = urllib.parse.urlsplit(os.environ["HTTP_PROXY"]).port
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"CONNECT b.example:443 HTTP/1.1\\r\\n\\r\\n")
    print(await reader.readline())
asyncio.run(ask())"""
    assert boxes.python(Sandbox(network=("a.example",)), code).stdout == "b'HTTP/1.1 403 grue\\r\\n'\n"


LISTEN = """
import socket, sys
with socket.socket(getattr(socket, sys.argv[1])) as s:
    try: s.listen(); print("listens")
    except OSError as error: print(error.errno)"""
UNIX = """
import os, socket, sys
with socket.socket(socket.AF_UNIX) as s:
    os.chdir(os.path.dirname(sys.argv[1])); s.connect(os.path.basename(sys.argv[1])); print(s.recv(9))
with socket.socket(socket.AF_UNIX) as own:
    own.bind("own"); own.listen()
    with socket.socket(socket.AF_UNIX) as s: s.connect(os.path.abspath("own")); print("own")
with socket.socket(socket.AF_UNIX) as s:
    try: s.connect(chr(0) + sys.argv[2])
    except OSError as error: print(error.errno)"""


@needs_hosts
def test_a_program_with_a_list_of_hosts_does_not_listen_not_even_without_bind() -> None:
    assert boxes.python(Sandbox(network=("a.example",)), LISTEN, "AF_INET").stdout == "13\n"
    both = Sandbox(network=("a.example",), unix_sockets=True)
    assert boxes.python(both, LISTEN, "AF_INET6").stdout == "13\n"


@needs_hosts
@pytest.mark.slow
def test_unix_sockets_are_used_beside_a_list_of_hosts(tmp_path: Path) -> None:
    place = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(place))
        listening.listen()

        def answer() -> None:
            with listening.accept()[0] as client:
                client.sendall(b"hello")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        box = Sandbox(network=("a.example",), unix_sockets=True, write=(str(tmp_path),))
        assert boxes.python(box, UNIX, str(place), "abstract").stdout == "b'hello'\nown\n1\n"
        assert (
            "PermissionError" in boxes.python(Sandbox(network=("a.example",)), UNIX, str(place), "x").stderr
        )


@needs_hosts
def test_a_connection_that_waits_delays_neither_others_nor_the_end() -> None:
    """A listed address may not answer; a socket whose backlog is full does not, either."""
    code = """
import socket, sys, threading, time
def wait(): socket.socket().connect(("127.0.0.1", int(sys.argv[1])))
for _ in range(3): threading.Thread(target=wait, daemon=True).start()
with socket.create_connection(("127.0.0.1", int(sys.argv[2]))) as s: s.sendall(b"x"); print(s.recv(9), flush=True)
import os; os._exit(0)"""
    with server(lambda data: data) as (port, _), socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        mute = full.getsockname()[1]
        fillers = [socket.socket() for _ in range(2)]
        for each in fillers:
            each.setblocking(False)
            each.connect_ex(("127.0.0.1", mute))
        box = Sandbox(network=(f"127.0.0.1:{port}", f"127.0.0.1:{mute}"))
        began = time.monotonic()
        assert boxes.python(box, code, str(mute), str(port)).stdout == "b'x'\n"
        assert time.monotonic() - began < gates._HEAD_S, "the gate was waited for"
        for each in fillers:
            each.close()


@needs_hosts
@pytest.mark.parametrize("box", [Sandbox(network=("a.example",)), watching(Watch())], ids=["gate", "watch"])
def test_a_call_with_an_address_beyond_all_memory_fails_alone(box: Sandbox) -> None:
    code = """
import ctypes, errno, os, socket
libc = ctypes.CDLL(None, use_errno=True)
with socket.socket() as s: print(libc.connect(s.fileno(), ctypes.c_void_p(-1), 16), errno.errorcode[ctypes.get_errno()])
print(libc.open(ctypes.c_void_p(-1), 0), errno.errorcode[ctypes.get_errno()])
with socket.socket() as s: print(s.connect_ex(("127.0.0.1", int(os.environ["HTTP_PROXY"].rpartition(":")[2]))))"""
    assert boxes.python(box, code).stdout == "-1 EFAULT\n-1 EFAULT\n0\n"


@needs_hosts
def test_datagrams_and_fast_open_stay_closed_with_a_list_of_hosts() -> None:
    box = Sandbox(network=("a.example",))
    udp = "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM)"
    assert "PermissionError" in boxes.python(box, udp).stderr
    fast = "import socket; socket.socket().sendto(b'x', 0x20000000, ('127.0.0.1', 9))"
    assert "PermissionError" in boxes.python(box, fast).stderr


@needs_hosts
def test_the_gate_ends_with_the_program() -> None:
    before = {thread.name for thread in threading.enumerate()}
    registry = ProcessRegistry()
    group = registry.spawn("cat", (), {"PATH": "/usr/bin:/bin"}, None, Sandbox(network=("a.example",)))
    gate = group._boxed.gate  # type: ignore[union-attr]
    assert gate is not None
    assert gate._thread is not None
    assert gate._thread.is_alive()
    group.end()
    group.close_descriptors()
    assert not gate._thread.is_alive()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", gate.port), 5)
    gate.end()
    assert {thread.name for thread in threading.enumerate()} <= before | {"grue-proxy"}


FORK = """
import os, socket
from grue.errors import SandboxError
from grue.runtime.processes.process_group import ProcessRegistry
from grue.sandbox import launch
from grue.sandbox.box import Sandbox
def descriptors(): return {os.readlink(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd") if os.path.islink(f"/proc/self/fd/{each}")}
before, registry = descriptors(), ProcessRegistry()
group = registry.spawn("cat", (), dict(os.environ), None, Sandbox(network=("a.example",)))
ours, theirs = socket.socketpair()
group._boxed.gate._open.add(ours)
while not launch._ahead:  # the thread of the start opens folders for the rules of the next start
    os.sched_yield()
if (child := os.fork()) == 0:
    theirs.close()
    print(sorted(each for each in descriptors() - before if "landlock" not in each), flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(group._boxed.gate._thread.is_alive(), ours.send(b"x"))
group.end()
group.close_descriptors()"""


@needs_hosts
@pytest.mark.slow
def test_a_forked_child_keeps_no_descriptor_of_a_gate() -> None:
    forked = boxes.python(None, FORK)
    assert forked.stdout == "[]\nTrue 1\n", forked


# --- the proxy alone, with a client that is admitted by hand ---


def test_a_connection_that_is_made_while_the_gate_ends_is_closed() -> None:
    gate = Gate(())
    client, proxy = socket.socketpair()
    remote, far = socket.socketpair()

    def reach(*_: object) -> socket.socket:
        gate.end()
        return remote

    gate._reach = reach  # type: ignore[method-assign]
    client.sendall(b"CONNECT api.example:443 HTTP/1.1\r\n\r\n")
    thread = threading.Thread(target=gate._proxy, args=(proxy,), daemon=True)
    with client, proxy, far:
        far.settimeout(GUARD_S)
        thread.start()
        thread.join(GUARD_S)
        assert not thread.is_alive()
        assert far.recv(1) == b""


def test_without_another_thread_a_gate_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    gate = Gate((), unix=True)
    monkeypatch.setattr(threading.Thread, "start", start)
    with socket.create_connection(("127.0.0.1", gate.port), GUARD_S) as client:
        assert select.select([gate._server], [], [], GUARD_S)[0]
        gate._accept()
        assert client.recv(1) == b""
    with socket.socket(socket.AF_UNIX) as own:
        asked = gates.Asked(own, socket.AF_UNIX.to_bytes(2, sys.byteorder) + b"/nowhere", os.getpid())
        assert not gate._hands_over(1, asked)
    assert (gate._count, gate._open) == (0, set())
    gate.end()


def test_where_no_thread_can_start_for_its_gate_no_program_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    started: list[str] = []
    listener, other = os.pipe()
    gate = Gate(())
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(SandboxError, match="needs a thread of its own: can't start new thread"):
        in_confined_thread(lambda: listener, lambda: started.append("cat"), gate.serve)
    assert started == []
    gate.end()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.close(listener)
    os.close(other)


@pytest.mark.parametrize(("code", "pauses"), [(errno.EMFILE, 1), (errno.ECONNABORTED, 0)])
def test_without_another_descriptor_a_gate_does_not_spin(
    code: int, pauses: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []

    class Exhausted:
        def accept(self) -> None:
            raise OSError(code, os.strerror(code))

    gate = Gate(())
    with monkeypatch.context() as patched:
        patched.setattr(gates, "time", SimpleNamespace(sleep=slept.append))
        patched.setattr(gate, "_server", Exhausted())
        gate._accept()
    assert len(slept) == pauses
    gate.end()


@pytest.fixture
def open_gate() -> Iterator[Gate]:
    gate = Gate((HostPort.read("api.example:80"),))
    thread = threading.Thread(target=accept, args=(gate,), daemon=True)
    thread.start()
    yield gate
    gate._ended = True
    thread.join()
    gate._ended = False
    gate.end()


def accept(gate: Gate) -> None:
    while not gate._ended:
        if select.select([gate._server], [], [], 0.1)[0]:
            gate._accept()


def client_of(gate: Gate) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", gate.port), 60)
    with gate._changed:
        gate._admitted.add(client.getsockname()[1])
        gate._changed.notify_all()
    return client


@pytest.mark.parametrize(
    ("request_", "answer"),
    [
        (b"GET /x HTTP/1.1\r\n\r\n", b"400"),
        (b"GET ftp://api.example/ HTTP/1.1\r\n\r\n", b"400"),
        (b"GET http://api.example:0/ HTTP/1.1\r\n\r\n", b"400"),
        (b"CONNECT api.example HTTP/1.1\r\n\r\n", b"400"),
        (b"CONNECT api.example:x HTTP/1.1\r\n\r\n", b"400"),
        (b"CONNECT api.example:99999999999999999999 HTTP/1.1\r\n\r\n", b"400"),
        (b"GET http://api.example:x/ HTTP/1.1\r\n\r\n", b"400"),
        (b"GET http://[api.example/ HTTP/1.1\r\n\r\n", b"400"),
        (b"\r\n\r\n", b"400"),
        (b"CONNECT other.example:80 HTTP/1.1\r\n\r\n", b"403"),
        (b"x" * 20_000, b""),
    ],
)
def test_what_is_no_request_gets_an_answer_or_the_end(
    open_gate: Gate, request_: bytes, answer: bytes
) -> None:
    with client_of(open_gate) as client:
        client.sendall(request_)
        try:
            said = client.recv(65536)
        except ConnectionResetError:
            said = b""
    assert said[9:12] == answer


def test_what_no_box_can_list_is_refused_without_an_entry_to_copy(open_gate: Gate) -> None:
    for host in ('a"], "write": ["/', "a\x1b[31m", "a" * 300, "other.example"):
        with client_of(open_gate) as client:
            client.sendall(f"CONNECT {host}:80 HTTP/1.1\r\n\r\n".encode())
            assert client.recv(12) == b"HTTP/1.1 403"
    assert [refusal.allow for refusal in open_gate.refused] == ["other.example:80"]


def test_a_name_with_a_nul_character_reaches_no_host_before_it() -> None:
    with server(http) as (port, read):
        gate = Gate((HostPort.read(f"*.example.com:{port}"), HostPort.read(f"127.0.0.1:{port}")))
        client, proxy = socket.socketpair()
        with client, proxy:
            assert gate._reach(proxy, "localhost\0.example.com", port) is None
            assert b"it is not in the sandbox's list of hosts" in client.recv(9999)
        gate.end()
    assert not read


def test_a_client_that_the_gate_has_not_connected_is_not_served(
    open_gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gates, "_ADMITTED_S", 0.05)
    with socket.create_connection(("127.0.0.1", open_gate.port), 60) as stranger:
        stranger.sendall(b"CONNECT api.example:80 HTTP/1.1\r\n\r\n")
        with suppress(ConnectionResetError):
            assert stranger.recv(100) == b""


def test_a_slow_head_and_too_many_bytes_end_the_connection(
    open_gate: Gate, monkeypatch: pytest.MonkeyPatch, names: dict[str, list[str]]
) -> None:
    monkeypatch.setattr(gates, "_HEAD_S", 0.05)
    with client_of(open_gate) as slow:
        slow.sendall(b"CONNECT api")
        assert slow.recv(100) == b""
    monkeypatch.setattr(gates, "_HEAD_S", 60.0)
    monkeypatch.setattr(gates, "_MOST_BYTES", 1000)
    with server(lambda _: b"y" * 5_000_000) as (port, _):
        names["api.example"] = ["127.0.0.1"]
        open_gate._hosts = (HostPort.read(f"api.example:{port}"), HostPort.read(f"127.0.0.1:{port}"))
        with client_of(open_gate) as greedy:
            greedy.sendall(f"CONNECT api.example:{port} HTTP/1.1\r\n\r\nx".encode())
            total = 0
            with suppress(ConnectionResetError):
                while chunk := greedy.recv(65536):
                    total += len(chunk)
    assert total < 1_000_000


@pytest.mark.parametrize(
    ("line", "sent"),
    [
        (b"GET http://api.example?a=/b HTTP/1.1", b"GET /?a=/b HTTP/1.1"),
        (b"GET http://api.example HTTP/1.0", b"GET / HTTP/1.0"),
        (b"GET http://u:p@api.example/a/b?c=http://d/ HTTP/1.1", b"GET /a/b?c=http://d/ HTTP/1.1"),
    ],
)
def test_a_host_is_sent_the_request_that_was_meant_for_it(line: bytes, sent: bytes) -> None:
    gate = Gate(())
    client, proxy = socket.socketpair()
    remote, host = socket.socketpair()
    gate._reach = lambda *_: remote  # type: ignore[method-assign]
    with client, proxy, host:
        client.sendall(line + b"\r\nHost: other.example\r\nAccept: */*\r\n\r\n")
        client.shutdown(socket.SHUT_WR)
        host.shutdown(socket.SHUT_WR)
        gate._proxy(proxy)
        assert host.recv(9999) == sent + b"\r\nHost: api.example\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    gate.end()


def test_a_host_that_writes_more_than_it_reads_is_not_waited_for() -> None:
    """It reads on only when what it has written is gone, and the program goes on writing meanwhile."""
    client, near = socket.socketpair()
    far, host = socket.socketpair()

    def answer() -> None:
        with host:
            while data := host.recv(65536):
                host.sendall(data * 8)

    def ask() -> None:
        client.sendall(b"x" * 4_000_000)
        client.shutdown(socket.SHUT_WR)

    works: list[Callable[[], object]] = [answer, ask, lambda: gates._relay(near, far)]
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    with client, near, far:
        client.settimeout(GUARD_S)
        for thread in threads:
            thread.start()
        assert sum(map(len, iter(lambda: client.recv(65536), b""))) == 32_000_000
        for thread in threads:
            thread.join(GUARD_S)
            assert not thread.is_alive()


def test_connections_are_limited(open_gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "_MOST_CONNECTIONS", 1)
    with client_of(open_gate) as first:
        first.sendall(b"CONN")
        second = client_of(open_gate)
        with suppress(ConnectionResetError):
            assert second.recv(1) == b""
        second.close()


@pytest.mark.parametrize(
    ("address", "private"),
    [
        ("8.8.8.8", False), ("2606:4700::1111", False),
        ("127.0.0.1", True), ("10.1.2.3", True), ("172.16.0.1", True), ("192.168.1.1", True), ("169.254.169.254", True),
        ("100.64.0.1", True), ("0.0.0.0", True), ("224.0.0.1", True), ("::1", True), ("fe80::1%eth0", True),
        ("fc00::1", True), ("64:ff9b::a00:1", True), ("64:ff9b::808:808", False), ("::10.0.0.1", True), ("fec0::1", True), ("::ffff:127.0.0.1", True), ("2002:7f00:1::", True), ("::", True),
    ],
)  # fmt: skip
def test_private_addresses_are_known_in_every_form(address: str, *, private: bool) -> None:
    assert gates._is_private(address) is private
