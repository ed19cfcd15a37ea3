"""What people write first, and what they are told: refused where it is made, with the right form."""

import functools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from grue import (
    AnswerSpec,
    ApprovalDecision,
    Batching,
    Budget,
    Conversation,
    FailurePolicy,
    FunctionTools,
    HttpServer,
    LlmSettings,
    OAuth,
    Price,
    Runner,
    Sandbox,
    ServerOptions,
    ShellTool,
    StdioServer,
    ToolAnnotations,
    ToolClient,
    ToolPolicy,
    ToolRule,
    TurnLimits,
    TurnRequest,
    parked_turns,
    tool,
)
from grue.errors import ActorCrashed, MCPConfigError, MCPError
from grue.fleet import read_sweep
from grue.hosting import (
    ConfinedFolder,
    GameConfiguration,
    RunFolder,
    TracePage,
    open_episode,
    read_episode,
    read_servers,
    read_tool_lock,
    read_yaml,
)
from grue.hosts.skill_agent import load_config
from grue.messages import AssistantReply, UserText
from grue.testing import assert_prefix_stable, replay
from grue.testing.llm_replies import completion, error_reply, refusal_reply, tool_calls_reply
from grue.testing.llm_server import ScriptedLlmServer
from grue.testing.offline import offline_endpoint, reply_in_chat

LLM = LlmSettings(base_url="http://127.0.0.1:9/v1", model="m")


def with_settings(**wrong: Any) -> LlmSettings:
    return LlmSettings(base_url="http://127.0.0.1:9/v1", model="m", **wrong)


def weather(city: str) -> str:
    """Say what the weather is."""
    raise AssertionError("it was called")


def now() -> float:
    """Say what time it is."""
    raise AssertionError("it was called")


