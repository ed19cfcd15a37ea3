"""The processes of `fleet_rate.py`: an endpoint that enforces a rate limit, and clients of a fleet.

    python benchmarks/rate_worker.py endpoint   answer the first input line with the port, later ones with the
                                                requests that have arrived
    python benchmarks/rate_worker.py clients    for each input line (arguments of `clients` as JSON), send
    requests

Each answer is a line of JSON.
"""

import asyncio
import json
import random
import sys
import threading
import time
from collections import deque

THREADS, A_SECOND = 16, 20
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


def clients(address: str, url: str, seconds: float) -> dict[str, object]:
    """Let `THREADS` clients send requests until the broker's budget is used up or `seconds` have passed."""
    # Import these here, because the process of the endpoint does not need them.
    from grue.config.settings import RetrySettings
    from grue.errors import LLMError
    from grue.fleet.broker_server import BrokerLink
    from grue.hosting import GameConfiguration
    from grue.hosts.zork.client import LLMClient
    from grue.transports.llm.exchange import set_request_gate

    def ask() -> None:
        with LLMClient(config, base_url=url, api_key="k") as client:
            while time.monotonic() < until:
                try:
                    client.chat_completions_create("m", [{"role": "user", "content": "Is it?"}], max_tokens=5)
                except LLMError as error:
                    if error.kind == "refused":
                        return

    config = GameConfiguration(retry=RetrySettings(max_retries=5))
    link = BrokerLink(address, on_loss=lambda: None)
    set_request_gate(link)
    until = time.monotonic() + seconds
    threads = [threading.Thread(target=ask) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    link.close()
    return {}


class Endpoint:
    """Refuses requests beyond its rate with 429. Notes the time and the status of each request."""

    def __init__(self) -> None:
        self._window: deque[float] = deque()
        self._came: list[tuple[float, int]] = []

    async def serve(self) -> None:
        """Serve until standard input ends."""
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        answer: dict[str, object] = {"port": server.sockets[0].getsockname()[1]}
        while await asyncio.to_thread(sys.stdin.readline):
            _say(answer)
            answer = {"came": self._came}

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


def _say(answer: object) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Run the endpoint, or run clients for each line of standard input."""
    if sys.argv[1] == "endpoint":
        asyncio.run(Endpoint().serve())
        return
    for line in sys.stdin:
        _say(clients(**json.loads(line)))


if __name__ == "__main__":
    main()
