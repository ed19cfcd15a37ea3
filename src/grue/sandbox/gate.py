"""The network of a box that lists hosts: a proxy on loopback, and the check of each `connect`.

The kernel holds back each `connect` of the program until the program's `Gate` has decided. The gate makes an
allowed connection itself, on a copy of the program's socket. If the program made it, another of its threads
could change the address after the check. The gate allows connections to its own proxy, to listed ports of
this machine (`localhost:5432`), to listed IP addresses and, if the box allows, to Unix sockets with a path.

The proxy understands CONNECT and plain HTTP, and decrypts nothing. It resolves names itself, and connects to
the address that it has checked. It serves only connections that the gate has made, so no other program.
"""

import contextlib
import errno
import fcntl
import ipaddress
import os
import select
import socket
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from msgspec import Struct

from grue.sandbox.box import HostPort
from grue.sandbox.kernel import connect, descriptor_of
from grue.sandbox.seccomp import known_machine

RECEIVE, SEND, _ID_VALID = 0xC0502100, 0xC0182101, 0x40082102
NOTIFICATION = struct.Struct("=QIIiIQ6Q")
ANSWER = struct.Struct("=QqiI")
_LONGEST_ADDRESS = 128
_LONGEST_PATH = 107

_MOST_CONNECTIONS = 64
_HEAD_BYTES = 16_384
_HEAD_S, _CONNECT_S, _IDLE_S = 10.0, 15.0, 600.0
_MOST_BYTES = 1 << 30
_CHUNK = 65_536
_ADMITTED_S = 5.0
_EXHAUSTED = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
_PAUSE_S = 0.1
_MOST_REFUSALS = 20
_LOOPBACK_NAMES = ("localhost", "localhost.localdomain", "ip6-localhost")
_SHARED = ipaddress.ip_network("100.64.0.0/10")
_TRANSLATED = tuple(map(ipaddress.IPv6Network, ("64:ff9b::/96", "64:ff9b:1::/48", "::/96")))
"""IPv6 ranges in which an address ends with an IPv4 address, to which a translator may forward."""


class Refusal(Struct, frozen=True):
    """A connection that the gate has refused."""

    where: str  # as `host:port`
    why: str  # a sentence without a full stop
    allow: str  # the entry of `Sandbox.network` that would allow it