DEEP: dict[str, Any] = functools.reduce(lambda inner, _: {"a": inner}, range(100_000), {})


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"llm": "http://localhost:8901/v1"}, "LlmSettings(base_url='http://localhost:8901/v1', model=...)"),
        ({"llm": {"model": "m"}}, "llm= wants LlmSettings(base_url=..., model=...)"),
        ({"llm": LlmSettings}, "llm= wants LlmSettings(base_url=..., model=...)"),
        ({"llm": 42}, "llm= wants LlmSettings(base_url=..., model=...)"),
        ({"llm": LlmSettings(model="m", extra_body=DEEP)}, "llm=LlmSettings(...) is nested too deeply."),
        ({"llm": "qwen3"}, "LlmSettings(base_url=..., model='qwen3')"),
        ({"llm": weather}, "an LlmFactory, which takes three arguments, not <function weather"),
        ({"limits": 30}, "limits= wants TurnLimits(...), not int 30"),
        ({"budget": 5}, "budget= wants Budget(...), not int 5"),
        ({"context": 100_000}, "context= wants ContextPolicy(...)"),
        ({"tool_policy": [ToolRule()]}, "tool_policy= wants ToolPolicy(...)"),
        ({"tool_policy": ToolPolicy(rules=(ToolRule(verdict="forbid"),))}, "rules[0].verdict: Invalid enum"),
        ({"tool_policy": ToolPolicy(rules=ToolRule())}, "rules: Expected `array`, got `object`"),
        ({"recorder": "bot.jsonl"}, 'to write a trace, trace="runs"'),
        ({"trace": True}, 'trace= wants trace="runs" or trace="bot.jsonl"'),
        ({"approve": True}, "approve= wants approve=function"),
        ({"elicit": True}, "elicit= wants elicit=function"),
        ({"process_limits": 3}, "process_limits=ProcessLimits(...)"),
        ({"tool_lock": "tools.lock"}, "tool_lock=ToolLock(...)"),
        ({"servers": {1: FunctionTools([now])}}, "cannot be the name of a tool server"),
        ({"trace": "runs\ud800"}, "no file can have this name: 'runs\\ud800'"),
        ({"trace": "runs\0"}, "no file can have this name: 'runs\\x00'"),
        ({"servers": [FunctionTools([now])]}, 'servers={"files": StdioServer(...)}, not a list'),
        ({"servers": {"w": weather}}, "FunctionTools([weather])"),
        ({"servers": {"w": now}}, "FunctionTools([now])"),
        ({"servers": {"w": len}}, "FunctionTools([len])"),
        ({"servers": {"w": "npx"}}, "StdioServer(command=...)"),
        ({"servers": {"w": "https://mcp.example.com"}}, "HttpServer(url=...)"),
        ({"servers": {"w": {"command": "npx"}}}, "StdioServer(command=..., args=(...))"),
        ({"servers": {"w": None}}, "StdioServer(command=..., args=(...))"),
        ({"servers": {"w": 1}}, "servers= has no server under 'w', but int. Write StdioServer(command=...)"),
        ({"servers": {"w": StdioServer}}, "HttpServer(url=...) or FunctionTools([...])"),
    ],
)
def test_a_runner_refuses_what_is_no_model_and_no_server(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(MCPConfigError) as refused:
        Runner(**{"llm": LLM, **arguments})
    assert says in str(refused.value)


def test_a_scripted_model_in_place_of_its_settings_is_refused_and_the_settings_are_named() -> None:
    with ScriptedLlmServer([]) as model, pytest.raises(MCPConfigError, match=r"Pass its `settings`\.$"):
        Runner(llm=model)  # type: ignore[arg-type]


@pytest.mark.parametrize("limit", ["requests", "tokens", "cost_usd"])
def test_a_negative_budget_is_refused_where_it_is_made(limit: str) -> None:
    with pytest.raises(MCPConfigError, match=rf"Budget: {limit} is -1; it must be .* 0 or more"):
        Budget(**{limit: -1})
    assert Budget(**{limit: 0})
    assert Budget() == TurnLimits().budget


@pytest.mark.parametrize(
    ("base_url", "meant"),
    [
        ("localhost:8901", "http://localhost:8901"),
        ("127.0.0.1:11434/v1", "http://127.0.0.1:11434/v1"),
        ("api.openai.com/v1", "https://api.openai.com/v1"),
        ("https:/api.openai.com/v1", "https://api.openai.com/v1"),
    ],
)
def test_a_base_url_without_its_scheme_is_refused_where_it_is_made(base_url: str, meant: str) -> None:
    with pytest.raises(MCPConfigError, match="must start with http:// or https://") as refused:
        LlmSettings(base_url=base_url, model="m")
    assert f"Did you mean {meant}?" in str(refused.value)


@dataclass
class Count:
    number: int


def http(**wrong: Any) -> HttpServer:
    return HttpServer(**{"name": "a", "url": "http://127.0.0.1:9/mcp", **wrong})


def stdio(**wrong: Any) -> StdioServer:
    return StdioServer(**{"name": "a", "command": "python", **wrong})


async def later(answer: Any) -> Any:
    return answer


def request(**wrong: Any) -> TurnRequest[Any]:
    return TurnRequest(**{"user": "How many?", **wrong})


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: FunctionTools(now), "FunctionTools([now])"),
        (lambda: FunctionTools("now"), "FunctionTools wants a list of functions"),
        (lambda: FunctionTools([1]), "1 is not a function"),
        (lambda: FunctionTools({"now": 1}), "now is not a function"),
        (lambda: FunctionTools({}, catch_all=1), "catch_all= is not a function"),
        (lambda: stdio(args="server.py"), "write args=('server.py',)"),
        (lambda: stdio(args=[8000]), "one text for each argument"),
        (lambda: stdio(command=["python", "server.py"]), "write command='python', args=('server.py',)"),
        (lambda: stdio(command=" "), "write command='python'"),
        (lambda: stdio(env=["A=1"]), "write env={'NAME': 'value'}"),
        (lambda: stdio(options={"timeout": 3}), "write options=ServerOptions(...)"),
        (lambda: http(url=None), "write url='https://...'"),
        (lambda: http(headers=["A: 1"]), "headers={'Name': 'value'}"),
        (lambda: http(options={"timeout": 3}), "write options=ServerOptions(...)"),
        (lambda: with_settings().__class__(base_url="http://x", model=""), "such as model='qwen3'"),
        (lambda: LlmSettings(base_url="http://x", model=None), "LlmSettings(model=None)"),
        (lambda: LlmSettings(base_url=None, model="m"), "such as base_url='http://"),
        (lambda: Budget(requests="5"), "Budget: requests: Expected `int | null`, got `str`"),
        (lambda: with_settings(temperature="hot"), "LlmSettings: temperature: Expected `float"),
        (lambda: with_settings(retry=3), "LlmSettings: retry= wants RetryPolicy(...), not int"),
        (lambda: with_settings(retry={"max_retries": 1}), "retry= wants RetryPolicy(...), not dict"),
        (lambda: with_settings(extra_headers=["a"]), "LlmSettings: extra_headers: Expected `object`"),
        (lambda: with_settings(then=3), "LlmSettings(then=...)"),
        (lambda: TurnLimits(turn_timeout_s="30"), "turn_timeout_s: Expected `float | null`, got `str`"),
        (
            lambda: TurnLimits(tool_call_timeout_s=-1),
            "tool_call_timeout_s is -1; it must be a finite",
        ),
        (lambda: TurnLimits(turn_timeout_s=math.inf), "it must be a finite number above 0, or None"),
        (
            lambda: ServerOptions(call_timeout_s=1e297),
            "call_timeout_s is 1e+297; it must be less than 2**63, or None",
        ),
        (lambda: TurnLimits(turn_timeout_s=10**400), "; it must be less than 2**63, or None"),
        (lambda: TurnLimits(startup_timeouts_s={"files": 0}), "startup_timeouts_s is 0"),
        (
            lambda: FailurePolicy(first_connect="ignore"),
            "first_connect is one of raise, disable, not 'ignore'",
        ),
        (
            lambda: ServerOptions(roots=("/srv",)),
            "roots[0] is '/srv'; it must be a URI that begins with file",
        ),
        (lambda: ServerOptions(include="read"), "ServerOptions: include= wants a list or a tuple, not str"),
        (lambda: stdio(env={"PORT": 8000}), "StdioServer: env[...]: Expected `str`, got `int`"),
        (lambda: http(headers={"A": 1}), "HttpServer: headers[...]: Expected `str`, got `int`"),
        (lambda: request(turn_timeout_s=0), "turn_timeout_s= wants a number, above 0, or None, not 0"),
        (lambda: request(turn=-1), "turn= wants a number, 0 or more"),
        (lambda: request(turn=True), "turn= wants a number, not True"),
        (lambda: request(context=32_000), "context= wants ContextPolicy(...), not int"),
        (lambda: request(history=3), "history=outcome.said"),
        (lambda: request(history=[UserText(3)]), "history[0]=UserText(...): text: Expected `str`"),
        (lambda: request(history=[UserText(b"hi")]), "UserText(...): text: Expected `str`, got `bytes`"),
        (lambda: request(history=[UserText("hi", attachments=("x",))]), "UserText(...): attachments[0]"),
        (
            lambda: request(history=[UserText("hi"), AssistantReply(echo="x")]),
            "history[1]=AssistantReply(...): echo",
        ),
        (lambda: request(answer="int"), "answer= wants a type, answer=int, not 'int'"),
        (lambda: request(answer=["yes", "no"]), "answer= wants a type"),
        (lambda: request(answer=Count(1)), "answer= wants a type, answer=Count, not an instance of it"),
        (lambda: request(answer={"type": "object"}), "answer=AnswerSpec(json.loads, schema={...})"),
        (lambda: request(answer=weather), "answer= wants a type"),
        (lambda: request(user=None), "user= wants a text"),
        (lambda: request(system=["a"]), "system= wants a text"),
        (lambda: request(tools="files.read"), "tools=('files.read',)"),
        (
            lambda: request(tools=[now]),
            "the functions go into Runner(servers={'mine': FunctionTools([...])})",
        ),
        (lambda: request(images="a.png"), "images=['picture.png']"),
        (lambda: request(history=[{"role": "user", "content": "hi"}]), "UserText('...')"),
        (lambda: request(turn_timeout_s="3"), "turn_timeout_s= wants a number, not '3'"),
        (lambda: request(on_delta=True), "on_delta= wants a function"),
        (lambda: Runner(llm=LLM).run_turn(3), "A turn wants a text or TurnRequest(user=...), not int 3"),
        (lambda: Runner(llm=LLM).start_turn(None), "A turn wants a text or TurnRequest(user=...)"),
        (lambda: Runner(llm=LLM).map("hello"), "map() wants a list of requests, not one str"),
        (lambda: Runner(llm=LLM).map(request()), "map() wants a list of requests, not one TurnRequest"),
        (lambda: Runner(llm=LLM).conversation(3), "instructions as a text"),
        (lambda: Runner(llm=LLM).conversation().ask(request()), "ask() wants a text and options by name"),
        (lambda: AnswerSpec.from_model(int), "from_model wants a pydantic model"),
        (lambda: AnswerSpec.of(int, check=3), "AnswerSpec: check= wants a function that gets the answer"),
        (
            lambda: AnswerSpec.of(int, check=later),
            "check= wants a function that gets the answer and returns it, not an",
        ),
        (lambda: AnswerSpec(later), "parse= wants a function that gets the text, not an `async def`"),
        (lambda: tool(3), "tool wants a function, not 3"),
        (lambda: tool(timeout_s=0), "ToolSettings: timeout_s is 0; it must be a finite number above 0"),
        (lambda: tool(name=3), "ToolSettings: name: Expected `str | null`"),
        (lambda: ToolClient([FunctionTools([now])]), 'servers={"files": StdioServer(...)}, not a list'),
        (lambda: ToolClient({}, limits=30), "limits= wants TurnLimits(...)"),
        (lambda: ToolClient({}, recorder="a"), "recorder= wants recorder=Recorder()"),
    ],
)
def test_a_value_of_another_type_is_refused_where_it_is_made(make: Callable[[], object], says: str) -> None:
    with pytest.raises(MCPConfigError) as refused:
        make()
    assert says in str(refused.value)


