"""Recorded turns of several kinds in each wire format, and functions that fork them and check the forks."""

import contextlib
import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, get_args

import msgspec
from media import PNG

from grue import (
    ContextPolicy,
    FunctionTools,
    LlmSettings,
    Runner,
    ToolPolicy,
    ToolRule,
    TurnLimits,
    TurnOutcome,
    TurnRequest,
)
from grue.errors import ApprovalPending
from grue.messages import TextDelta, TurnForked
from grue.protocol.chat_wire.formats import WireName
from grue.protocol.retry import RetryPolicy
from grue.testing.llm_server import (
    ContextWindow,
    LlmReply,
    LlmRequest,
    ScriptedLlmServer,
    text_reply,
    tool_calls_reply,
)
from grue.tracing.reading import EpisodeEnvelope, read_episode

WIRES: tuple[WireName, ...] = get_args(WireName)
WINDOW = 32_000
ASKS = ToolPolicy(rules=(ToolRule(tools=("box.delete",), verdict="ask"),))
PARKS = ToolPolicy(rules=ASKS.rules, parking=True)


class Record(NamedTuple):
    """A recorded turn.

    Attributes:
        requests: The bodies of the turn's requests to the model, in order.
        response: The turn's answer.
        parts: How often the turn was started or resumed: 2 if it was parked once.
    """

    trace: Path
    turn: int
    wire: WireName
    server: ScriptedLlmServer
    requests: list[bytes]
    response: str
    parts: int = 1

    @property
    def envelopes(self) -> list[EpisodeEnvelope]:
        return _envelopes(self.trace, self.turn)


@cache
def _envelopes(trace: Path, turn: int) -> list[EpisodeEnvelope]:
    return [each for each in read_episode(trace).envelopes if each.turn == turn]


def model(request: LlmRequest) -> LlmReply:
    """Return the reply to a request: first two calls of `look`, then one of `delete`, then a text.

    The reply depends on nothing but the request.
    """
    if request.path.endswith("/models"):
        return text_reply("")
    messages = request.messages
    if "replaced by your summary" in str(messages[-1].get("content")):
        return text_reply("Some pages have been read.")
    asked = max(at for at, message in enumerate(messages) if message["role"] == "user")
    told = [message for message in messages[asked:] if message["role"] == "tool"]
    question, thought = (
        str(messages[asked]["content"]),
        {"reasoning_content": f"Thought {len(messages)} {request.path}."},
    )
    if "pages" in question and request.tool_names and len(told) < 12:
        return tool_calls_reply(("box.page", {"number": len(told)}), ids=(f"p{len(told)}",), **thought)
    if not told and request.tool_names:
        calls = [("box.look", {"at": "lamp"}), ("shed.look", {"at": "door"})]
        return tool_calls_reply(*calls, ids=(f"a{asked}", f"b{asked}"), content="One moment.", **thought)
    if len(told) == 2:
        return tool_calls_reply(("box.delete", {"name": "old"}), ids=(f"c{asked}",), **thought)
    return text_reply(f"After {len(told)}: {str(messages[-1]['content'])[-40:]}", **thought)


class Box:
    """Tools that append each call to `effects`."""

    def __init__(self) -> None:
        self.effects: list[str] = []

    def servers(self) -> dict[str, Any]:
        def look(at: str) -> str:
            self.effects.append(at)
            return f"{at}: dust"

        def delete(name: str) -> str:
            self.effects.append(name)
            return f"{name} is gone"

        def page(number: int) -> str:
            self.effects.append(str(number))
            return f"Page {number}. " + "The cellar is dark. " * 500

        return {"box": FunctionTools([look, delete, page]), "shed": FunctionTools({"look": look})}


def runner(server: ScriptedLlmServer, wire: WireName, trace: Path, **how: Any) -> Runner:
    retry = RetryPolicy(max_retries=0)
    llm = LlmSettings(base_url=server.base_url, model="m", wire=wire, api_key="key", retry=retry)
    return Runner(llm=llm, trace=trace, **how)


