"""Images through whole turns, on every wire: from a server to the endpoint, and into the trace once."""

import json
from pathlib import Path
from typing import Any, get_args

import pytest
from media import GIF, PNG, base64_of, image, padded
from real_servers import bounded, npm_server
from transport_servers import QUICK

from grue import LlmSettings, Runner, TurnLimits, TurnRequest
from grue.messages import JsonObject, RequestCompletion, ToolMessage
from grue.protocol.chat_wire.formats import FORMATS, WireName
from grue.runtime.trace.file import TraceWriter
from grue.runtime.trace.recorder import Recorder
from grue.testing.llm_server import LlmReply, LlmRequest, ScriptedLlmServer, text_reply, tool_calls_reply
from grue.testing.providers.chat_rules import ProviderRules
from grue.tool_sessions.function_tools import FunctionTools
from grue.tracing.reading import read_episode
from grue.tracing.replay import replay

WIRES: list[WireName] = [wire for wire in get_args(WireName) if "image" in FORMATS[wire].inputs]
on_every_wire = pytest.mark.parametrize("wire", WIRES)
MOST = 5 * 1024 * 1024  # bytes of an image that is shown
LIMITS = TurnLimits(server_startup_timeout_s=20.0, tool_call_timeout_s=20.0)


def looks_around(*tools: str) -> Any:
    """Return a script that calls the tools once, and answers when it has seen their results."""

    def script(request: LlmRequest) -> LlmReply:
        if any(message["role"] == "tool" for message in request.messages):
            return text_reply("done")
        names = [next(name for name in request.tool_names if name.endswith(tool)) for tool in tools]
        return tool_calls_reply(*((name, {}) for name in names))

    return script


def run(
    path: Path, server: Any, wire: WireName, *tools: str, rules: ProviderRules | None = None
) -> LlmRequest:
    """Run a turn that calls these tools, into a trace; return the last request as its provider reads it."""
    recorder = Recorder()
    writer = TraceWriter(path, episode="e")
    recorder.add(writer)
    with ScriptedLlmServer(looks_around(*tools), rules=rules) as llm:
        settings = LlmSettings(base_url=llm.base_url, model="m", wire=wire, api_key="sk-made-up")
        servers = {"eye": server}
        with Runner(
            llm=settings, servers=servers, limits=LIMITS, recorder=recorder, process_limits=QUICK
        ) as runner:
            assert runner.run_turn(TurnRequest(system="s", user="u")).response == "done"
        last = llm.requests[-1]
    writer.close()
    assert last.refused is None
    return last


def images_of(request: LlmRequest) -> list[str]:
    """Return the data URLs of the images in a request, in terms of chat completions."""
    parts = [part for each in request.messages for part in each["content"] or () if isinstance(part, dict)]
    return [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]


def held_by(path: Path, data: str) -> list[Path]:
    """Return the files of a trace that hold this base64."""
    files = [path, *(path.parent / "payloads").glob("*")]
    return [file for file in files if data in file.read_text()]


def test_what_was_shown_is_told_by_the_trace_and_a_replay_shows_the_same(tmp_path: Path) -> None:
    server = FunctionTools({"look": lambda: [image(padded(PNG, 4033))]})
    run(tmp_path / "trace.jsonl", server, "chat_completions", "look")
    envelopes = read_episode(tmp_path / "trace.jsonl").envelopes
    requests = [each.body for each in envelopes if isinstance(each.body, RequestCompletion)]
    (message,) = [item for request in requests for item in request.new if isinstance(item, ToolMessage)]
    assert [(each.mime, each.bytes) for each in message.attachments] == [("image/png", 4033)]
    (turn,) = replay(envelopes)
    assert turn.divergence is None


@on_every_wire
def test_the_limits_of_a_model_without_images_are_learned_in_the_turn(tmp_path: Path, wire: WireName) -> None:
    server = FunctionTools({"look": lambda: [{"type": "text", "text": "A lamp."}, image()]})
    last = run(tmp_path / "t.jsonl", server, wire, "look", rules=ProviderRules(images=False))
    assert images_of(last) == []
    (result,) = [message["content"] for message in last.messages if message["role"] == "tool"]
    assert "A lamp." in result
    assert "not shown: the model takes no images" in result


def sized(size: int) -> list[JsonObject]:
    return [image(padded(GIF, size), "image/gif")]


SHOWN = [(wire, size) for wire in WIRES for size in (40, MOST)]
# An image that is left out does not get to the wire: one of them is huge, the others are hardly too large.
LEFT_OUT = [(wire, MOST + 1 if number else 60_000_000) for number, wire in enumerate(WIRES)]


@pytest.mark.parametrize(
    ("wire", "size"), [*SHOWN, *(pytest.param(*each, marks=pytest.mark.slow) for each in LEFT_OUT)]
)
def test_images_of_any_size(tmp_path: Path, wire: WireName, size: int) -> None:
    path = tmp_path / "t.jsonl"
    last = run(
        path, FunctionTools({"small": lambda: sized(40), "look": lambda: sized(size)}), wire, "look", "small"
    )
    data = base64_of(padded(GIF, size))
    shown = [f"data:image/gif;base64,{data}"] if size <= MOST else []
    assert images_of(last) == [*shown, f"data:image/gif;base64,{base64_of(padded(GIF, 40))}"]
    if not shown:
        (result, _) = [message["content"] for message in last.messages if message["role"] == "tool"]
        described = json.loads(result.partition("\n")[0])[0]
        assert described["omitted"] == "it is larger than max_image_bytes, 5,242,880"
    if size > 1000:
        (payload,) = held_by(path, data)
        assert payload.parent.name == "payloads"
        assert path.stat().st_size < 20_000


@bounded
@on_every_wire
def test_the_picture_of_a_real_server(tmp_path: Path, wire: WireName) -> None:
    path = tmp_path / "t.jsonl"
    last = run(path, npm_server("everything"), wire, "get-tiny-image")
    (url,) = images_of(last)
    assert url.startswith("data:image/png;base64,iVBORw0KGgo")
    (payload,) = held_by(path, url.rpartition(",")[2])
    assert payload.parent.name == "payloads"