@pytest.mark.parametrize("wrong", [None, 5, b"bot.jsonl", ["bot.jsonl"]])
def test_what_is_no_path_is_refused_before_anything_is_read_or_written(wrong: Any) -> None:
    with Runner(llm=LLM) as runner:
        talk = runner.conversation("Be brief.")
        for read in (
            lambda: Conversation.load(wrong, runner),
            lambda: Conversation.from_trace(wrong, runner),
            lambda: talk.save(wrong),
            lambda: runner.resume(wrong),
            lambda: runner.fork(wrong),
            lambda: parked_turns(wrong),
            lambda: open_episode(wrong),
            lambda: read_episode(wrong),
            lambda: read_servers(wrong),
            lambda: read_tool_lock(wrong),
            lambda: read_yaml(wrong),
            lambda: Runner.from_toml(wrong),
            lambda: GameConfiguration.from_toml(wrong),
            lambda: RunFolder(wrong, runner.recorder, episode_id="1"),
            lambda: ConfinedFolder(wrong),
            lambda: replay(wrong),
            lambda: assert_prefix_stable(wrong),
            lambda: load_config(wrong),
            lambda: read_sweep(wrong),
        ):
            with pytest.raises(MCPConfigError, match=rf"wants a path, .* not {re.escape(repr(wrong))}\."):
                read()


