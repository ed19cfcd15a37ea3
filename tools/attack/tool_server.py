"""A hostile MCP server: sound answers with something done to them. Run it with the name of a case.

tool_server.py CASE [FILE]      over stdio; FILE takes the arguments of each call, one JSON a line
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - it is run with -I

from casebook import CANARY, Case, case_of
from damage import LITERALS, damaged, dumps, nested, odd_text, odd_value, with_another_member

PHASES = {"initialize": "initialize", "tools/list": "list", "tools/call": "call"}
Step = bytes | float | str
"""Bytes of standard output, seconds to wait, or a deed of `_do`."""
MB = 1_000_000

_REQUESTS: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        "sampling/createMessage",
        {"messages": [{"role": "user", "content": {"type": "text", "text": "Hi"}}], "maxTokens": 9},
    ),
    ("elicitation/create", {"message": "Name?", "requestedSchema": {"type": "object", "properties": {}}}),
    ("roots/list", {}),
    ("ping", {}),
    ("x/unknown", {"a": 1}),
)
_NOTES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("notifications/message", {"level": "info", "data": "working"}),
    ("notifications/progress", {"progressToken": 1, "progress": 1}),
    ("notifications/tools/list_changed", {}),
    ("notifications/cancelled", {"requestId": 1}),
    ("notifications/unknown", {}),
    ("notifications/message", {"level": CANARY, "data": CANARY}),
    ("notifications/progress", {"progressToken": {"a": CANARY}}),
)


def sound_answer(case: Case, message: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a request as it should be."""
    return {"jsonrpc": "2.0", "id": message.get("id"), "result": _result(case, message)}


def _result(case: Case, message: dict[str, Any]) -> dict[str, Any]:
    params = message.get("params") or {}
    match message.get("method"):
        case "initialize":
            return {
                "protocolVersion": params.get("protocolVersion"),
                "capabilities": {"tools": {"listChanged": True}, "logging": {}},
                "serverInfo": {"name": "hostile", "version": "1"},
            }
        case "tools/list":
            return {"tools": _tools(case)}
        case "tools/call":
            counted = {"done": True, "words": "a" * 40}
            return {"content": [{"type": "text", "text": json.dumps(counted)}], "structuredContent": counted}
        case _:
            return {}


def _tools(case: Case) -> list[dict[str, Any]]:
    properties = {"path": {"type": "string"}, "mode": {"type": "string"}, "count": {"type": "integer"}}
    schema = {"type": "object", "properties": properties}
    tool: dict[str, Any] = {"name": "act", "description": "Do it.", "inputSchema": schema}
    rng = case.rng("schema")
    if rng.random() < 0.3:
        # A pattern that backtracks for ever, a schema that refers to itself, a text for a schema.
        tool["outputSchema"] = rng.choice((
            {"type": "object", "properties": {"words": {"type": "string", "pattern": "^(a+)+$b"}}},
            {"$ref": "#"}, {"type": "object", "$ref": "#/$defs/x", "$defs": {"x": {"$ref": "#/$defs/x"}}},
            {"type": "object", "properties": {"done": {"type": "boolean"}}}, {"$ref": "http://127.0.0.1:1/x.json"},
            {"type": "object", "allOf": [{"type": "object"}] * 3_000}, {"type": "nonsense"},
        ))  # fmt: skip
    return [tool]


def line(message: Any) -> bytes:
    """Return a message as one line."""
    return dumps(message) + b"\n"


# --- what can be done to an answer ---


def flipped(rng: Random, answer: dict[str, Any]) -> Iterator[Step]:
    yield damaged(rng, dumps(answer)).replace(b"\n", b" ") + b"\n"


def other_member(rng: Random, answer: dict[str, Any]) -> Iterator[Step]:
    yield with_another_member(rng, answer) + b"\n"


def odd_result(rng: Random, answer: dict[str, Any]) -> Iterator[Step]:
    yield line({**answer, "result": odd_value(rng)})


def odd_error(rng: Random, answer: dict[str, Any]) -> Iterator[Step]:
    del answer["result"]
    error = rng.choice(
        (odd_value(rng), {"code": odd_value(rng), "message": odd_text(rng), "data": odd_value(rng)})
    )
    yield line({**answer, "error": error, **rng.choice(({}, {"result": {}}))})


def odd_id(rng: Random, answer: dict[str, Any]) -> Iterator[Step]:
    true = answer["id"]
    odd: list[object] = [True, None, 1.5, -1, 10**30, [], {}, "", str(true), odd_text(rng), [true], 0]
    for wrong in rng.sample(odd, 4):
        yield line({**answer, "id": wrong})
    yield line(answer)


