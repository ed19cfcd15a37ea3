"""The `approve` callback of a runner: who is asked, when, and what an answer does."""

import threading
from collections.abc import Iterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from grue import (
    ApprovalQuestion,
    FunctionTools,
    LlmSettings,
    Recorder,
    Runner,
    ToolPolicy,
    ToolRule,
    TurnRequest,
    ask_at_terminal,
)
from grue.errors import ActorCrashed, TurnTimedOut
from grue.messages import AskApproval, CallsDecided, DecisionIgnored, ToolCalled
from grue.runtime.trace.recorder import Envelope
from grue.testing.leftovers import assert_nothing_left
from grue.testing.llm_server import LlmReply, LlmRequest, ScriptedLlmServer, text_reply, tool_calls_reply

REQUEST = TurnRequest(system="s", user="u")
Questions = tuple[ApprovalQuestion, ...]


def model(request: LlmRequest) -> LlmReply:
    told = [message["content"] for message in request.messages if message["role"] == "tool"]
    if not told:
        return tool_calls_reply(("box.look", {}), ("box.put", {"what": "lamp"}), ("box.put", {"what": "egg"}))
    return text_reply(" ".join(told))


@pytest.fixture
def llm() -> Iterator[ScriptedLlmServer]:
    with ScriptedLlmServer(model) as server, assert_nothing_left():
        yield server


class Stage:
    """A runner whose policy asks about `box.put`, and what its tools and its recorder have seen."""

    def __init__(self, llm: ScriptedLlmServer, approve: Any = None, **more: Any) -> None:
        self.put: list[str] = []
        self.envelopes: list[Envelope[Any]] = []
        recorder = Recorder()
        recorder.add(lambda envelope, _line: self.envelopes.append(envelope))
        policy = ToolPolicy(rules=(ToolRule(tools=("box.put",), verdict="ask"),))
        self.runner = Runner(
            llm=LlmSettings(base_url=llm.base_url, model="m"),
            servers={"box": FunctionTools({"look": lambda: "dust", "put": self._put}), **more},
            recorder=recorder,
            tool_policy=policy,
            approve=approve,
        )

    def _put(self, what: str) -> str:
        self.put.append(what)
        return f"{what} is in"

    def said(self, *kinds: type) -> list[Any]:
        return [item.body for item in self.envelopes if isinstance(item.body, kinds)]


def test_a_function_is_asked_once_about_all_calls_in_a_thread_of_its_own(llm: ScriptedLlmServer) -> None:
    seen: list[tuple[list[dict[str, object]], str]] = []

    def approve(questions: Questions) -> Any:
        seen.append(([question.arguments for question in questions], threading.current_thread().name))
        return [questions[0].approve(), questions[1].deny("no eggs")]

    stage = Stage(llm, approve)
    outcome = stage.runner.run_turn(REQUEST)
    assert [arguments for arguments, _ in seen] == [[{"what": "lamp"}, {"what": "egg"}]]
    assert seen[0][1] != threading.main_thread().name
    assert stage.put == ["lamp"]
    assert "Tool call denied: no eggs" in outcome.response
    order = [type(body) for body in stage.said(AskApproval, CallsDecided, ToolCalled)]
    assert order == [AskApproval, CallsDecided, ToolCalled, ToolCalled]


@pytest.mark.parametrize(("answer", "put"), [(True, ["lamp", "egg"]), (False, []), (None, []), ([], [])])
def test_an_answer_may_be_one_for_all(llm: ScriptedLlmServer, answer: Any, put: list[str]) -> None:
    async def approve(questions: Questions) -> Any:
        assert len(questions) == 2
        await anyio.lowlevel.checkpoint()
        return answer

    stage = Stage(llm, approve)
    stage.runner.run_turn(REQUEST)
    assert stage.put == put