def test_a_path_that_may_be_left_out_is_a_path_if_it_is_given() -> None:
    wrong: Any = 5
    with Runner(llm=LLM) as runner:
        for read in (
            lambda: runner.conversation(path=wrong),
            lambda: runner.map(["Hi"], resume_from=wrong),
            lambda: runner.map(["Hi"], batch=wrong),
            lambda: TracePage(wrong),
        ):
            with pytest.raises(MCPConfigError, match=r"wants a path, .* not 5\."):
                read()


def test_a_batch_takes_requests_by_position_too() -> None:
    class Data:
        def __getitem__(self, place: int) -> str:
            return ["One?", "Two?"][place]

    data: Any = Data()
    with Runner(llm=offline_endpoint(reply_in_chat)) as runner:
        assert len(list(runner.map(data))) == 2


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda talk: Conversation.loads(talk.dumps(), None), "wants the runner of its turns, not None"),
        (lambda talk: Conversation.from_trace("x", None, name=5), "name='turn-3', not 5"),
        (lambda talk: Runner(llm=LLM).resume("x", conversation=talk), "write talk.resume([...])"),
        (lambda talk: Runner(llm=LLM).map(None), "map() wants a list of requests, not one NoneType"),
    ],
)
def test_a_conversation_wants_its_runner_and_a_batch_its_requests(
    make: Callable[[Conversation], object], says: str
) -> None:
    with pytest.raises(MCPConfigError, match=re.escape(says)):
        make(Runner(llm=LLM).conversation("Be brief."))


