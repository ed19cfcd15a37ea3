"""Rows of the fault matrix where a tool returns an invalid image, or one that the endpoint refuses.

Each row is a turn in one of the wire formats, against an endpoint that checks images as providers do. The
model gets the images that it can be sent, and a text in place of each other one. The turn goes on.
"""

import base64
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import get_args

from fault_turns import LIFETIMES, Fault, RowOutcome

from grue import messages as m
from grue.engine.runner import Runner, TurnRequest
from grue.errors import MCPError
from grue.protocol.chat_wire.formats import FORMATS, WireName
from grue.runtime.trace.recorder import Envelope, Recorder
from grue.testing.llm_server import LlmReply, LlmRequest, ScriptedLlmServer, text_reply, tool_calls_reply
from grue.testing.providers.chat_rules import ProviderRules
from grue.tool_sessions.function_tools import FunctionTools
from grue.transports.llm.endpoint import LlmSettings

_GIF = b"GIF89a" + bytes(34)
_PNG = b"\x89PNG\r\n\x1a\n" + bytes(2000)
_KEY = "sk-made-up-for-the-fault-matrix"


def _block(content: bytes, mime: str = "image/png") -> m.JsonObject:
    return {"type": "image", "mimeType": mime, "data": base64.b64encode(content).decode()}


def drive_image_turn(
    fault: Fault, *, blocks: Sequence[m.JsonObject], wire: WireName, rules: ProviderRules
) -> RowOutcome:
    """Run a turn whose model calls a tool that returns these blocks.

    The text is the content of the messages in the last request. The notes are `shown` if the endpoint got an
    image, and the HTTP statuses of the requests that it refused.
    """
    notes: set[str] = set()

    def keep(envelope: Envelope[object], line: bytes) -> None:
        del line
        if isinstance(envelope.body, m.CompletionRetried):
            notes.add(str(envelope.body.failure.status))

    recorder = Recorder()
    recorder.add(keep)
    with ScriptedLlmServer(_looks, rules=rules) as llm:
        settings = LlmSettings(base_url=llm.base_url, model="scripted", api_key=_KEY, wire=wire)
        servers = {"eye": FunctionTools({"look": lambda: list(blocks)})}
        with Runner(llm=settings, servers=servers, recorder=recorder, **LIFETIMES[fault.mode]) as runner:
            try:
                outcome: str = runner.run_turn(TurnRequest(system="s", user="u")).kind
            except MCPError as error:
                return RowOutcome(outcome=type(error).__name__, text=str(error))
        said = [message["content"] for message in llm.requests[-1].messages]
    notes |= {"shown"} if any("image_url" in str(content) for content in said) else set()
    return RowOutcome(outcome=outcome, text="".join(map(str, said)), notes=frozenset(notes))


def _looks(request: LlmRequest) -> LlmReply:
    if any(message["role"] == "tool" for message in request.messages):
        return text_reply("A lamp.")
    return tool_calls_reply((request.tool_names[0], {}))


_SETS: Mapping[str, tuple[Sequence[m.JsonObject], ProviderRules, str, Sequence[str]]] = {
    "well": ([_block(_GIF, "image/gif")], ProviderRules(), "bytes", ["shown"]),
    "by-another-name": ([_block(_GIF, "image/jpeg")], ProviderRules(), "bytes", ["shown"]),
    "that-is-none": ([_block(b"<html>")], ProviderRules(), "it is not a PNG", []),
    "with-broken-base64": (
        [{"type": "image", "data": base64.b64encode(_PNG).decode() + "*"}],
        ProviderRules(),
        "its base64 cannot be read",
        [],
    ),
    "too-large": ([_block(_PNG + bytes(6_000_000))], ProviderRules(), "max_image_bytes", []),
    "for-a-model-without": (
        [_block(_PNG)],
        ProviderRules(images=False),
        "the model takes no images",
        ["400"],
    ),
    "refused": ([_block(_PNG)], ProviderRules(max_image_base64=100), "endpoint refused it", ["400"]),
}
"""By name: the tool's result, the endpoint's rules, a string that the model must get, the expected notes."""


def _row(name: str, wire: WireName) -> Fault:
    blocks, rules, says, notes = _SETS[name]
    drive: Callable[[Fault], RowOutcome] = partial(drive_image_turn, blocks=blocks, wire=wire, rules=rules)
    return Fault(
        name=f"image-{name}-{wire.replace('_', '-')}",
        drive=drive,
        says=(says,),
        notes=frozenset(notes),
        modes=("turn",),
    )


MEDIA_FAULTS: Sequence[Fault] = tuple(
    _row(name, wire) for wire in get_args(WireName) if "image" in FORMATS[wire].inputs for name in _SETS
)