def noise(rng: Random, answer: dict[str, Any]) -> Iterator[Step]:
    for _ in range(rng.choice((1, 20, 300))):
        yield rng.choice((
            rng.randbytes(30).replace(b"\n", b""), rng.choice(LITERALS), b"Listening...", b"", nested(rng), b"[1,2]", b'{"a":1}',
            dumps([answer]), b"\xef\xbb\xbf{}", dumps({"jsonrpc": "2.0"}), dumps({"method": odd_value(rng)}), dumps({"id": odd_value(rng)}),
        )) + b"\n"  # fmt: skip
    yield line(answer)


def flood(rng: Random, answer: dict[str, Any]) -> Iterator[Step]:
    method, params = rng.choice((*_NOTES, *_REQUESTS))
    odd = rng.random() < 0.3
    block = b"".join(
        line({
            "jsonrpc": "2.0", "method": method, "params": odd_value(rng) if odd else params,
            **({"id": f"flood-{number}"} if not method.startswith("notifications") else {}),
        })
        for number in range(200)
    )  # fmt: skip
    for _ in range(rng.choice((1, 20, 20, 2_000))):
        yield rng.choice((block, block, b"\n" * 20_000, b"noise\n" * 5_000))
    yield line(answer)


def nested_answer(rng: Random, answer: dict[str, Any]) -> Iterator[Step]:
    yield (
        dumps({**answer, "result": "@"}).replace(b'"@"', nested(rng, rng.choice((200, 700, 3_000, 200_000))))
        + b"\n"
    )


def twice(rng: Random, answer: dict[str, Any]) -> Iterator[Step]:
    yield line(answer) * rng.choice((2, 2, 500))


def in_bytes(rng: Random, answer: dict[str, Any]) -> Iterator[Step]:
    pause = rng.choice((0.0, 0.001, 0.2))
    for place in range(len(data := line(answer))):
        yield data[place : place + 1]
        yield pause


def deed(rng: Random, answer: dict[str, Any]) -> Iterator[Step]:
    yield line(answer)[: rng.choice((0, 0, 30, -1))]
    yield rng.choice(("exit", "die", "close-stdout", "hang", "stderr", "daemon", "fork", "stop", "deaf"))
    yield line(answer)


def never_ends(rng: Random, answer: dict[str, Any]) -> Iterator[Step]:
    del answer
    filling = rng.choice(
        (
            b"x" * 4_000,
            b"\n" * 4_000,
            b"x\n" * 2_000,
            line({"jsonrpc": "2.0", "method": "notifications/message", "params": {}}) * 50,
        )
    )
    while True:
        yield filling


def odd_listing(rng: Random, answer: dict[str, Any]) -> Iterator[Step]:
    tool = {"name": "act", "description": "Do it.", "inputSchema": {"type": "object"}}
    tools = rng.choice((
        [{**tool, "name": odd_text(rng)}, tool],
        [{**tool, "description": odd_text(rng)}],
        [{**tool, "inputSchema": odd_value(rng)}, tool],
        [{**tool, odd_text(rng)[:50]: odd_value(rng)}],
        [tool] * rng.choice((2, 300)),
        [{**tool, "name": f"act_{number}"} for number in range(2_000)],
        [odd_value(rng) for _ in range(20)],
    ))  # fmt: skip
    yield line(
        {
            **answer,
            "result": {
                "tools": tools,
                **rng.choice(({}, {}, {"nextCursor": odd_value(rng)}, {"nextCursor": "again"})),
            },
        }
    )


def odd_content(rng: Random, answer: dict[str, Any]) -> Iterator[Step]:
    kind = rng.choice(("text", "image", "audio", "resource", "resource_link", "nonsense", odd_text(rng)))
    part = {"type": kind, "text": odd_text(rng), "data": rng.choice(("AAAA", "!!!", "A" * 5_000, odd_text(rng))), "mimeType": rng.choice(("image/png", odd_text(rng))),
            "uri": rng.choice(("file:///x", odd_text(rng))), "name": odd_text(rng), "resource": odd_value(rng)}  # fmt: skip
    result = {
        "content": [part] * rng.choice((1, 1, 60)),
        "isError": odd_value(rng),
        "structuredContent": odd_value(rng),
    }
    for key in rng.sample(sorted(result), rng.randrange(3)):
        del result[key]
    yield line({**answer, "result": result})