def test_a_function_that_is_taken_for_a_server_says_where_it_belongs() -> None:
    servers: Any = {"rates": lambda currency: 1.08}
    says = r"returned float, .* servers=\{'rates': FunctionTools\(\["
    with (
        Runner(llm=offline_endpoint(reply_in_chat), servers=servers) as runner,
        pytest.raises(ActorCrashed, match=says),
    ):
        runner.run_turn("Hello.")


def test_a_text_alone_is_a_request() -> None:
    with Runner(llm=offline_endpoint(reply_in_chat)) as runner:
        answer = runner.run_turn(TurnRequest("Hello.")).response
        assert "(scripted)" in answer
        assert runner.run_turn("Hello.").response == answer
        assert anyio.run(runner.run_turn_async, "Hello.").response == answer
        assert runner.start_turn("Hello.").result().response == answer
        assert [item.outcome and item.outcome.response for item in runner.map(["Hello."] * 2)] == [answer] * 2
        assert runner.conversation().ask("Hello.").response == answer


def test_a_servers_command_and_its_address_may_be_given_by_position() -> None:
    assert StdioServer("python", ["server.py"]) == StdioServer(command="python", args=("server.py",))
    assert HttpServer("http://127.0.0.1:9/mcp").url == "http://127.0.0.1:9/mcp"


def test_a_policy_or_a_limit_for_no_server_is_refused() -> None:
    policy = FailurePolicy(first_connects={"ratez": "disable"})
    with pytest.raises(MCPConfigError, match="first_connects has 'ratez', and servers= has 'rates'"):
        Runner(llm=LLM, servers={"rates": FunctionTools([now])}, policy=policy)
    limits = TurnLimits(startup_timeouts_s={"ratez": 20})
    with pytest.raises(MCPConfigError, match="startup_timeouts_s has 'ratez', and servers= has 'rates'"):
        Runner(llm=LLM, servers={"rates": FunctionTools([now])}, limits=limits)
    with pytest.raises(MCPConfigError, match="startup_timeouts_s has 'ratez', and servers= has 'rates'"):
        ToolClient({"rates": FunctionTools([now])}, limits=limits)


def test_the_changes_of_a_fork_are_a_dictionary() -> None:
    with pytest.raises(MCPConfigError, match="changes= wants a dictionary, not 5"):
        Runner(llm=LLM).fork("trace.jsonl", changes=5)  # type: ignore[arg-type]


def test_a_function_in_place_of_an_endpoint_returns_an_actor() -> None:
    with pytest.raises(MCPConfigError, match="An LlmFactory, as in llm=, returns an Actor, not None"):
        Runner(llm=lambda *_: None).run_turn("Hello.")  # type: ignore[arg-type,return-value]


