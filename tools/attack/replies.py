"""What a hostile model's endpoint sends: a sound reply with something done to it, as steps for a socket.

A step is bytes to send, a number of seconds to wait, or one of the words `hang`, `close` and `reset`.
"""

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from casebook import Case, arguments
from damage import LITERALS, damaged, dumps, nested, odd_text, odd_value, reads_as_json, with_another_member

from grue.testing.llm_replies import LlmReply, completion, text_reply, tool_calls_reply
from grue.testing.providers.dialects import Dialect, dialect_of

Step = bytes | float | str
MB = 1_000_000


@dataclass
class Sound:
    """A reply as it should be."""

    wire: str
    body: bytes
    events: tuple[bytes, ...]

    @property
    def whole(self) -> bytes:
        """The body of the HTTP reply."""
        return b"".join(self.events) or self.body

    @property
    def content_type(self) -> str:
        """Of that body."""
        return "text/event-stream" if self.events else "application/json"


@dataclass
class Plan:
    """What is sent.

    Attributes:
        attack: Its name.
        strict: Anybody can see that this reply is damaged: no call in it may be executed with other
            arguments than the model's.
    """

    attack: str
    steps: Iterator[Step]
    strict: bool = False


Attack = Callable[[Random, Sound], Plan]


def sound_reply(case: Case, path: str, request: dict[str, Any], number: int) -> Sound:
    """Return the reply to a request: calls until there are enough results, then words."""
    dialect = dialect_of(path)
    assert dialect is not None
    chat = _chat(dialect, request)
    answered = sum(message.get("role") == "tool" for message in chat.get("messages", ()))
    names = [tool["function"]["name"] for tool in chat.get("tools") or ()]
    if names and answered < case.calls:
        call = (names[0], arguments(case, number))
        return render(dialect, tool_calls_reply(call, ids=[f"call_{number}"]), request)
    return render(dialect, text_reply("It is done. " * 4), request)


def render(dialect: Dialect, reply: LlmReply, request: dict[str, Any]) -> Sound:
    """Return a chat completion as it is sent in a format."""
    said = dialect.reply(reply.body, 200, request)
    assert said is not None
    events = tuple(dialect.events(said, request)) if request.get("stream") else ()
    return Sound(dialect.name, json.dumps(said).encode(), events)


def _chat(dialect: Dialect, request: dict[str, Any]) -> dict[str, Any]:
    try:
        return dialect.to_chat(request)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return {}


def served(sound: Sound) -> Iterator[Step]:
    """Send it as it is."""
    yield head(sound.content_type, len(sound.whole)) + sound.whole


def head(content_type: str, length: int | None, *more: str, status: str = "200 OK") -> bytes:
    """Return the head of a reply; without a length the end of the connection ends it."""
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {content_type}", *more]
    lines.append("Connection: close" if length is None else f"Content-Length: {length}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")


def attack(case: Case, sound: Sound, request: dict[str, Any], path: str, number: int) -> Plan:
    """Draw what is done to a reply."""
    rng = case.rng("reply", number)
    pool = BIG if case.big else (STREAM_ATTACKS if sound.events else BODY_ATTACKS) + ANY_ATTACKS
    chosen = rng.choice(pool)
    plan = chosen(rng, sound)
    if chosen in CALLERS:
        plan = _hostile_calls(rng, sound, request, path)
    if chosen in OF_A_TOOL:
        plan = _of_a_tool(chosen, rng, sound, request, path)
    plan.attack = plan.attack or chosen.__name__.strip("_")
    return plan


def _sent(sound: Sound, body: bytes, *, strict: bool = False, attack: str = "") -> Plan:
    return Plan(attack, iter((head(sound.content_type, len(body)) + body,)), strict)


# --- whole replies ---


def flipped_bytes(rng: Random, sound: Sound) -> Plan:
    body = damaged(rng, sound.body)
    return _sent(sound, body, strict=not reads_as_json(body))


def other_member(rng: Random, sound: Sound) -> Plan:
    return _sent(sound, with_another_member(rng, json.loads(sound.body)))