def test_a_function_may_return_an_awaitable(llm: ScriptedLlmServer) -> None:
    async def later() -> bool:
        return True

    stage = Stage(llm, lambda questions: later())
    stage.runner.run_turn(REQUEST)
    assert stage.put == ["lamp", "egg"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"what": 5}, '$.what: 5 is not of type "string"'),
        ({}, '"what" is a required property'),
        ({"what": "egg", "where": "bag"}, "Additional properties are not allowed"),
        ({"what": "x" * 9_000_000}, "the arguments are longer than"),
    ],
)
@pytest.mark.parametrize("learns", [True, False])
@pytest.mark.slow
def test_changed_arguments_that_the_schema_refuses_are_asked_about_again(
    llm: ScriptedLlmServer, arguments: dict[str, object], why: str, learns: bool
) -> None:
    asked: list[Questions] = []

    def approve(questions: Questions) -> Any:
        asked.append(questions)
        assert questions[0].input_schema is not None
        good = learns and len(asked) == 2
        return [questions[0].change({"what": "bag"} if good else arguments), *map(deny, questions[1:])]

    stage = Stage(llm, approve)
    outcome = stage.runner.run_turn(REQUEST)
    assert [len(questions) for questions in asked] == ([2, 1] if learns else [2, 1, 1])
    assert why in asked[1][0].reason
    assert stage.put == (["bag"] if learns else [])
    assert ("the changed arguments cannot be used" in outcome.response) is not learns


def deny(question: ApprovalQuestion) -> Any:
    return question.deny("no")


def test_without_anybody_to_ask_the_calls_are_denied(llm: ScriptedLlmServer) -> None:
    stage = Stage(llm)
    outcome = stage.runner.run_turn(REQUEST)
    assert stage.put == []
    assert outcome.response.count("it needs an approval, and there is nobody to ask") == 2
    assert [record.settlement for record in outcome.tool_calls] == ["returned", "denied", "denied"]


def test_without_a_terminal_the_calls_are_denied(llm: ScriptedLlmServer) -> None:
    stage = Stage(llm, ask_at_terminal)
    outcome = stage.runner.run_turn(REQUEST)
    assert "there is no terminal to ask at" in outcome.response
    assert stage.put == []


@pytest.mark.parametrize("returned", [7, ["yes"]])
def test_an_answer_that_is_none_ends_the_turn(llm: ScriptedLlmServer, returned: Any) -> None:
    stage = Stage(llm, lambda questions: returned)
    with pytest.raises(ActorCrashed) as crash:
        stage.runner.run_turn(REQUEST)
    assert isinstance(crash.value.__cause__, TypeError)
    assert stage.put == []


@pytest.mark.parametrize("waits", [True, False])
def test_what_the_callback_raises_ends_the_turn(llm: ScriptedLlmServer, waits: bool) -> None:
    def plain(questions: Questions) -> Any:
        raise KeyError("mine")

    async def waiting(questions: Questions) -> Any:
        raise KeyError("mine")

    stage = Stage(llm, waiting if waits else plain)
    with pytest.raises(ActorCrashed) as crash:
        stage.runner.run_turn(REQUEST)
    assert isinstance(crash.value.__cause__, KeyError)


def test_the_wait_counts_against_the_turns_limit_and_a_late_answer_is_noted(llm: ScriptedLlmServer) -> None:
    go_on, noted = threading.Event(), threading.Event()

    def approve(questions: Questions) -> bool:
        go_on.wait(60)
        return True

    stage = Stage(llm, approve)
    stage.runner.recorder.add(
        lambda envelope, _line: noted.set() if isinstance(envelope.body, DecisionIgnored) else None
    )
    request = TurnRequest(system="s", user="u", turn_timeout_s=4.0)
    with pytest.raises(TurnTimedOut, match=r"waiting for an approval of box\.put, box\.put"):
        stage.runner.run_turn(request)
    go_on.set()
    assert noted.wait(60)
    assert stage.put == []


def test_a_subset_of_the_tools_is_offered(llm: ScriptedLlmServer) -> None:
    stage = Stage(llm, other=FunctionTools({"x": lambda: 1}))
    request = TurnRequest(system="s", user="u", tools=("box.look",))
    outcome = stage.runner.run_turn(request)
    (offered,) = llm.requests[0].body["tools"]
    assert offered["function"]["name"].endswith("look")
    assert "Unknown MCP tool: box.put" in outcome.response