def _plain(each: Runner) -> str:
    return each.run_turn(TurnRequest(user="Tidy up.", system="Be brief.")).response


def _images(each: Runner) -> str:
    return each.run_turn(TurnRequest(user="What is this?", images=[PNG, PNG])).response


def _conversation(each: Runner) -> str:
    talk = each.conversation("Be brief.", name="talk")
    return [talk.ask(f"Tidy up room {number}.").response for number in range(3)][-1]


def _cleared(each: Runner) -> str:
    return each.run_turn(TurnRequest(user="Read all pages.")).response


def _parked(each: Runner) -> str:
    with contextlib.suppress(ApprovalPending):
        each.run_turn(TurnRequest(user="Tidy up."))
    from grue import parked_turns

    assert each.trace is not None
    (parked,) = parked_turns(each.trace)
    return each.resume(each.trace, [question.approve() for question in parked.questions]).response


class Kind(NamedTuple):
    play: Callable[[Runner], str]
    how: dict[str, Any] = {}  # noqa: RUF012 - never changed
    turn: int = 1
    parts: int = 1


KINDS = {
    "plain": Kind(_plain),
    "images": Kind(_images),
    "conversation": Kind(_conversation, turn=3),
    "cleared": Kind(
        _cleared,
        {
            "context": ContextPolicy(window_tokens=WINDOW, reply_tokens=9_000),
            "limits": TurnLimits(max_tool_iterations=14),
        },
    ),
    "asked": Kind(_plain, {"tool_policy": ASKS, "approve": lambda _: True}),
    "parked": Kind(_parked, {"tool_policy": PARKS}, parts=2),
}


@contextlib.contextmanager
def records(folder: Path) -> Iterator[dict[tuple[str, WireName], Record]]:
    """Yield a recorded turn of each kind in each wire format. The endpoints serve until the block's end."""
    found = {}
    with contextlib.ExitStack() as stack:
        for wire in WIRES:
            # Each format has its own endpoint, because the endpoint finds a reply's thoughts by the reply's
            # text.
            plain = stack.enter_context(ScriptedLlmServer(model))
            small = stack.enter_context(ScriptedLlmServer(model, window=ContextWindow(WINDOW)))
            for name, kind in KINDS.items():
                server = small if name == "cleared" else plain
                trace = folder / f"{name}-{wire}.jsonl"
                box = Box()
                with runner(server, wire, trace, servers=box.servers(), **kind.how) as each:
                    before = [*server.requests]
                    response = kind.play(each)
                sent = [request.raw for request in server.requests[len(before) :] if request.raw]
                sent = sent[2 * len(sent) // 3 :] if name == "conversation" else sent
                found[name, wire] = Record(trace, kind.turn, wire, server, sent, response, kind.parts)
                assert box.effects, "the tools were called"
        yield found


def fork(record: Record, trace: Path, **how: Any) -> tuple[TurnOutcome[Any], list[bytes]]:
    """Fork a turn without any tool server; return the outcome, and the bodies of its requests."""
    before = len(record.server.requests)
    with runner(record.server, record.wire, trace) as each:
        outcome = each.fork(record.trace, turn=record.turn, **how)
    return outcome, [request.raw for request in record.server.requests[before:] if request.raw]


def repeated(record: Record, trace: Path) -> int:
    """Assert that a fork's trace repeats the record up to the fork; return how many messages it repeats."""
    recorded = [each for each in record.envelopes if not isinstance(each.body, TextDelta)]
    forked = [each for each in read_episode(trace).envelopes if each.turn == record.turn]
    at = next(each.body.at for each in forked if isinstance(each.body, TurnForked))
    forked = [each for each in forked if not isinstance(each.body, TurnForked)]
    before = [each for each in recorded if each.seq <= at]
    for one, other in zip(before, forked, strict=False):
        assert (one.sender, one.receiver) == (other.sender, other.receiver)
        assert msgspec.json.encode(one.body) == msgspec.json.encode(other.body) or one is before[0]
    return len(before)


def shown(raw: bytes) -> str:
    return json.dumps(json.loads(raw), indent=1)
