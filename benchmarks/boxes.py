"""What a box (a sandbox) costs: to start a program in it, and to make a call through its proxy."""

import os
import socket
import sys
import threading
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from measuring import Bar, Effort, Section, figure, interleave

from grue.runtime.processes.process_group import ProcessRegistry
from grue.sandbox.box import Sandbox
from grue.sandbox.launch import missing_for

if TYPE_CHECKING:
    from collections.abc import Iterator

CALLS = 200
CALL = """
import os, socket, sys, time, urllib.parse
port, calls = int(sys.argv[1]), int(sys.argv[2])
proxy = os.environ.get("HTTPS_PROXY")
link = socket.create_connection(("127.0.0.1", urllib.parse.urlsplit(proxy).port if proxy else port))
link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
if proxy:
    link.sendall(b"CONNECT 127.0.0.1:%d HTTP/1.1\\r\\n\\r\\n" % port)
    while not link.recv(4096).endswith(b"\\r\\n\\r\\n"): pass
begun = time.perf_counter()
for _ in range(calls):
    link.sendall(b"x" * 200)
    got = 0
    while got < 200: got += len(link.recv(4096))
print((time.perf_counter() - begun) / calls * 1000)
"""


def boxes_section(effort: Effort) -> Section:
    """Compare starts with and without a box (at most 1 ms), and calls through the proxy (at most 0.3 ms)."""
    title, name = "A program in a box", "boxes"
    missing = missing_for(Sandbox(network=("127.0.0.1:1",)))
    if missing:
        return Section(name, title, f"Not measured here: {'; '.join(missing)}.", [])
    _start_ms(Sandbox())  # not counted: the first start of a process looks up more
    with _echo() as port:
        sides = {
            "free": partial(_start_ms, None),
            "pure": partial(_start_ms, Sandbox()),
            "files": partial(_start_ms, Sandbox(preset="files")),
            "hosts": partial(_start_ms, Sandbox(network=("example.com",))),
            "direct": partial(_call_ms, None, port),
            "proxy": partial(_call_ms, Sandbox(network=(f"127.0.0.1:{port}",)), port),
        }
        samples = interleave(effort.within(effort.starts), sides)
    shown = {key: figure(key, "ms", values) for key, values in samples.items()}
    more = {key: shown[key].median - shown["free"].median for key in ("pure", "files", "hosts")}
    return Section(
        name,
        title,
        "Measured: from the wish to start Python until it is released to run, in each kind of box; and a "
        "message of 200 bytes and its echo over a connection that stands, with the proxy and without. Not "
        "measured: the start of Python itself.",
        [
            figure("start, no box", "ms", samples["free"]),
            figure("start, pure", "ms", samples["pure"]),
            figure("start, files", "ms", samples["files"]),
            figure("start, a list of hosts", "ms", samples["hosts"]),
            figure("call, direct", "ms", samples["direct"]),
            figure("call, through the proxy", "ms", samples["proxy"]),
        ],
        [
            Bar("time that the box `pure` adds to the start of a program", more["pure"], 1.0, "ms"),
            Bar(
                "time that a box's proxy adds to a message and its echo",
                shown["proxy"].median - shown["direct"].median,
                0.3,
                "ms",
            ),
        ],
    )


def _start_ms(box: Sandbox | None) -> float:
    registry = ProcessRegistry()
    begun = time.perf_counter()
    group = registry.spawn(sys.executable, ("-I", "-S", "-c", ""), dict(os.environ), None, box)
    spent_s = time.perf_counter() - begun
    group.watch.exited_within(60)
    group.end()
    group.close_descriptors()
    return spent_s * 1000


def _call_ms(box: Sandbox | None, port: int) -> float:
    registry = ProcessRegistry()
    plain = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    words = ("-I", "-S", "-c", CALL, str(port), str(CALLS))
    group = registry.spawn(sys.executable, words, plain, None, box)
    try:
        if not group.watch.exited_within(120):
            raise RuntimeError("the caller did not end")
        return float(os.read(group.stdout, 100))
    finally:
        registry.kill_leftovers()


@contextmanager
def _echo() -> "Iterator[int]":
    def answer(client: socket.socket) -> None:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with client:
            while data := client.recv(4096):
                client.sendall(data)

    def serve() -> None:
        while True:
            try:
                client, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(client,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=serve, daemon=True).start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
