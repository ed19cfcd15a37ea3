"""The hostile endpoint, a process of its own: a model's (`/llm/CASE/v1/...`) and a tool server's (`/mcp/CASE`).

It prints its port, and serves until its standard input ends. `GET /told/CASE` says what it has done in a case.
"""

import contextlib
import json
import select
import socket
import struct
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import replies
import tool_server
from casebook import Case, case_of
from damage import damaged, dumps, odd_value, with_another_member

_HANGS_S = 15.0


class Told:
    """What was done in each case, by case; forgotten when another one is asked about."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.requests: dict[str, int] = defaultdict(int)
        self.attacks: dict[str, list[dict[str, Any]]] = defaultdict(list)

    def number(self, name: str) -> int:
        """Return the number of this request in its case, from 0."""
        with self.lock:
            self.requests[name] += 1
            return self.requests[name] - 1

    def note(self, name: str, number: int, attack: str, *, strict: bool) -> None:
        """Keep what was done."""
        with self.lock:
            self.attacks[name].append({"request": number, "attack": attack, "strict": strict})

    def of(self, name: str) -> bytes:
        """Return it as JSON, and forget all cases."""
        with self.lock:
            said = json.dumps(self.attacks.get(name, []))
            self.attacks.clear()
            self.requests.clear()
        return said.encode()


TOLD = Told()


def serve(connection: socket.socket) -> None:
    """Answer the requests of one connection."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with connection, contextlib.suppress(OSError, ValueError), connection.makefile("rb") as reader:
        while line := reader.readline(65_536):
            method, path, _ = line.decode("latin-1").split(" ", 2)
            headers = _headers(reader)
            body = reader.read(int(headers.get("content-length", 0)))
            if not send(connection, steps_for(method, path, body)):
                return


def _headers(reader: Any) -> dict[str, str]:
    headers = {}
    while (line := reader.readline(65_536)) not in (b"\r\n", b"\n", b""):
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    return headers


def send(connection: socket.socket, steps: Iterable[replies.Step]) -> bool:
    """Do what the steps say; False if the connection has ended with them."""
    for step in steps:
        if isinstance(step, bytes):
            connection.sendall(step)
        elif isinstance(step, float):
            if _gone(connection, step):
                return False
        elif step == "hang":
            _gone(connection, _HANGS_S)
            return False
        else:
            if step == "reset":
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return False
    return True


def _gone(connection: socket.socket, within_s: float) -> bool:
    """Wait, and say whether the client has gone meanwhile."""
    readable, _, _ = select.select([connection], [], [], within_s)
    return bool(readable) and not connection.recv(1, socket.MSG_PEEK)


def steps_for(method: str, path: str, body: bytes) -> Iterable[replies.Step]:
    """Return what is sent in answer to a request."""
    _, place, name, *rest = [*path.partition("?")[0].split("/"), "", ""]
    if place == "told":
        said = TOLD.of(name)
        return iter((replies.head("application/json", len(said)) + said,))
    case = case_of(name)
    if place == "mcp":
        return tool_server.over_http(case, method, body, TOLD)
    if method == "GET":
        return models(case)
    return completion(case, "/" + "/".join(rest), json.loads(body))


def completion(case: Case, path: str, request: dict[str, Any]) -> Iterable[replies.Step]:
    """Answer as the model."""
    number = TOLD.number(case.name)
    path = path.rstrip("/")
    sound = replies.sound_reply(case, path, request, number)
    hostile = number == case.attack_at or (case.again and number > case.attack_at)
    if case.kind not in ("reply", "stream") or not hostile:
        return replies.served(sound)
    plan = replies.attack(case, sound, request, path, number)
    TOLD.note(case.name, number, plan.attack, strict=plan.strict)
    return plan.steps


def models(case: Case) -> Iterable[replies.Step]:
    """Answer with a list of models."""
    listed = {"data": [{"id": "hostile", "name": "H", "supported_parameters": ["tools", "temperature"]}]}
    body = dumps(listed)
    if case.kind == "models":
        rng = case.rng("models")
        big = [
            {"id": f"m{number}", "supported_parameters": ["tools"]}
            for number in range(200_000 if case.big else 50)
        ]
        body = rng.choice((
            damaged(rng, body), with_another_member(rng, listed), with_another_member(rng, listed), dumps(odd_value(rng)), dumps({"data": big})
        ))  # fmt: skip
        sound = replies.Sound("chat_completions", body, ())
        plan = rng.choice((None, None, *replies.ANY_ATTACKS))
        TOLD.note(case.name, 0, "models " + (plan.__name__ if plan else ""), strict=False)
        if plan is not None and plan not in replies.CALLERS:
            return plan(rng, sound).steps
    return iter((replies.head("application/json", len(body)) + body,))


def main() -> None:
    """Serve until standard input ends."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=200)
    print(listener.getsockname()[1], flush=True)

    def accept() -> None:
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=_served_or_told, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    sys.stdin.read()


def _served_or_told(connection: socket.socket) -> None:
    try:
        serve(connection)
    except Exception as error:  # noqa: BLE001 - a mistake of this program's, which must not look like an attack
        print(f"attack: the endpoint itself failed: {error!r} at {time.ctime()}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
