"""The first error of each kind that a user can meet: what is wrong, where, and what to do."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from grue import (
    Budget,
    Conversation,
    FunctionTools,
    LlmSettings,
    Runner,
    StdioServer,
    ToolClient,
    ToolPolicy,
    ToolRule,
    TurnLimits,
    TurnRequest,
    errors,
)
from grue.hosting import read_episode, read_servers
from grue.hosts.zork.games import open_game
from grue.hosts.zork.games.interpreters import find_interpreter
from grue.testing import faulty_server
from grue.testing.llm_server import ScriptedLlmServer, error_reply, silence, text_reply

NOBODY = LlmSettings(base_url="http://127.0.0.1:9/v1", model="m")
TURN = TurnRequest(system="You count.", user="How many?")


def boom() -> int:
    """Divide by zero."""
    return 1 // 0


def turn(*replies: Any, request: TurnRequest[Any] = TURN, **settings: Any) -> None:
    with ScriptedLlmServer(list(replies)) as server:
        llm = LlmSettings(base_url=server.base_url, model="m")
        with Runner(llm=llm, **settings) as runner:
            runner.run_turn(request)


def program(*command: str) -> dict[str, Any]:
    return {"servers": {"mind": StdioServer(name="mind", command=command[0], args=command[1:])}}


def call(name: str, server: Any = None, timeout_s: float | None = None) -> None:
    with ToolClient({"tools": server or FunctionTools([boom])}) as client:
        client.call(name, {"text": "a"} if server else {}, timeout_s=timeout_s, check=True)


def faulty(*flags: str) -> StdioServer:
    command, *arguments = faulty_server.argv(*flags)
    return StdioServer(name="tools", command=command, args=tuple(arguments))


def cancelled() -> None:
    with ScriptedLlmServer([silence()]) as server:
        runner = Runner(llm=LlmSettings(base_url=server.base_url, model="m"))
        with runner:
            handle = runner.start_turn(TURN)
            handle.cancel()
            handle.result()


def denied() -> None:
    policy = ToolPolicy(rules=(ToolRule(verdict="deny", reason="no divisions"),))
    with Runner(llm=NOBODY, servers={"tools": FunctionTools([boom])}, tool_policy=policy) as runner:
        runner.call("tools.boom", {}, check=True)


def crashing(_: object) -> None:
    raise LookupError("no such window")


def unset_variable() -> None:
    Path("mcp.json").write_text('{"mcpServers": {"a": {"command": "x", "env": {"K": "${NOT_SET}"}}}}')
    read_servers("mcp.json")


def no_trace() -> None:
    Path("notes.txt").write_text("hello\n")
    read_episode(Path("notes.txt"))


def request_refused() -> None:
    with ToolClient({"tools": faulty()}) as client:
        client.request("tools", "prompts/get", {"name": "x"})


def changed() -> None:
    with ToolClient({"tools": faulty()}) as client:
        (echo,) = (tool for tool in client.tools() if tool.tool == "echo")
        client.call("tools.echo", {}, check=True, definition=replace(echo, description="What it did before."))


CUT = text_reply("[1, 2", finish_reason="length")
FILTERED = text_reply("", finish_reason="content_filter")

# What the user did: (class, how, what is wrong, where, what to do). The last is empty where the tool's author
# or the caller knows better than grue.
FIRST: dict[str, tuple[str, Callable[[], object], str, str, str]] = {
    "names no TOML file": (
        *("MCPConfigError", lambda: Runner.from_toml("none.toml")),
        *("not found", r"none\.toml", "create this one"),
    ),
    "has no mcp_config.json": (
        *(
            "MCPConfigError",
            lambda: read_servers("none.json"),
            "not found",
            r"none\.json",
            "`grue init` writes one",
        ),
    ),
    "has not set a variable": (
        *(
            "MCPConfigError",
            unset_variable,
            "is not set",
            r"'a': env\.K .* NOT_SET",
            r"Set it, or give a default",
        ),
    ),
    "forgets http://": (
        *("MCPConfigError", lambda: LlmSettings(base_url="localhost:1", model="m")),
        *("must start with http", "base URL", "Did you mean http://localhost:1"),
    ),
    "misspells a command": (
        *("MCPServerStartupError", lambda: turn(**program("no-such-program"))),
        *("was not found", "'mind'", "Install no-such-program, or correct"),
    ),
    "has a server that ends at once": (
        *(
            "MCPServerStartupError",
            lambda: turn(**program(sys.executable, "-c", "raise SystemExit('no disk')")),
        ),
        *("no disk", "'mind'.*during initialize", "Run the command in a terminal"),
    ),
    "has no key": (
        *("LLMError", lambda: turn(error_reply(401, {"error": {"message": "who are you"}}))),
        *("who are you", r"'m' at http://127\.0\.0\.1:\d+", "Set GRUE_API_KEY"),
    ),
    "has not started the endpoint": (
        *("LLMError", lambda: Runner(llm=NOBODY).run_turn(TURN)),
        *("cannot connect", r"http://127\.0\.0\.1:9", "Start it, or correct the base URL"),
    ),
    "gets no usable answer": (
        *(
            "AnswerError",
            lambda: turn(
                text_reply("many"), text_reply("many"), request=TurnRequest(system="s", user="u", answer=int)
            ),
        ),
        *("valid integer", r"turn 1: Input", r"fallback="),
    ),
    "gets an answer that is cut": (
        *("AnswerError", lambda: turn(CUT, CUT, request=TurnRequest(system="s", user="u", answer=list[int]))),
        *("cut at the length limit", "turn 1", "Raise max_tokens"),
    ),
    "has a reply stopped by a filter": (
        *("AnswerStopped", lambda: turn(FILTERED, FILTERED, FILTERED)),
        *("content_filter", "turn 1", "choose another model"),
    ),
    "runs out of time": (
        *("TurnTimedOut", lambda: turn(silence(), limits=TurnLimits(turn_timeout_s=2.0))),
        *("did not end within 2 s", r"Turn 1 .*waiting for the model", "raise turn_timeout_s"),
    ),
    "runs out of budget": (
        *("BudgetSpent", lambda: turn(budget=Budget(requests=0))),
        *("0 of 0 requests", "episode's budget", r"Raise the limit in Runner\(budget=\.\.\.\)"),
    ),
    "cancels": ("TurnCancelled", cancelled, "was cancelled", "turn", ""),
    "has a fault in on_delta": (
        *(
            "ActorCrashed",
            lambda: turn(text_reply("a"), request=TurnRequest(system="s", user="u", on_delta=crashing)),
        ),
        *("LookupError: no such window", "'llm'", "Your own code raised it, in on_delta"),
    ),
    "calls a tool that fails": (
        *("MCPToolCallError", lambda: call("tools.boom"), "ZeroDivisionError", r"^tools\.boom", ""),
    ),
    "misspells a tool": (
        *(
            "ToolNotFound",
            lambda: call("tools.bom"),
            "Unknown MCP tool",
            r"tools\.bom",
            r"Available tools: tools\.boom",
        ),
    ),
    "decides on a tool that then changes": (
        *("ToolChanged", changed, "was not sent, because the tool has changed", r"tools\.echo", ""),
    ),
    "misspells a server": (
        *("MCPError", lambda: call("tool.boom"), "no MCP server", "'tool'", "Configured: tools"),
    ),
    "calls a tool that hangs": (
        *("ToolCallTimedOut", lambda: call("tools.echo", faulty("--silent-at", "call"), 0.3)),
        *("0.3", r"tools\.echo", ""),
    ),
    "calls a tool of a server that dies": (
        *("ToolServerDied", lambda: call("tools.echo", faulty("--exit-at", "call"))),
        *("ended|died", r"tools\.echo", ""),
    ),
    "calls a tool that the policy denies": (
        *("ToolCallDenied", denied, "no divisions", r"tools\.boom", "rule of the tool policy"),
    ),
    "asks a server for what it has not": (
        *("MCPRequestError", request_refused, "prompts/get|not", "tools", ""),
    ),
    "names no trace": (
        *("TraceError", lambda: read_episode(Path("none"))),
        *("No such file", "trace file none", "`grue runs` lists the runs"),
    ),
    "names another file": (
        *("TraceError", no_trace, "is not a grue trace", r"notes\.txt", r"Name the trace\.jsonl of a run"),
    ),
    "names no conversation": (
        *("ConversationError", lambda: Conversation.load("none.jsonl", Runner(llm=NOBODY))),
        *("No such file", r"none\.jsonl", ""),
    ),
    "names no game": (
        *("GameError", lambda: open_game("chess"), "no game", "'chess'", 'play "house", or give the path'),
    ),
    "has no interpreter": (
        *(
            "MissingDependencyError",
            lambda: find_interpreter("fernz"),
            "not installed",
            "fernz",
            "pip install",
        ),
    ),
}

ELSEWHERE = {
    "ApprovalPending": "an answer to a question rather than a fault: tests/integration/test_parking.py",
    "ChangeRefused": "tests/integration/test_approvals.py",
    "ConversationBusy": "tests/integration/test_conversations.py",
    "ConversationParked": "tests/integration/test_parked_conversations.py",
    "ForkMissed": "tests/integration/test_fork.py",
    "SandboxError": "tests/integration/sandbox/test_launch.py",
    "FleetError": "tests/unit/fleet/test_sweep.py, tests/unit/fleet/test_folder.py",
    "MCPRequestTimedOut": "tests/integration/test_tool_client.py",
    "NeedsLogin": "tests/integration/test_oauth.py",
    "NothingToResume": "tests/integration/test_parking.py",
}


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GRUE_API_KEY", raising=False)
    monkeypatch.setattr("grue.hosts.zork.games.interpreters.find_spec", lambda _: None)


@pytest.mark.made_up_trace
@pytest.mark.parametrize("did", FIRST)
def test_a_user_who(did: str) -> None:
    kind, do, what, where, advice = FIRST[did]
    with pytest.raises(errors.MCPError) as met:
        do()
    text = str(met.value)
    assert type(met.value).__name__ == kind, text
    for part in (what, where, advice):
        assert re.search(part, text, re.DOTALL), f"nothing like {part!r} in: {text}"
    assert not re.search(r": :|\bNone\b|\(R\d|\(P\d|\\n", text), text


def test_every_kind_is_in_the_list() -> None:
    kinds = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.MCPError)
    }
    assert kinds - {kind for kind, *_ in FIRST.values()} == ELSEWHERE.keys()