def cut_body(rng: Random, sound: Sound) -> Plan:
    return _sent(sound, sound.whole[: rng.randrange(len(sound.whole) - 3)], strict=not sound.events)


def literal(rng: Random, sound: Sound) -> Plan:
    return _sent(
        sound,
        rng.choice((*LITERALS, nested(rng, 100_000), b"", b"<html>502</html>", b" " * 10_000)),
        strict=True,
    )


def other_encoding(rng: Random, sound: Sound) -> Plan:
    text = sound.body.decode()
    return _sent(sound, text.encode(rng.choice(("utf-16", "utf-32", "utf-7", "utf-8-sig", "cp500"))))


def twice(rng: Random, sound: Sound) -> Plan:
    return _sent(sound, sound.body + rng.choice((b"", b"\n", b",")) + sound.body, strict=True)


# --- streams ---


def corrupt_event(rng: Random, sound: Sound) -> Plan:
    events = list(sound.events)
    place = rng.randrange(len(events))
    fields = events[place].split(b"data: ", 1)
    strict = len(fields) == 2 and fields[1].strip() != b"[DONE]"
    if strict:
        data = damaged(rng, fields[1].strip()).replace(b"\n", b"").replace(b"\r", b"")
        events[place] = fields[0] + b"data: " + data + b"\n\n"
        # A comment, or a value that is another but still JSON, nobody can tell from a sound one.
        strict = not reads_as_json(data) and data.strip() not in (b"", b"[DONE]")
    else:
        events[place] = damaged(rng, events[place])
    return _sent(sound, b"".join(events), strict=strict)


def events_rearranged(rng: Random, sound: Sound) -> Plan:
    events = list(sound.events)
    for _ in range(rng.choice((1, 1, 2, 6))):
        place, other = rng.randrange(len(events)), rng.randrange(len(events))
        match rng.randrange(4):
            case 0:
                del events[place]
            case 1:
                events.insert(other, events[place])
            case 2:
                events[place], events[other] = events[other], events[place]
            case _:
                events += events[place:]
        if not events:
            break
    return _sent(sound, b"".join(events))


def other_member_in_event(rng: Random, sound: Sound) -> Plan:
    events = list(sound.events)
    for _ in range(rng.choice((1, 1, 3))):
        place = rng.randrange(len(events))
        start, found, data = events[place].partition(b"data: ")
        if found and reads_as_json(data):
            events[place] = start + b"data: " + with_another_member(rng, json.loads(data)) + b"\n\n"
    return _sent(sound, b"".join(events))


def cut_stream(rng: Random, sound: Sound) -> Plan:
    # What follows the last but two is the end: a finish reason, usage, [DONE].
    body = sound.whole[: rng.randrange(1, max(2, len(b"".join(sound.events[:-3]))))]
    ending: Step = rng.choice(("close", "reset"))
    return Plan("", iter((head(sound.content_type, None) + body, ending)), strict=True)


def odd_line_ends(rng: Random, sound: Sound) -> Plan:
    return _sent(
        sound, sound.whole.replace(b"\n", rng.choice((b"\r", b"\r\n", b"\n\n", b"\x0b", b"\xe2\x80\xa8")))
    )


def insertion(rng: Random, sound: Sound) -> Plan:
    place = rng.randrange(len(sound.events))
    filling = rng.choice(
        (
            b": ping\n\n" * 5_000,
            b"\n" * 50_000,
            b"data:\n\n" * 2_000,
            b"data: {}\n\n" * 2_000,
            b"event: " + odd_text(rng).encode("utf-8", "replace") + b"\ndata: {}\n\n",
            b"data: " + dumps(odd_value(rng)) + b"\n\n",
            b"data: " + nested(rng) + b"\n\n",
            b"\xef\xbb\xbf",
            b"data: [DONE]\n\n",
            b"id: 1\nretry: 99999999999\n\n",
            b"data: " + b"x" * 300_000,
        )
    )
    events = [*sound.events[:place], filling, *sound.events[place:]]
    return _sent(sound, b"".join(events))


