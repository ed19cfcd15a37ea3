"""64 clients in four processes at an endpoint of 20 requests a second: real sockets, processes and clocks.

    python benchmarks/run.py --only fleet_rate
    python benchmarks/fleet_rate.py SECONDS        only this, for so long

The endpoint is a process of its own. It refuses with 429 whatever exceeds 20 requests in its last second, and
answers the others after 0.3 to 1 s. Each client is a thread with the Zork host's blocking client, which asks
the broker of this process before each request.
"""

import argparse
import asyncio
import json
import multiprocessing
import random
import signal
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

from measuring import Bar, Effort, Section, printed

from grue.config.settings import RetrySettings
from grue.errors import LLMError
from grue.fleet.accounts import read_ledger
from grue.fleet.broker import FleetBudget, Limits, Rate
from grue.fleet.broker_link import BrokerLink
from grue.fleet.broker_server import BrokerServer
from grue.fleet.folder import FleetFolder
from grue.hosting import GameConfiguration
from grue.hosts.zork.client import LLMClient
from grue.transports.llm.exchange import set_request_gate

PROCESSES, THREADS, A_SECOND = 4, 16, 20
FIRST_S = 10.0
_REPLY = json.dumps(
    {
        "id": "r",
        "model": "m",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}
        ],
        "usage": {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6},
    }
).encode()


def rate_section(effort: Effort) -> Section:
    """Measure how much of an endpoint's rate a fleet uses, and how often it exceeds it."""
    return measured(effort.rate_s)


def measured(seconds: float) -> Section:
    """Let the clients ask for so long; the budget of requests ends shortly before."""
    budget = int(0.95 * A_SECOND * seconds)
    limits = Limits(FleetBudget(requests=budget), Rate(requests_per_minute=60 * A_SECOND))
    with tempfile.TemporaryDirectory() as folder, _endpoint() as (url, statuses):
        with BrokerServer(FleetFolder(Path(folder)), limits) as server:
            context = multiprocessing.get_context("spawn")
            clients = [
                context.Process(target=_clients, args=(server.address, url, seconds))
                for _ in range(PROCESSES)
            ]
            try:
                with _unheard_ctrl_c():
                    for client in clients:
                        client.start()
                for client in clients:
                    client.join()
            finally:
                for client in clients:
                    client.kill()
        spent = read_ledger(FleetFolder(Path(folder))).requests
        arrived = statuses()
    first = min((at for at, _ in arrived), default=0.0)
    last = max((at for at, _ in arrived), default=0.0)
    late = [status for at, status in arrived if at - first > min(FIRST_S, seconds / 2)]
    lasted = max(last - first, 1e-9)
    used = sum(status == 200 for _, status in arrived) / (A_SECOND * lasted)
    overloads = late.count(429) / max(1, len(late))
    return Section(
        "fleet_rate",
        f"{PROCESSES * THREADS} clients of a fleet at an endpoint of {A_SECOND} requests a second",
        f"Measured for {seconds:g} s with a budget of {budget} requests, slow start included.",
        [],
        [
            Bar(
                "fleet at an endpoint with a rate limit: requests beyond the budget",
                max(0, len(arrived) - budget),
                0,
            ),
            Bar(
                "fleet at an endpoint with a rate limit: share of the rate that it uses",
                used,
                0.9,
                "x",
                at_least=True,
            ),
            Bar(
                "fleet at an endpoint with a rate limit: share of 429s after ten seconds",
                overloads,
                0.01,
                "x",
            ),
        ],
        {
            "requests that arrived": str(len(arrived)),
            "requests in the ledger": str(spent),
            "seconds from the first to the last": f"{lasted:.1f}",
            "answers 429": str(sum(status == 429 for _, status in arrived)),
        },
    )


def _clients(address: str, url: str, seconds: float) -> None:
    """Ask until the budget is used up or the time is over; runs in a process of its own."""
    link = BrokerLink(address, on_loss=lambda: None)
    set_request_gate(link)
    until = time.monotonic() + seconds
    threads = [threading.Thread(target=_client, args=(url, until)) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    link.close()


def _client(url: str, until: float) -> None:
    config = GameConfiguration(retry=RetrySettings(max_retries=5))
    with LLMClient(config, base_url=url, api_key="k") as client:
        while time.monotonic() < until:
            try:
                client.chat_completions_create("m", [{"role": "user", "content": "Is it?"}], max_tokens=5)
            except LLMError as error:
                if error.kind == "refused":
                    return


@contextmanager
def _endpoint() -> Iterator[tuple[str, "Statuses"]]:
    """Start the endpoint's process; yield its URL, and a function that stops it and returns what came."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,))
    with _unheard_ctrl_c():
        process.start()
    port = ours.recv()
    statuses = Statuses(ours)
    try:
        yield f"http://127.0.0.1:{port}/v1", statuses
    finally:
        process.kill()
        process.join()


@contextmanager
def _unheard_ctrl_c() -> Iterator[None]:
    """Let the processes that are started here ignore a Ctrl-C; this one ends them."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class Statuses:
    """Asks the endpoint for what came: the time and the status of each request."""

    def __init__(self, endpoint: Connection) -> None:
        self._endpoint = endpoint

    def __call__(self) -> list[tuple[float, int]]:
        """Return them."""
        self._endpoint.send("statuses")
        found: list[tuple[float, int]] = self._endpoint.recv()
        return found


def _serve(asked: Connection) -> None:
    asyncio.run(_Endpoint(asked).serve())


class _Endpoint:
    def __init__(self, asked: Connection) -> None:
        self._asked = asked
        self._window: deque[float] = deque()
        self._came: list[tuple[float, int]] = []

    async def serve(self) -> None:
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        self._asked.send(server.sockets[0].getsockname()[1])
        await asyncio.to_thread(self._asked.recv)
        self._asked.send(self._came)
        await asyncio.sleep(60)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, ConnectionError):
                return
            fields = (line.partition(b":") for line in head.lower().split(b"\r\n"))
            length = next(int(value) for name, _, value in fields if name == b"content-length")
            await reader.readexactly(length)
            if self._admit():
                await asyncio.sleep(random.uniform(0.3, 1.0))
                answer = b"HTTP/1.1 200 OK", _REPLY
            else:
                answer = (
                    b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1",
                    b'{"error": {"message": "slow"}}',
                )
            kind = b"\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(answer[1])
            writer.write(answer[0] + kind + answer[1])
            await writer.drain()

    def _admit(self) -> bool:
        now = time.monotonic()
        while self._window and self._window[0] <= now - 1.0:
            self._window.popleft()
        fits = len(self._window) < A_SECOND
        if fits:
            self._window.append(now)
        self._came.append((now, 200 if fits else 429))
        return fits


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Let many clients share an endpoint's rate.")
    parser.add_argument("seconds", type=float, nargs="?", default=60.0)
    print(printed(measured(parser.parse_args().seconds)))