class Gate:
    """Runs the proxy of one boxed program, and decides about its calls of `connect` and `listen`.

    `unix`: the program may use Unix sockets in the file system. With `record`, every host is allowed; `seen`
    then has the `host:port` of each TCP connection that the program asked for, if a box could list it.
    """

    def __init__(self, hosts: Sequence[HostPort], *, unix: bool = False, record: bool = False) -> None:
        self._hosts = tuple(hosts)
        self._unix = unix
        self._record = record
        self._server = socket.create_server(("127.0.0.1", 0), backlog=_MOST_CONNECTIONS)
        self._server.setblocking(False)
        self.port: int = self._server.getsockname()[1]
        self._wake, self._waker = os.pipe()
        self._listener: int | None = None
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()
        self._admitted: set[int] = set()
        self._open: set[socket.socket] = set()
        self._count = 0
        self._ended = False
        self.refused: deque[Refusal] = deque(maxlen=_MOST_REFUSALS)
        self.seen: dict[str, None] = {}

    def environment(self) -> dict[str, str]:
        """Return environment variables that tell programs to use the proxy. Old Node versions ignore them."""
        url = f"http://127.0.0.1:{self.port}"
        names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
        direct = "localhost,127.0.0.1,::1"
        found = {name: url for upper in names for name in (upper, upper.lower())}
        return {**found, "NO_PROXY": direct, "no_proxy": direct, "NODE_USE_ENV_PROXY": "1"}

    def serve(self, listener: int) -> None:
        """Start the thread that runs the proxy and decides about the calls that `listener` reports."""
        self._listener = listener
        # Set before the start, which a KeyboardInterrupt may interrupt: then the thread runs all the same.
        self._thread = threading.Thread(target=self._wait, args=(listener,), name="grue-gate", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            self._thread = None
            raise

    def end(self) -> None:
        """Close the proxy and its connections; wait up to 10 s for the thread. A second call does nothing."""
        with self._changed:
            if self._ended:
                return
            self._ended = True
            self._changed.notify_all()
            for each in self._open:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
        os.close(self._waker)
        if self._thread is not None:
            with contextlib.suppress(RuntimeError):  # its start was interrupted
                self._thread.join(_HEAD_S)
        else:
            self._close()

    def disown(self) -> None:
        """In a forked child, close the child's copies of the descriptors. The parent's gate goes on."""
        if not self._ended:
            # Do not take the lock: a thread of the parent may have held it during the fork.
            self._ended = True
            for each in (self._server, *self._open):
                each.close()
            for descriptor in (self._wake, self._waker, self._listener):
                if descriptor is not None:
                    os.close(descriptor)

    def _close(self) -> None:
        self._server.close()
        os.close(self._wake)
        with self._changed:
            listener, self._listener = self._listener, None
        if listener is not None:
            os.close(listener)

    def _wait(self, listener: int) -> None:
        poll = select.poll()
        for fd in (self._wake, self._server.fileno(), listener):
            poll.register(fd, select.POLLIN)
        try:
            while not self._ended:
                for fd, event in poll.poll():
                    if fd == self._server.fileno():
                        self._accept()
                    elif fd == listener and event & select.POLLIN:
                        self._answer(listener)
                    elif fd == listener:
                        poll.unregister(listener)  # no process of the program is left
        finally:
            self._close()

    # --- connections that the program asks for ---

    def _answer(self, listener: int) -> None:
        buffer = bytearray(NOTIFICATION.size)
        try:
            fcntl.ioctl(listener, RECEIVE, buffer)
        except OSError:
            return  # the call was interrupted, or its process was killed
        key, pid, _, call, _, _, *arguments = NOTIFICATION.unpack(buffer)
        try:
            decided = self._decide(listener, key, pid, call, arguments)
        except OSError as failed:
            decided = (failed.errno or errno.EACCES, 0)
        except OverflowError:  # the call named an address beyond the memory of any program
            decided = (errno.EFAULT, 0)
        if decided is not None:
            self._reply(key, *decided)

    def _decide(
        self, listener: int, key: int, pid: int, call: int, arguments: list[int]
    ) -> tuple[int, int] | None:
        """Return the answer to a call: errno (0: success) and flags; `None`: another thread will answer."""
        if call == known_machine().calls["listen"]:
            return self._listen(listener, key, pid, arguments[0], arguments[1] & 0xFFFF), 0
        found = self._asked(listener, key, pid, *arguments[:3])
        if self._hands_over(key, found):
            return None
        with found.socket:
            return self._connect(found), 0

    def _reply(self, key: int, error: int, flags: int = 0) -> None:
        # Hold the lock, so that `_close` cannot close the listener before the reply. Otherwise another file
        # could get the listener's number.
        with self._changed, contextlib.suppress(OSError):  # the program may have ended while it waited
            if self._listener is not None:
                fcntl.ioctl(self._listener, SEND, bytearray(ANSWER.pack(key, 0, -error, flags)))

    def _asked(self, listener: int, key: int, pid: int, fd: int, address: int, length: int) -> "Asked":
        length &= 0xFFFFFFFF
        if not 2 <= length <= _LONGEST_ADDRESS:
            raise OSError(errno.EINVAL, "no address")
        raw = memory_of(pid, address, length)
        return Asked(self._copy_of(listener, key, pid, fd), raw, pid)

    def _copy_of(self, listener: int, key: int, pid: int, fd: int) -> socket.socket:
        leader = _leader_of(pid)
        pidfd = os.pidfd_open(leader)
        try:
            own = descriptor_of(pidfd, fd & 0xFFFFFFFF)
        finally:
            os.close(pidfd)
        try:
            # Raises `OSError` if the process no longer waits: `pid` may then be the id of another process.
            fcntl.ioctl(listener, _ID_VALID, bytearray(struct.pack("=Q", key)))
            blocks = os.get_blocking(own)
            found = socket.socket(fileno=own)
            # With a default timeout, `socket.socket` makes this socket, and so the program's, non-blocking.
            os.set_blocking(own, blocks)
            return found
        except OSError:
            os.close(own)
            raise

    def _listen(self, listener: int, key: int, pid: int, fd: int, backlog: int) -> int:
        with self._copy_of(listener, key, pid, fd) as own:
            if own.family != socket.AF_UNIX:
                # The kernel gives a socket a port even without `bind`, and Landlock checks only `bind`.
                return errno.EACCES
            own.listen(backlog)
            return 0

    def _hands_over(self, key: int, asked: "Asked") -> bool:
        """Start a thread that connects, if connecting may block. Return whether the thread was started."""
        leads_on = self._unix if asked.place is None else asked.place != ("127.0.0.1", self.port)
        waits = leads_on and os.get_blocking(asked.socket.fileno())
        return waits and self._starts(asked.socket, "grue-connect", lambda: self._wait_for(key, asked))

    def _starts(self, of: socket.socket, name: str, work: Callable[[], None]) -> bool:
        """Start a thread for a connection, at most 64 at once. Return whether the thread was started."""
        with self._changed:
            if self._ended or self._count >= _MOST_CONNECTIONS:
                return False
            self._count += 1
            self._open.add(of)
        try:
            threading.Thread(target=work, name=name, daemon=True).start()
        except RuntimeError:  # the process may have no more threads
            self._leave(of)
            return False
        return True

    def _leave(self, of: socket.socket) -> None:
        with self._changed:
            self._count -= 1
            self._open.discard(of)

    def _wait_for(self, key: int, asked: "Asked") -> None:
        try:
            error = self._connect(asked)
        except OSError as failed:
            error = failed.errno or errno.EACCES
        self._leave(asked.socket)
        asked.socket.close()
        self._reply(key, error)

    def _connect(self, asked: "Asked") -> int:
        own, raw = asked.socket.fileno(), asked.address
        if asked.family == socket.AF_UNSPEC:
            return connect(own, raw)  # always allowed: AF_UNSPEC only dissolves the socket's connection
        if asked.family == socket.AF_UNIX and self._unix:
            return _connect_to_path(own, raw, asked.path)
        if asked.place is None:
            return errno.EAFNOSUPPORT
        host, port = asked.place
        if (host, port) == ("127.0.0.1", self.port):
            return self._connect_to_proxy(own, raw)
        allowed = self._allows(host, port) or (is_loopback(host) and self._allows("localhost", port))
        if self._record:
            # Do not record UDP, which no entry of `network` could allow.
            if asked.socket.type == socket.SOCK_STREAM:
                self._see(host, port)
        elif not allowed:
            self._refuse(host, port, "the program connects past the proxy, and this address is not listed")
            return errno.EACCES
        return connect(own, raw)

    def _connect_to_proxy(self, own: int, raw: bytes) -> int:
        error = connect(own, raw)
        if error in (0, errno.EINPROGRESS):
            with self._changed, socket.socket(fileno=os.dup(own)) as made:
                self._admitted.add(made.getsockname()[1])
                self._changed.notify_all()
        return error

    # --- the proxy ---

    def _accept(self) -> None:
        try:
            client, (_, port) = self._server.accept()
        except OSError as failed:
            if failed.errno in _EXHAUSTED:
                time.sleep(_PAUSE_S)  # otherwise `accept` would fail again at once, for the same connection
            return
        client.setblocking(True)
        if not self._starts(client, "grue-proxy", lambda: self._serve(client, port)):
            client.close()

    def _serve(self, client: socket.socket, port: int) -> None:
        try:
            with client:
                if self._is_admitted(port):
                    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self._proxy(client)
        except (OSError, ValueError):
            pass  # a connection has failed, or the client has not sent a valid request in time
        finally:
            self._leave(client)

    def _is_admitted(self, port: int) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: port in self._admitted or self._ended, _ADMITTED_S)
            found = port in self._admitted and not self._ended
            self._admitted.discard(port)
            return found

    def _proxy(self, client: socket.socket) -> None:
        head, rest = _read_head(client)
        try:
            connects, host, port, first = _read_request(head, rest)
        except ValueError:
            _say(client, 400, "This proxy serves CONNECT HOST:PORT and http:// only.")
            return
        remote = self._reach(client, host, port)
        if remote is None:
            return
        with remote:
            with self._changed:
                if self._ended:
                    return
                self._open.add(remote)
            try:
                if connects:
                    client.sendall(b"HTTP/1.1 200 Connected\r\n\r\n")
                remote.sendall(first)
                _relay(client, remote)
            finally:
                with self._changed:
                    self._open.discard(remote)

    def _reach(self, client: socket.socket, host: str, port: int) -> socket.socket | None:
        """Connect to `host` for the client; `None`: refused or failed, and the client was told why."""
        if self._record:
            self._see(host, port)
        elif not self._allows(host, port):
            self._say_refused(client, host, port, "it is not in the sandbox's list of hosts")
            return None
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            _say(client, 502, f"{host} was not found.")
            return None
        public = [each for each in found if self._may_connect(host, str(each[4][0]), port)]
        if not public:
            why = "its address is private and is not listed itself"
            self._say_refused(client, host, port, why, allow=str(found[0][4][0]))
            return None
        for family, kind, protocol, _, address in public:
            remote = socket.socket(family, kind, protocol)
            try:
                remote.settimeout(_CONNECT_S)
                remote.connect(address)
                peer = str(remote.getpeername()[0])
                if self._may_connect(host, peer, port):
                    if self._record and _needs_its_own_entry(host, peer):
                        self._see(peer, port)
                    remote.settimeout(None)
                    remote.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    return remote
            except OSError:
                pass
            remote.close()
        _say(client, 502, f"{host}:{port} did not answer.")
        return None

    def _say_refused(
        self, client: socket.socket, host: str, port: int, why: str, *, allow: str | None = None
    ) -> None:
        self._refuse(host, port, why, allow=allow)
        _say(client, 403, f"The sandbox of this program refuses {host}:{port}: {why}.")

    def _refuse(self, host: str, port: int, why: str, *, allow: str | None = None) -> None:
        entry = _entry(allow or host, port)
        if _can_be_listed(entry):
            self.refused.append(Refusal(_entry(host, port), why, entry))

    def _see(self, host: str, port: int) -> None:
        entry = _entry(host, port)
        if _can_be_listed(entry):
            self.seen[entry] = None

    def _allows(self, host: str, port: int) -> bool:
        return any(each.covers(host, port) for each in self._hosts)

    def _may_connect(self, host: str, address: str, port: int) -> bool:
        return self._record or not _needs_its_own_entry(host, address) or self._allows(address, port)