def in_pieces(rng: Random, sound: Sound) -> Plan:
    size = rng.choice((1, 3, 17))

    def steps() -> Iterator[Step]:
        yield head(sound.content_type, len(sound.whole))
        for start in range(0, len(sound.whole), size):
            yield sound.whole[start : start + size]
            yield 0.0005

    return Plan("", steps(), strict=True)


# --- both ---


def drip(rng: Random, sound: Sound) -> Plan:
    pause = rng.choice((0.02, 0.3))

    def steps() -> Iterator[Step]:
        yield head(sound.content_type, len(sound.whole))
        for place in range(len(sound.whole)):
            yield sound.whole[place : place + 1]
            yield pause

    return Plan("", steps(), strict=True)


def stops(rng: Random, sound: Sound) -> Plan:
    everything = head(sound.content_type, len(sound.whole)) + sound.whole
    return Plan(
        "",
        iter((everything[: rng.randrange(len(everything) - 2)], rng.choice(("hang", "close", "reset")))),
        strict=True,
    )


def odd_status(rng: Random, sound: Sound) -> Plan:
    status = rng.choice(("100 Continue", "204 No", "206 Part", "304 Same", "400 Bad", "401 No", "402 Pay", "404 None",
                         "408 Slow", "413 Big", "429 Wait", "500 Oh", "503 Busy", "529 Over", "599 X", "999 Huh", "000 Nil"))  # fmt: skip
    body = rng.choice((sound.body, b"", dumps({"error": odd_value(rng)}), dumps(odd_value(rng)), with_another_member(
        rng, {"error": {"message": odd_text(rng), "type": "x", "code": 3, "metadata": {"raw": odd_text(rng)}}})))  # fmt: skip
    after = rng.choice(
        ("", "0", "-5", "1e999", "nan", "9" * 30, "Wed, 21 Oct 9999 07:28:00 GMT", "\x01", "0.01")
    )
    return Plan(
        "", iter((head("application/json", len(body), f"Retry-After: {after}", status=status) + body,))
    )


def odd_head(rng: Random, sound: Sound) -> Plan:
    body = sound.whole
    fields = rng.choice(
        (
            ["Content-Length: 5", f"Content-Length: {len(body)}"],
            ["Content-Length: -1"],
            [f"Content-Length: {10**30}"],
            ["Transfer-Encoding: chunked", f"Content-Length: {len(body)}"],
            [f"X-{number}: {number}" for number in range(3_000)],
            ["X-Long: " + "x" * 300_000],
            ["Content-Type: \xff\xfe", f"Content-Length: {len(body)}"],
            ["Content-Type: application/json; charset=utf-16", f"Content-Length: {len(body)}"],
            ["Content-Encoding: " + ", ".join(["gzip"] * 50), f"Content-Length: {len(body)}"],
            ["Content-Encoding: br", f"Content-Length: {len(body)}"],
            ["Set-Cookie: " + "a" * 5_000, f"Content-Length: {len(body)}"],
            ["No colon", f"Content-Length: {len(body)}"],
            [" Folded: x", f"Content-Length: {len(body)}"],
        )
    )
    begun = rng.choice(
        ("HTTP/1.1 200 OK", "HTTP/1.1 200 OK", "HTTP/9.9 200", "ICY 200 OK", "HTTP/1.1 200 \xff\x00")
    )
    lines = "\r\n".join((begun, *fields)).encode("latin-1", "replace")
    return Plan("", iter((lines + b"\r\n\r\n" + body, "close")))


def bad_chunks(rng: Random, sound: Sound) -> Plan:
    start = (
        b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nTransfer-Encoding: chunked\r\n\r\n"
        % sound.content_type.encode()
    )
    half = len(sound.whole) // 2
    begun = b"%x\r\n%b\r\n" % (half, sound.whole[:half])
    rest = rng.choice(
        (
            b"zz\r\n",
            b"-1\r\n",
            b"f" * 40 + b"\r\n",
            b"0\r\n\r\n",
            b"5\r\nabcdefgh\r\n0\r\n\r\n",
            b"",
            rng.randbytes(90),
        )
    )
    return Plan("", iter((start + begun + rest, "close")), strict=True)