def test_a_call_names_its_tool_by_a_text() -> None:
    with ToolClient({"tools": FunctionTools([now])}) as client:
        with pytest.raises(MCPError, match=r"call\(3\): a tool's name is a text"):
            client.call(3)  # type: ignore[arg-type]  # the mistake
        client.call("tools.now", timeout_s=10**400)
        with pytest.raises(MCPError, match="timeout_s is a number of seconds, not '3'"):
            client.call("tools.now", timeout_s="3")  # type: ignore[arg-type]  # the mistake
        for send in (client.call, client.request, client.request_all):
            with pytest.raises(MCPError, match="timeout_s is a number of seconds, not nan"):
                send("tools.now", "x", timeout_s=float("nan"))  # type: ignore[operator]


def test_a_batch_says_which_requests_are_none() -> None:
    (item,) = Runner(llm=LLM).map([3])  # type: ignore[list-item, var-annotated]  # the mistake
    assert "A turn wants a text or TurnRequest(user=...), not int 3" in str(item.error)


def test_a_list_is_taken_where_a_tuple_is_declared() -> None:
    assert ServerOptions(include=["read"]).include == ("read",)  # type: ignore[arg-type]  # what people write


def test_a_call_and_a_request_want_a_dictionary() -> None:
    with ToolClient({"tools": FunctionTools([now])}) as client:
        with pytest.raises(MCPError, match=r"arguments are a dictionary, .* not a list"):
            client.call("tools.now", ["a"])  # type: ignore[arg-type]  # the mistake
        for send in (client.request, client.request_all):
            with pytest.raises(MCPError, match=r"params are a dictionary, .* not a list"):
                send("tools", "prompts/list", ["a"])  # type: ignore[operator]  # the mistake


def test_arguments_that_hold_themselves_are_refused_at_once() -> None:
    knot: list[object] = []
    knot += [knot, knot]
    refused = pytest.raises(MCPError, match=r"call\('tools.now'\): arguments hold themselves")
    with ToolClient({"tools": FunctionTools([now])}) as client, refused:
        client.call("tools.now", {"at": knot})


def test_no_error_shows_an_argument() -> None:
    with pytest.raises(MCPConfigError) as refused:
        stdio(args="--token=sk-123456789012345")
    assert "sk-1" not in str(refused.value)


@pytest.mark.parametrize(
    ("made", "owner"),
    [
        (lambda: TurnRequest(user="x", limits=TurnLimits()), "Runner(limits=...)"),  # type: ignore[call-arg]
        (lambda: TurnRequest(user="x", temperature=0), "LlmSettings(temperature=...)"),  # type: ignore[call-arg]
        (lambda: Runner(llm=LLM, temperature=0), "llm=LlmSettings(temperature=...)"),  # type: ignore[call-arg]
        (lambda: Runner(llm=LLM, system="a"), "TurnRequest(system=...)"),  # type: ignore[call-arg]
        (lambda: with_settings(max_tool_iterations=3), "TurnLimits(max_tool_iterations=...)"),
        (lambda: with_settings(timeout_s=3), "retry=RetryPolicy(timeout_s=...)"),
        (lambda: stdio(required=False), "options=ServerOptions(required=...)"),
        (lambda: TurnLimits(final_answer="a"), None),  # type: ignore[call-arg]
        (lambda: FailurePolicy(max_tokens=3), "LlmSettings(max_tokens=...)"),  # type: ignore[call-arg]
        (lambda: ToolPolicy(verdict="ask"), "ToolRule(verdict=...)"),  # type: ignore[call-arg]
        (lambda: Runner(llm=LLM).run_turn("x", answer=int), "TurnRequest(answer=...)"),  # type: ignore[call-arg]
        (lambda: Runner(llm=LLM).start_turn("x", answer=int), "TurnRequest(answer=...)"),  # type: ignore[call-arg]
        (lambda: Runner(llm=LLM).map(["x"], answer=int), "TurnRequest(answer=...)"),  # type: ignore[call-arg]
    ],
)
def test_a_keyword_of_another_class_is_refused_with_the_name_of_that_class(
    made: Callable[[], object], owner: str | None
) -> None:
    with pytest.raises(TypeError, match="has no keyword argument") as refused:
        made()
    assert str(refused.value).partition("belongs to ")[2] == ("" if owner is None else f"{owner}.")