def _needs_its_own_entry(host: str, address: str) -> bool:
    """Return whether `address`, to which `host` resolves, is private and no loopback of `localhost`."""
    return _is_private(address) and not (host.lower() in _LOOPBACK_NAMES and is_loopback(address))


def _entry(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _can_be_listed(entry: str) -> bool:
    # The program chose this text, which users paste into a box. Quotes in it could open more hosts there.
    try:
        HostPort.read(entry)
    except ValueError:
        return False
    return True


class Asked(Struct, frozen=True):
    """A program's call of `connect`, which the gate has to answer."""

    socket: socket.socket  # a copy of the program's socket
    address: bytes  # the C `sockaddr`
    pid: int

    @property
    def family(self) -> int:
        """The address family, such as `socket.AF_INET`."""
        return int.from_bytes(self.address[:2], sys.byteorder)

    @property
    def place(self) -> tuple[str, int] | None:
        """The IP address and the port; `None` if `address` is of another kind, or too short."""
        raw = self.address
        if self.family == socket.AF_INET and len(raw) >= 8:
            return socket.inet_ntoa(raw[4:8]), int.from_bytes(raw[2:4])
        if self.family == socket.AF_INET6 and len(raw) >= 24:
            address = ipaddress.IPv6Address(raw[8:24])
            return str(address.ipv4_mapped or address), int.from_bytes(raw[2:4])
        return None

    @property
    def path(self) -> bytes:
        """The absolute path of a Unix socket; empty for an abstract one."""
        path = self.address[2:].partition(b"\0")[0]
        return path if path[:1] in (b"", b"/") else b"/proc/%d/cwd/%s" % (self.pid, path)


def _connect_to_path(own: int, raw: bytes, path: bytes) -> int:
    if not path:
        return errno.EPERM  # an abstract socket
    if len(path) > _LONGEST_PATH:
        return errno.ENAMETOOLONG
    return connect(own, raw[:2] + path + b"\0")


def memory_of(pid: int, address: int, length: int) -> bytes:
    """Return up to `length` bytes of a process's memory, or raise `OSError` or `OverflowError`."""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:  # noqa: PTH123
        memory.seek(address)
        return memory.read(length)


def _leader_of(pid: int) -> int:
    with open(f"/proc/{pid}/status", "rb") as lines:  # noqa: PTH123
        for line in lines:
            if line.startswith(b"Tgid:"):
                return int(line.split()[1])
    return pid


def is_loopback(address: str) -> bool:
    """Return whether an IP address is one of this machine's loopback addresses."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _is_private(address: str) -> bool:
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        if found.is_site_local:
            return True
        inner = found.ipv4_mapped or found.sixtofour or (found.teredo or (None, None))[1]
        if inner is None and any(found in network for network in _TRANSLATED):
            inner = ipaddress.IPv4Address(found.packed[-4:])
        if inner is not None:
            return _is_private(str(inner))
    return not found.is_global or found.is_multicast or found in _SHARED


def _read_head(client: socket.socket) -> tuple[bytes, bytes]:
    """Return an HTTP request's head without the empty line, and the bytes received after it."""
    found, deadline = b"", time.monotonic() + _HEAD_S
    while b"\r\n\r\n" not in found:
        left_s = deadline - time.monotonic()
        if left_s <= 0 or len(found) > _HEAD_BYTES:
            raise ValueError("no head of a request")
        client.settimeout(left_s)
        chunk = client.recv(_CHUNK)
        if not chunk:
            raise ValueError("no head of a request")
        found += chunk
    client.settimeout(None)
    head, _, rest = found.partition(b"\r\n\r\n")
    return head, rest


def _read_request(head: bytes, rest: bytes) -> tuple[bool, str, int, bytes]:
    """Return whether a request is `CONNECT`, its host, its port, and what to send; may raise `ValueError`."""
    line, _, headers = head.partition(b"\r\n")
    method, _, target = line.decode("latin-1").partition(" ")
    target, _, version = target.rpartition(" ")
    if method == "CONNECT":
        host, _, number = target.rpartition(":")
        host, port, first = host.strip("[]"), int(number), rest
    else:
        url = urlsplit(target)
        host, port = url.hostname or "", 80 if url.port is None else url.port
        path = target.partition("://")[2][len(url.netloc) :]
        path = path if path.startswith("/") else f"/{path}"
        # Replace the client's `Host` header, so that it names the host that is checked.
        named = f"{method} {path} {version}\r\nHost: {url.netloc.rpartition('@')[2]}\r\n"
        first = named.encode("latin-1")
        first += _without_proxy_headers(headers) + b"Connection: close\r\n\r\n" + rest
        if url.scheme != "http":
            raise ValueError(target)
    if not host or not 0 < port < 2**16:
        raise ValueError(target)
    return method == "CONNECT", host, port, first


def _without_proxy_headers(headers: bytes) -> bytes:
    dropped = (b"proxy-", b"connection:", b"keep-alive:", b"host:")
    lines = (line for line in headers.split(b"\r\n") if line and not line.lower().startswith(dropped))
    return b"".join(line + b"\r\n" for line in lines)


def _say(client: socket.socket, status: int, text: str) -> None:
    body = f"{text}\n".encode()
    head = f"HTTP/1.1 {status} grue\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
    client.sendall(f"{head}Connection: close\r\n\r\n".encode() + body)


def _relay(one: socket.socket, other: socket.socket) -> None:
    """Pass on what each socket sends, until both have ended, 1 GiB has passed, or nothing passes for 600 s.

    The two directions do not wait for each other: many programs read a reply only after they have sent all.
    """
    poll, left = select.poll(), _MOST_BYTES
    peers = {one.fileno(): (one, other), other.fileno(): (other, one)}
    waiting = {one: b"", other: b""}
    sources = {one, other}
    for each in sources:
        each.setblocking(False)
    while left > 0 and (sources or any(waiting.values())):
        for fd, (mine, peer) in peers.items():
            wanted = select.POLLOUT if waiting[mine] else 0
            wanted |= select.POLLIN if mine in sources and not waiting[peer] else 0
            poll.register(fd, wanted)
            if not wanted:
                poll.unregister(fd)  # otherwise `poll` would return at once for a socket that is closed
        ready = poll.poll(_IDLE_S * 1000)
        if not ready:
            return
        for fd, _ in ready:
            mine, peer = peers[fd]
            waiting[mine] = _sent(mine, waiting[mine])
            if mine not in sources or waiting[peer]:
                continue
            try:
                chunk = mine.recv(_CHUNK)
            except BlockingIOError:
                continue
            left -= len(chunk)
            waiting[peer] = _sent(peer, chunk)
            if not chunk:
                sources.discard(mine)
                with contextlib.suppress(OSError):
                    peer.shutdown(socket.SHUT_WR)


def _sent(target: socket.socket, data: bytes) -> bytes:
    if data:
        with contextlib.suppress(BlockingIOError):
            return data[target.send(data) :]
    return data
