"""Try one model endpoint: a reply, a stream, a schema and a tool on each wire format; each lifetime."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from installing import install, program_of, version_of
from parts import Endpoint
from try_server import LIFETIMES, Row, free_port, started

from grue import LlmSettings, Runner, TurnLimits, TurnRequest
from grue.engine.answers import AnswerSpec
from grue.errors import AnswerError, MCPError
from grue.messages import CompletionReceived, SchemaIgnored
from grue.protocol.chat_wire.formats import FORMATS
from grue.protocol.retry import RetryPolicy
from grue.testing.leftovers import assert_nothing_left
from grue.testing.llm_server import LlmReply, LlmRequest, ScriptedLlmServer, text_reply, tool_calls_reply
from grue.tool_sessions.function_tools import FunctionTools

PATIENCE_S = 120.0
SCHEMA = {
    "type": "object",
    "properties": {"swatch": {"type": "string", "maxLength": 12}},
    "required": ["swatch"],
}


def try_endpoint(part: Endpoint, folder: Path, work: Path) -> Row:
    """Try an endpoint, and return its row. A step that fails is in the row with its reason."""
    row: Row = {"name": part.name, "registry": part.registry, "package": part.package}
    with _running(part, folder, work, row) as url:
        try:
            with assert_nothing_left(within_s=10.0):
                row["wires"] = {wire: _wire(part, url, wire) for wire in FORMATS}
                for name, options in LIFETIMES.items():
                    row[name] = _said(lambda options=options: _turns(part, url, options))
        except AssertionError as left:
            row["left"] = [" ".join(str(left).split())[:160]]
    return row


@contextmanager
def _running(part: Endpoint, folder: Path, work: Path, row: Row) -> Iterator[str]:
    if part.registry == "grue":
        with ScriptedLlmServer(_script) as llm:
            yield llm.base_url
        return
    install(folder, part)
    row["version"] = version_of(folder, part)
    for name, text in part.files.items():
        (work / name).write_text(text)
    weights = next((program_of(folder, part).parents[1]).glob("lib/python*/site-packages/*/*.gguf"), "")
    values = {"work": str(work), "port": str(free_port()), "other": str(free_port()), "model": str(weights)}
    command = ["node"] if part.registry == "npm" else []
    command += [str(program_of(folder, part)), *(arg.format(**values) for arg in part.args)]
    env = {"HOME": str(work), **{name: value.format(**values) for name, value in part.env.items()}}
    with started(command, env, work, int(values["port"])) as boot_s:
        row["boot_s"] = boot_s
        yield f"http://127.0.0.1:{values['port']}{part.path}"


def _script(request: LlmRequest) -> LlmReply:
    if request.tool_names and not any(message["role"] == "tool" for message in request.messages):
        return tool_calls_reply((request.tool_names[0], {}))
    return text_reply('{"swatch": "green"}' if "swatch" in json.dumps(request.body) else "A gate.")


def _settings(part: Endpoint, url: str, wire: Any = None) -> LlmSettings:
    retry = RetryPolicy(max_retries=0, timeout_s=PATIENCE_S, length_retry_factor=1.0)
    return LlmSettings(
        base_url=url,
        model=part.model,
        wire=wire,
        api_key="sk-made-up-master-key",
        max_tokens=40,
        temperature=0.0,
        retry=retry,
    )


def _wire(part: Endpoint, url: str, wire: str) -> dict[str, str]:
    steps: dict[str, Callable[[], str]] = {
        "reply": lambda: _reply(part, url, wire, stream=False),
        "stream": lambda: _reply(part, url, wire, stream=True),
        "schema": lambda: _schema(part, url, wire),
        "tool": lambda: _tool(part, url, wire),
    }
    return {name: _said(step) for name, step in steps.items()}


def _said(step: Callable[[], str]) -> str:
    try:
        return step()
    except MCPError as error:
        return f"failed: {' '.join(str(error).split())[:160]}"


def _reply(part: Endpoint, url: str, wire: str, *, stream: bool) -> str:
    heard: list[str] = []
    with Runner(llm=_settings(part, url, wire), limits=_limits()) as runner:
        deltas = (lambda delta: heard.append(delta.text)) if stream else None
        outcome = runner.run_turn(TurnRequest(system="Be brief.", user="What do you see?", on_delta=deltas))
    if stream and "".join(heard) != outcome.response:
        return "failed: the pieces of the stream are not the reply"
    return "ok"


def _schema(part: Endpoint, url: str, wire: str) -> str:
    bodies: list[Any] = []
    spec = AnswerSpec(json.loads, schema=SCHEMA)
    with Runner(llm=_settings(part, url, wire), limits=_limits()) as runner:
        runner.recorder.add(lambda envelope, _line: bodies.append(envelope.body))
        with suppress(AnswerError):
            runner.run_turn(TurnRequest(system="Be brief.", user="Name a colour.", answer=spec))
    ignored = any(isinstance(body, SchemaIgnored) for body in bodies)
    return "ignored, then stated in words" if ignored else "kept"


def _tool(part: Endpoint, url: str, wire: str) -> str:
    replies: list[CompletionReceived] = []

    def lamp() -> str:
        """Return the state of the lamp."""
        return "It is lit."

    def keep(envelope: Any, _line: bytes) -> None:
        if isinstance(envelope.body, CompletionReceived):
            replies.append(envelope.body)

    with Runner(
        llm=_settings(part, url, wire), limits=_limits(), servers={"it": FunctionTools({"lamp": lamp})}
    ) as runner:
        runner.recorder.add(keep)
        runner.run_turn(TurnRequest(system="Use the tool.", user="Is the lamp lit?"))
    return "called" if any(reply.tool_calls for reply in replies) else "accepted, not called"


def _turns(part: Endpoint, url: str, options: Any) -> str:
    tools = {"it": FunctionTools({"wait": lambda: "You wait."})}
    with Runner(llm=_settings(part, url), servers=tools, limits=_limits(), **options) as runner:
        outcomes = [runner.run_turn(TurnRequest(system="s", user="Look.")) for _ in range(2)]
    return "ok" if all(outcome.kind in ("answered", "forced") for outcome in outcomes) else "failed"


def _limits() -> TurnLimits:
    return TurnLimits(max_tool_iterations=1, turn_timeout_s=4 * PATIENCE_S)