def big(rng: Random, answer: dict[str, Any]) -> Iterator[Step]:
    size = rng.choice((5, 20, 60)) * MB
    filling = rng.choice(("x", "authorization ", "\u00e9", "\\", "password: "))
    text = filling * (size // len(dumps(filling)[1:-1]))
    match rng.randrange(4):
        case 0:
            yield line({**answer, "result": {"content": [{"type": "text", "text": text}]}})
        case 1:
            rows = [{"a": number, "b": "text"} for number in range(size // 40)]
            yield line({**answer, "result": {"content": [], "structuredContent": {"rows": rows}}})
        case 2:
            yield line(
                {
                    **answer,
                    "result": {"content": [{"type": "image", "mimeType": "image/png", "data": "A" * size}]},
                }
            )
        case _:
            for _ in range(size // 100_000):
                yield b"x" * 100_000
            yield b"\n" + line(answer)


Attack = Callable[[Random, dict[str, Any]], Iterator[Step]]
ATTACKS: tuple[Attack, ...] = (
    flipped, other_member, other_member, odd_result, odd_error, odd_id, noise, flood, nested_answer, twice, in_bytes, deed, deed, never_ends,
)  # fmt: skip
PHASE_ATTACKS: dict[str, tuple[Attack, ...]] = {"list": (odd_listing,) * 6, "call": (odd_content,) * 6}


def drawn(case: Case, message: dict[str, Any], number: int) -> tuple[str, Iterator[Step]]:
    """Return what becomes of an answer: the attack's name, empty if it is sound, and the steps."""
    answer = sound_answer(case, message)
    phase = PHASES.get(str(message.get("method")), "other")
    at = case.rng("phase").choice(("initialize", "list", "list", "call", "call", "call"))
    if phase == "other" or not (phase == at or (case.again and phase == "call")):
        return "", iter((line(answer),))
    rng = case.rng("answer", number)
    chosen = big if case.big and phase == "call" else rng.choice(ATTACKS + PHASE_ATTACKS.get(phase, ()))
    return f"{phase}: {chosen.__name__}", chosen(rng, answer)


def over_http(case: Case, method: str, body: bytes, told: Any) -> Iterator[Step]:
    """Answer an HTTP request: JSON, or one event."""
    import replies

    if method != "POST":
        return iter((replies.head("text/plain", 0, status="405 Not Allowed"),))
    message = json.loads(body)
    if not isinstance(message, dict) or "id" not in message or "method" not in message:
        return iter((replies.head("text/plain", 0, status="202 Accepted"),))
    number = told.number(f"{case.name}/mcp")
    rng = case.rng("http", number)
    name, steps = drawn(case, message, number)
    if name:
        told.note(case.name, number, name, strict=False)
    events = rng.random() < 0.5
    if name and rng.random() < 0.4:
        sound = line(sound_answer(case, message)).strip()
        plan = rng.choice(tuple(each for each in replies.ANY_ATTACKS if each not in replies.CALLERS))
        told.note(case.name, number, plan.__name__, strict=False)
        return plan(
            rng, replies.Sound("mcp", sound, (b"data: " + sound + b"\n\n",) * 2 if events else ())
        ).steps
    return _in_http(steps, events=events)


def _in_http(steps: Iterator[Step], *, events: bool) -> Iterator[Step]:
    import replies

    yield replies.head("text/event-stream" if events else "application/json", None)
    for step in steps:
        if isinstance(step, bytes) and events:
            yield b"".join(b"data: " + each + b"\n\n" for each in step.split(b"\n") if each)
        elif isinstance(step, str):
            yield "hang" if step in ("hang", "stop", "deaf") else "close"
            return
        else:
            yield step
    yield "close"


# --- over stdio ---


def _do(what: str) -> None:
    match what:
        case "exit":
            os._exit(3)
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "close-stdout":
            os.close(1)
        case "hang":
            time.sleep(600)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(600)
        case "stderr":
            os.write(2, b"\xff\x1b[2Jpassword=hunter2hunter2 " * 20_000 + CANARY.encode() + b"\n")
        case "fork":
            if os.fork() == 0:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                time.sleep(600)
        case "daemon":
            subprocess.Popen(["sh", "-c", "exec sleep 600"], start_new_session=True, env={})


def main() -> None:
    """Serve over stdio."""
    case = case_of(sys.argv[1])
    calls = sys.argv[2] if len(sys.argv) > 2 else os.devnull
    threading.excepthook = lambda _: None
    os.write(2, b"cannot use " + CANARY.encode() + b"\n")
    for number, raw in enumerate(sys.stdin.buffer):
        message = json.loads(raw)
        if message.get("method") == "tools/call":
            with open(calls, "a") as file:  # noqa: PTH123
                file.write(json.dumps(message["params"].get("arguments")) + "\n")
        if "id" not in message or "method" not in message:
            continue
        name, steps = drawn(case, message, number)
        if name:
            with open(calls + ".told", "a") as file:  # noqa: PTH123
                file.write(name + "\n")
        with contextlib.suppress(OSError):
            for step in steps:
                if isinstance(step, bytes):
                    sys.stdout.buffer.write(step)
                    sys.stdout.buffer.flush()
                elif isinstance(step, float):
                    time.sleep(step)
                else:
                    _do(step)


if __name__ == "__main__":
    main()
