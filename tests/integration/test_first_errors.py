"""The first error of each kind that a user can meet: what is wrong, where, and what to do."""

import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from promises import GUARD_S

from grue import (
    Budget,
    Conversation,
    FunctionTools,
    HttpServer,
    LlmSettings,
    OAuth,
    Runner,
    Sandbox,
    StdioServer,
    ToolClient,
    ToolPolicy,
    ToolRule,
    TurnLimits,
    TurnRequest,
    errors,
)
from grue.fleet import Fleet
from grue.hosting import read_episode, read_servers
from grue.hosts.zork.games.catalogue import open_game
from grue.hosts.zork.games.interpreters import find_interpreter
from grue.sandbox.launch import boxed
from grue.testing import faulty_server
from grue.testing.llm_server import (
    LlmReply,
    LlmRequest,
    ScriptedLlmServer,
    error_reply,
    hang_up,
    silence,
    text_reply,
    tool_calls_reply,
)

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


def unanswered_request() -> None:
    with ToolClient({"tools": faulty()}) as client:
        client.request("tools", "ping", timeout_s=0.0)


class Door(BaseHTTPRequestHandler):
    """A server by URL that lets nobody in without a login."""

    def do_POST(self) -> None:
        self.send_response(401)
        self.send_header("WWW-Authenticate", "Bearer")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def closed_door() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Door) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/mcp"
        finally:
            server.shutdown()


def without_a_login() -> None:
    with closed_door() as url, ToolClient({"notes": HttpServer(url=url, auth=OAuth())}) as client:
        client.tools()


def delete(name: str) -> str:
    """Delete a file."""
    return f"{name} is gone"


TRACE = "trace.jsonl"
CALL = tool_calls_reply(("box.delete", {"name": "old.txt"}), ids=("c1",))
ASK = ToolPolicy(rules=(ToolRule(verdict="ask", reason="it deletes"),), parking=True)


@contextmanager
def deleting(*replies: Any, policy: ToolPolicy | None = ASK) -> Iterator[Runner]:
    """A runner whose model deletes a file, and whose policy wants a person to be asked about that."""
    with ScriptedLlmServer([CALL, *replies]) as server:
        llm = LlmSettings(base_url=server.base_url, model="m")
        tools = FunctionTools([delete])
        with Runner(llm=llm, servers={"box": tools}, tool_policy=policy, trace=TRACE) as runner:
            yield runner


def parked() -> None:
    with deleting() as runner:
        runner.run_turn(TURN)


def change_refused() -> None:
    with deleting() as runner:
        try:
            runner.run_turn(TURN)
        except errors.ApprovalPending as pending:
            runner.resume(TRACE, [each.change({"path": "old.txt"}) for each in pending.questions])


def parked_talk() -> None:
    with deleting() as runner:
        talk = runner.conversation(name="talk")
        with suppress(errors.ApprovalPending):
            talk.ask("Tidy up.")
        talk.ask("Are you done?")


def busy_talk() -> None:
    begun = threading.Event()

    def begin(_: LlmRequest) -> LlmReply:
        begun.set()
        return silence()

    with (
        ScriptedLlmServer(begin) as server,
        Runner(llm=LlmSettings(base_url=server.base_url, model="m")) as runner,
    ):
        talk = runner.conversation(name="talk")
        handle = runner.start_turn(talk.request("One?"))
        assert begun.wait(GUARD_S)
        try:
            talk.branch()
        finally:
            handle.cancel()


def resumed_twice() -> None:
    with deleting(text_reply("Done.")) as runner:
        try:
            runner.run_turn(TURN)
        except errors.ApprovalPending as pending:
            decisions = [each.approve() for each in pending.questions]
        runner.resume(TRACE, decisions)
        runner.resume(TRACE, decisions)


def fork_missed() -> None:
    other = tool_calls_reply(("box.delete", {"name": "new.txt"}), ids=("c1",))
    with deleting(text_reply("Done."), other, policy=None) as runner:
        runner.run_turn(TURN)
        runner.fork(TRACE)