def redirects(rng: Random, sound: Sound) -> Plan:
    where = rng.choice(
        (
            "/",
            "",
            "//",
            "http://127.0.0.1:1/",
            "file:///etc/passwd",
            "https://[::1",
            "\xff",
            "/llm/x" * 3_000,
            "?",
        )
    )
    status = rng.choice(("301 M", "302 F", "303 S", "307 T", "308 P"))
    return Plan("", iter((head(sound.content_type, 0, f"Location: {where}", status=status),)), strict=True)


def garbage(rng: Random, sound: Sound) -> Plan:
    return Plan(
        "",
        iter((rng.randbytes(rng.choice((0, 1, 30, 5_000))), rng.choice(("close", "reset", "hang")))),
        strict=True,
    )


def never_ends(rng: Random, sound: Sound) -> Plan:
    filling = rng.choice(
        (
            b" ",
            b"\n",
            b"x",
            b": ping\n\n",
            b"data: {}\n\n",
            sound.events[1] if sound.events else b"[",
            b"\x00",
        )
    )
    block = filling * (1 + 4_000 // len(filling))

    def steps() -> Iterator[Step]:
        yield head(sound.content_type, None) + b"".join(sound.events[:2])
        while True:
            yield block
            yield 0.001

    return Plan("", steps(), strict=True)


def endless_head(rng: Random, sound: Sound) -> Plan:
    def steps() -> Iterator[Step]:
        yield b"HTTP/1.1 200 OK\r\n"
        while True:
            yield rng.choice((b"X-More: of it\r\n" * 50, b"HTTP/1.1 100 Continue\r\n\r\n" * 20))
            yield 0.005

    return Plan("", steps(), strict=True)


def compressed(rng: Random, sound: Sound) -> Plan:
    packed = gzip.compress(sound.whole, mtime=0)
    match rng.randrange(5):
        case 0:
            coding, body = "gzip", damaged(rng, packed)
        case 1:
            coding, body = "gzip", packed[: rng.randrange(len(packed) - 1)]
        case 2:
            coding, body = (
                "deflate",
                rng.choice((zlib.compress(sound.whole), zlib.compress(sound.whole)[2:-4], b"x")),
            )
        case 3:
            coding, body = "gzip, gzip", gzip.compress(packed, mtime=0)
        case _:
            coding, body = "gzip", packed * 2
    # A stream may have said all that counts before the damage; a body has not.
    strict = not sound.events and coding == "gzip"
    return Plan(
        "", iter((head(sound.content_type, len(body), f"Content-Encoding: {coding}") + body,)), strict
    )


def hostile_calls(rng: Random, sound: Sound) -> Plan:
    return Plan("", iter(()))


def _hostile_calls(rng: Random, sound: Sound, request: dict[str, Any], path: str) -> Plan:
    """Calls that are sound on the wire, and odd in themselves."""
    dialect = dialect_of(path)
    assert dialect is not None
    tools = _chat(dialect, request).get("tools") or [{"function": {"name": "tools.act"}}]
    name = rng.choice((tools[0]["function"]["name"], odd_text(rng), "", "tools.none"))
    odd_arguments = rng.choice((
        '{"a":1}' * rng.choice((2, 500)),
        nested(rng).decode(),
        '{"count": ' + "7" * 5_000 + "}",
        '{"path": "x"' * 3,
        "",
        "null",
        '{"path": "\\ud800"}',
        json.dumps(odd_value(rng)),
        odd_text(rng),
    ))  # fmt: skip
    count = min(rng.choice((1, 1, 2, 30, 500)), 1 + 200_000 // (200 + len(odd_arguments)))
    ids = [rng.choice(("", "same", f"call_{number}", odd_text(rng))) for number in range(count)]
    try:
        sound = render(dialect, tool_calls_reply(*[(name, odd_arguments)] * count, ids=ids), request)
    except (ValueError, AssertionError, RecursionError):
        return Plan("hostile_calls", iter((head("application/json", 0),)))
    return Plan("hostile_calls", served(sound))


# --- replies that are no calls, though they have some ---

AS_TEXT = "/written-as-text"
"""In the arguments of calls that nobody may make."""

_WRITTEN = json.dumps({"path": AS_TEXT})
_FORMS = (
    '<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>',
    "<tool_call>\n<function={name}>\n<parameter=path>\n"
    + AS_TEXT
    + "\n</parameter>\n</function>\n</tool_call>",
    "<function={name}>{arguments}</function>",
    '[TOOL_CALLS] [{{"name": "{name}", "arguments": {arguments}}}]',
    "[TOOL_CALLS]{name}[ARGS]{arguments}",
    '```json\n{{"name": "{name}", "arguments": {arguments}}}\n```',
    '{{"name": "{name}", "parameters": {arguments}}}',
    "<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}<|call|>",
    "<\uff5ctool\u2581calls\u2581begin\uff5c><\uff5ctool\u2581call\u2581begin\uff5c>{name}<\uff5ctool\u2581sep\uff5c>"
    "{arguments}<\uff5ctool\u2581call\u2581end\uff5c><\uff5ctool\u2581calls\u2581end\uff5c>",
    "<think>\nI call it.\n</think>\n",
)


def written_call(rng: Random, sound: Sound) -> Plan:
    return Plan("", iter(()))


def ended_early(rng: Random, sound: Sound) -> Plan:
    return Plan("", iter(()))


def _of_a_tool(chosen: Attack, rng: Random, sound: Sound, request: dict[str, Any], path: str) -> Plan:
    """Return a call written as text, or one that was stopped before its arguments began."""
    dialect = dialect_of(path)
    assert dialect is not None
    tools = _chat(dialect, request).get("tools")
    if not tools:
        return Plan(chosen.__name__, served(sound), strict=True)
    name = tools[0]["function"]["name"]
    if chosen is written_call:
        text = rng.choice(_FORMS).format(name=name, arguments=_WRITTEN)
        reply = text_reply(rng.choice(("", "", "I look.\n\n", "<think>Hm.</think>\n")) + text)
    else:
        call = {
            "id": "c",
            "type": "function",
            "function": {"name": name, "arguments": rng.choice(("", "{}"))},
        }
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        reply = completion(message, finish_reason="content_filter")
    return Plan(chosen.__name__, served(render(dialect, reply, request)), strict=True)


_BEHIND = {
    "chat_completions": {"choices": [{"index": 0, "finish_reason": "tool_calls", "delta": {"tool_calls": [
        {"index": 0, "id": "x", "function": {"name": "tools.act", "arguments": _WRITTEN}}]}}]},
    "responses": {"type": "response.completed", "response": {"status": "completed", "output": [
        {"type": "function_call", "call_id": "x", "name": "tools.act", "arguments": _WRITTEN}]}},
    "messages": {"type": "content_block_start", "index": 0, "content_block": {
        "type": "tool_use", "id": "x", "name": "tools.act", "input": {"path": AS_TEXT}}},
}  # fmt: skip


def behind_the_end(rng: Random, sound: Sound) -> Plan:
    behind = b"data: " + dumps(_BEHIND[sound.wire]) + rng.choice((b"", b"\n", b"\n\n"))
    return _sent(sound, sound.whole + behind, strict=True)


def another_end(rng: Random, sound: Sound) -> Plan:
    """The last event of a stream of responses has another call than the events before it."""
    start, _, data = sound.events[-1].partition(b"data: ")
    if sound.wire != "responses":
        return behind_the_end(rng, sound)
    said = json.loads(data)
    output = said["response"]["output"]
    call = {"type": "function_call", "id": "x", "call_id": "x", "name": "tools.act", "arguments": _WRITTEN}
    match rng.randrange(3):
        case 0:
            output.append(call)
        case 1:
            output[:] = [call]
        case _:
            for item in output:
                item.update({"arguments": _WRITTEN} if item.get("type") == "function_call" else {})
    body = b"".join((*sound.events[:-1], start, b"data: ", dumps(said), b"\n\n"))
    return _sent(sound, body, strict=True)


# --- large ---


def big_bomb(rng: Random, sound: Sound) -> Plan:
    body = b" " * (rng.choice((60, 300)) * MB)
    for _ in range(layers := rng.choice((1, 2, 3))):
        body = gzip.compress(body, 1, mtime=0)
    return Plan(
        "",
        iter(
            (head(sound.content_type, len(body), "Content-Encoding: " + ", ".join(["gzip"] * layers)) + body,)
        ),
    )


def big_text(rng: Random, sound: Sound) -> Plan:
    filling = rng.choice(
        (b"x", b"authorization ", b"\\u00e9", b"\\\\", b"password=abc ", "ü".encode(), b"<think>")
    )
    filling *= rng.choice((5, 20, 45)) * MB // len(filling)
    needle = b"It is done." if b"It is done." in sound.whole else b"/data/"
    return _sent(sound, sound.whole.replace(needle, filling, 1))


def big_arguments(rng: Random, sound: Sound) -> Plan:
    filling = rng.choice((b'{\\"a\\":1}\\n', b"[", b'{\\"a\\":', b"1", b" "))
    return _sent(sound, sound.whole.replace(b'{\\"path', filling * (4 * MB // len(filling)) + b'{\\"path', 1))


def big_stream(rng: Random, sound: Sound) -> Plan:
    many = rng.choice((20_000, 100_000))
    pool = sound.events or (sound.body,)
    return _sent(sound, b"".join((*pool[:2], rng.choice(pool) * many, *pool[2:])))


def big_parts(rng: Random, sound: Sound) -> Plan:
    """Parts of a stream that are no texts: little to send, and much to hold."""
    many = b"[" + b"{}," * 40_000 + b"{}]"
    part = {
        "chat_completions": b'{"choices": [{"index": 0, "delta": {"reasoning_details": %b}}]}',
        "messages": b'{"type": "message_delta", "delta": {"x": %b}, "usage": {"y": %b}}',
        "responses": b'{"type": "response.output_item.done", "item": {"x": %b}}',
    }[sound.wire]
    event = b"data: " + part.replace(b"%b", many) + b"\n\n"
    body = gzip.compress(b"".join(sound.events[:2]) + event * rng.choice((20, 300)), 1, mtime=0)
    return Plan("", iter((head("text/event-stream", len(body), "Content-Encoding: gzip") + body,)))


def big_structure(rng: Random, sound: Sound) -> Plan:
    return _sent(
        sound,
        rng.choice((b"[" * 20 * MB, b"[" + b"{}," * 5 * MB + b"{}]", b'{"a":[' + b"1.5," * 5 * MB + b"1]}")),
    )


BODY_ATTACKS: tuple[Attack, ...] = (
    flipped_bytes,
    other_member,
    other_member,
    other_member,
    cut_body,
    literal,
    other_encoding,
    twice,
)
STREAM_ATTACKS: tuple[Attack, ...] = (corrupt_event, corrupt_event, events_rearranged, other_member_in_event, other_member_in_event,
                                      cut_stream, odd_line_ends, insertion, in_pieces, behind_the_end,
                                      another_end)  # fmt: skip
ANY_ATTACKS: tuple[Attack, ...] = (drip, stops, odd_status, odd_head, bad_chunks, redirects, garbage, never_ends, endless_head,
                                   compressed, hostile_calls, hostile_calls, written_call, written_call, ended_early)  # fmt: skip
BIG: tuple[Attack, ...] = (big_bomb, big_text, big_arguments, big_stream, big_structure, big_parts)
CALLERS = (hostile_calls,)
OF_A_TOOL = (written_call, ended_early)