@pytest.mark.parametrize(
    ("kind", "first"),
    [
        (ApprovalDecision, "call_id"),
        (Batching, "folder"),
        (OAuth, "grant"),
        (Price, "input"),
        (Sandbox, "preset"),
        (ShellTool, "folder"),
        (ToolAnnotations, "read_only"),
    ],
)
def test_an_argument_without_a_name_is_refused_with_an_example(kind: Any, first: str) -> None:
    with pytest.raises(TypeError, match=rf"write them by name, as in {kind.__name__}\({first}=\.\.\.\)\."):
        kind("a")


def test_an_argument_that_is_missing_is_named() -> None:
    with pytest.raises(TypeError, match="Missing required argument 'user'"):
        TurnRequest()  # type: ignore[call-arg]  # the mistake
    with pytest.raises(TypeError, match=r"write them by name, as in LlmSettings\(model=\.\.\.\)\."):
        LlmSettings("qwen3")  # type: ignore[call-arg, misc]  # the mistake
    with pytest.raises(TypeError, match=r"write them by name, as in ToolRule\(tools=\.\.\.\)\."):
        ToolRule("files.*")  # type: ignore[misc]  # the mistake


@pytest.mark.parametrize(
    ("made", "meant"),
    [
        (lambda: ServerOptions(requierd=False), "required"),  # type: ignore[call-arg]
        (lambda: ToolRule(tool="files.*"), "tools"),  # type: ignore[call-arg]
        (lambda: HttpServer("http://a/", header={}), "headers"),  # type: ignore[call-arg]
        (lambda: Runner(llm=LLM, server={}), "servers"),  # type: ignore[call-arg]
        (lambda: LlmSettings(url="http://a", model="m"), "base_url"),  # type: ignore[call-arg]
        (lambda: StdioServer(cmd="python"), "command"),  # type: ignore[call-arg]
        (lambda: TurnRequest("x", output_type=int), "answer"),  # type: ignore[call-arg]
        (lambda: TurnRequest("x", messages=[]), "history"),  # type: ignore[call-arg]
    ],
)
def test_a_misspelt_keyword_is_refused_with_the_right_one(made: Callable[[], object], meant: str) -> None:
    with pytest.raises(TypeError, match=f"Did you mean '{meant}'"):
        made()


def test_a_path_may_be_given_where_a_server_wants_its_text() -> None:
    server = stdio(
        command=Path("bin/serve"), args=[Path("notes"), "-v"], cwd=Path("a"), env={"HOME": Path("b")}
    )
    folder = str(Path("a").absolute())
    assert (server.command, server.args, server.cwd) == ("bin/serve", ("notes", "-v"), folder)
    assert server.environment()["HOME"] == "b"
    assert server == stdio(command="bin/serve", args=("notes", "-v"), cwd="a", env={"HOME": "b"})


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (lambda: tool_calls_reply("a.b", {"c": 1}), 'write tool_calls_reply(("server.tool", {...}))'),  # type: ignore[arg-type]
        (lambda: tool_calls_reply(("rates.rate",)), 'write tool_calls_reply(("server.tool", {...}))'),  # type: ignore[arg-type]
        (
            lambda: tool_calls_reply(("a.b", {}), ids="call_1"),
            "ids= wants a list with an id for each of the 1 calls",
        ),
        (lambda: tool_calls_reply(("a.b", {}), content=3), "content= wants a text, not int"),  # type: ignore[arg-type]
        (lambda: refusal_reply(None), "words wants a text, not NoneType"),  # type: ignore[arg-type]
        (lambda: completion("Hello."), "message wants a dictionary, not str"),  # type: ignore[arg-type]
        (lambda: error_reply("503", "busy"), "status wants a number, such as 503, not str"),  # type: ignore[arg-type]
        (lambda: error_reply(503, {"error": "busy"}), "message wants a text, not dict"),  # type: ignore[arg-type]
    ],
)
def test_a_scripted_reply_that_cannot_be_made_says_how_to_write_it(
    made: Callable[[], object], says: str
) -> None:
    with pytest.raises(TypeError, match=re.escape(says)):
        made()