def box_of_nothing() -> None:
    boxed(Sandbox(write=("none",)), program=sys.executable, args=(), env={}, cwd=None).end()


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
        *("LLMError", lambda: turn(error_reply(401, "who are you"))),
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
    "has a turn that waits for a person": (
        *(
            "ApprovalPending",
            parked,
            "waits for an approval",
            r"Turn 1 .*box\.delete",
            r"call Runner\.resume",
        ),
    ),
    "approves other arguments than the tool takes": (
        *("ChangeRefused", change_refused, "'path' was unexpected", r"box\.delete", "Decide again"),
    ),
    "asks in a conversation whose turn is parked": (
        *("ConversationParked", parked_talk, "waits for an approval", "conversation talk", "Go on with it"),
    ),
    "branches a conversation during its turn": (
        *("ConversationBusy", busy_talk, "in the middle of a turn", "conversation talk", "Wait for its end"),
    ),
    "resumes twice": (
        "NothingToResume",
        resumed_twice,
        "after it was resumed",
        r"Turn 1 of trace\.jsonl",
        "",
    ),
    "forks into a call that was not recorded": (
        *("ForkMissed", fork_missed, "the record has no answer", r"box\.delete with", 'misses="call"'),
    ),
    "asks a server that does not answer": (
        *("MCPRequestTimedOut", unanswered_request, "did not answer ping", "'tools'", ""),
    ),
    "has not logged in": ("NeedsLogin", without_a_login, "wants a login", "'notes'", "grue login notes"),
    "boxes a folder that does not exist": (
        *("SandboxError", box_of_nothing, "does not exist", "/none", "Create it, or leave it out"),
    ),
    "names no fleet": (*("FleetError", lambda: Fleet("runs/none").results(), "no fleet", "runs/none", ""),),
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

PAGE = (Path(__file__).resolve().parents[2] / "docs/errors.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^### `(\w+)`\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL))
SHOWN = {kind: did for did, (kind, *_) in reversed(FIRST.items())}
"""Of each class, what was done to be met by the text on its page: the first that is listed."""


def as_on_the_page(text: str) -> str:
    """Return a text with the folder, the port and the interpreter that a reader is shown."""
    text = text.replace(str(Path.cwd()), "/home/ann/bot").replace(sys.executable, "python")
    return re.sub(r"127\.0\.0\.1:\d{4,}", "127.0.0.1:8000", text)


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
    if SHOWN[kind] == did:
        assert f"```text\n{as_on_the_page(text)}\n```" in SECTIONS[kind]
    assert not re.search(r": :|\bNone\b|\(R\d|\(P\d|\\n", text), text


@pytest.mark.made_up_trace
@pytest.mark.parametrize(
    ("reply", "kind", "meaning"),
    [
        (hang_up, "unavailable", "a connection or a reply that broke off"),
        (replace(text_reply("Two."), then="drop", after=0.5), "unavailable", "a reply that broke off"),
        (replace(text_reply("Two."), amid=b"data: {\n\n"), "damaged", "a stream with garbage in it"),
        (error_reply(503, "busy"), "unavailable", "it cannot answer now"),
        (None, "unreachable", "no connection could be made"),
    ],
)  # fmt: skip
def test_the_kind_of_a_failure_is_the_one_in_the_table(reply: Any, kind: str, meaning: str) -> None:
    with ScriptedLlmServer([reply or "Two."] * 6, retry_after="0") as server:
        llm = server.settings if reply else replace(server.settings, base_url=NOBODY.base_url)
        with pytest.raises(errors.LLMError) as met, Runner(llm=llm) as runner:
            runner.run_turn(TurnRequest(user="How many?", on_delta=lambda _: None))
    assert met.value.kind == kind
    assert re.search(rf"^\| `{kind}` \| .*{meaning}", PAGE, re.MULTILINE)


def test_every_kind_has_a_section_with_what_is_printed_and_what_to_do() -> None:
    kinds = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.MCPError) and not name.startswith("_")
    }
    assert kinds == SECTIONS.keys() == SHOWN.keys()
    form = r"- \*\*Raised by\*\* .+\n- \*\*Why:\*\* .+\n- \*\*What to do:\*\* .+\n\n```text\n(?:.+\n)+```\n+"
    assert [kind for kind, section in SECTIONS.items() if not re.fullmatch(form, section)] == []
