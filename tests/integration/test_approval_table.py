"""Every answer at every place where a person is asked: which calls are made. The guide has the same table."""

import os
import pty
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chats import KeptScreen, ScriptedReader
from msgspec.structs import replace
from skill_runs import act, call, finish, run

from grue import (
    ApprovalQuestion,
    FunctionTools,
    LlmSettings,
    Runner,
    ToolPolicy,
    ToolRule,
    TurnRequest,
    ask_at_terminal,
)
from grue.cli.chat.person import Person
from grue.errors import ApprovalPending, ChangeRefused
from grue.hosting import OwnCall, ask_about, judge_calls
from grue.hosts.skill_agent import AgentConfig, Orchestrator
from grue.messages import ServerName, ToolDefinition
from grue.runtime.secrets.redaction import Redaction
from grue.testing.fake_tools import FakeToolServer
from grue.testing.llm_server import LlmReply, LlmRequest, ScriptedLlmServer, text_reply, tool_calls_reply

ASK = ToolPolicy(rules=(ToolRule(tools=("box.pay",), verdict="ask"),))
PARK = replace(ASK, parking=True)
ASKED, OTHER = {"sum": 1}, {"sum": 2}
Answer = Callable[[ApprovalQuestion], Any]
Paid = list[dict[str, Any]]


def odd(verdict: Any, arguments: Any = None) -> Answer:
    return lambda question: [replace(question.approve(), verdict=verdict, arguments=arguments)]


def elsewhere(**other: str) -> Answer:
    return lambda question: [replace(question.approve(), **other)]


ANSWERS: dict[str, tuple[list[Answer], Paid]] = {
    "`approve()`": ([lambda q: [q.approve()], lambda q: [q.approve(), q.approve()]], [ASKED]),
    "`change({...})`": ([lambda q: [q.change(OTHER)]], [OTHER]),
    "`deny()`": ([lambda q: [q.deny("no")]], []),
    "another verdict (`reject`, `Deny`, `None`)": ([odd("reject"), odd("Deny"), odd(None), odd("")], []),
    "`change` without arguments, or `approve` with arguments": ([odd("change"), odd("approve", OTHER)], []),
    "two decisions about the same call that contradict each other": (
        [
            lambda q: [q.approve(), q.deny()],
            lambda q: [q.deny(), q.approve()],
            lambda q: [q.approve(), q.change(OTHER)],
        ],
        [],
    ),
    "a decision that is about other arguments or another tool definition than those of the call": (
        [elsewhere(arguments_digest="x"), elsewhere(definition_digest="x"), elsewhere(call_id="x")],
        [],
    ),
    "no decision": ([lambda _: []], []),
}


class Till(FunctionTools):
    """A tool server that keeps what was paid."""

    def __init__(self) -> None:
        self.paid: Paid = []

        def pay(sum: int) -> str:  # noqa: A002 - the tool's parameter
            self.paid.append({"sum": sum})
            return "paid"

        super().__init__({"pay": pay})


def model(request: LlmRequest) -> LlmReply:
    told = any(message["role"] == "tool" for message in request.messages)
    return text_reply("done") if told else tool_calls_reply(("box.pay", ASKED))


def runner(server: ScriptedLlmServer, till: Till, policy: ToolPolicy = ASK, **options: Any) -> Runner:
    settings = LlmSettings(base_url=server.base_url, model="m")
    return Runner(llm=settings, servers={"box": till}, tool_policy=policy, **options)


def first(answer: Answer) -> Callable[[tuple[ApprovalQuestion, ...]], Any]:
    return lambda questions: answer(questions[0])


def in_a_turn(answer: Answer, folder: Path) -> Paid:
    till = Till()
    with ScriptedLlmServer(model) as server, runner(server, till, approve=first(answer)) as asking:
        asking.run_turn(TurnRequest(system="s", user="u"))
    return till.paid


def in_a_conversation(answer: Answer, folder: Path) -> Paid:
    till = Till()
    with ScriptedLlmServer(model) as server, runner(server, till, approve=first(answer)) as asking:
        asking.conversation("s").ask("u")
    return till.paid


def in_a_parked_turn(answer: Answer, folder: Path) -> Paid:
    till, trace = Till(), folder / "turn.jsonl"
    with ScriptedLlmServer(model) as server:
        with runner(server, till, PARK, trace=trace) as asking, pytest.raises(ApprovalPending) as pending:
            asking.run_turn(TurnRequest(system="s", user="u"))
        (question,) = pending.value.questions
        with runner(server, till, PARK) as later:
            try:
                later.resume(trace, answer(question))
            except (ApprovalPending, ChangeRefused):
                assert till.paid == [], "it is asked about again, or refused"
    return till.paid


def in_own_calls(answer: Answer, folder: Path) -> Paid:
    tool = ToolDefinition(server=ServerName("box"), tool="pay", input_schema={"type": "object"})
    calls = judge_calls([OwnCall(call_id="c1", tool=tool, arguments=ASKED)], ASK)
    asked = ask_about(calls, ASK, first(answer))
    return [each.arguments for each in asked.calls if not each.denied]


def in_the_skill_agent(answer: Answer, folder: Path) -> Paid:
    box = FakeToolServer("box")
    box.answers("pay", "paid")
    config = {"servers": {"box": box}, "policy": ASK}
    run([act(call("pay", **ASKED)), act(finish())], config=config, approve=first(answer))
    return [arguments for _, arguments in box.calls]


def in_a_parked_skill_agent(answer: Answer, folder: Path) -> Paid:
    box = FakeToolServer("box")
    box.answers("pay", "paid")
    config: dict[str, Any] = {"servers": {"box": box}, "policy": PARK}
    parked = run([act(call("pay", **ASKED))], config=config, folder=folder / "run").result
    with ScriptedLlmServer([act(finish())]) as server:
        settings = AgentConfig(llm=LlmSettings(base_url=server.base_url, model="m"), **config)
        Orchestrator(settings, folder=folder / "run").resume(answer(parked.questions[0]))
    return [arguments for _, arguments in box.calls]


PLACES = [
    in_a_turn,
    in_a_conversation,
    in_a_parked_turn,
    in_own_calls,
    in_the_skill_agent,
    in_a_parked_skill_agent,
]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
@pytest.mark.parametrize("row", ANSWERS)
def test_an_answer_has_the_same_effect_at_every_place(row: str, place: Any, tmp_path: Path) -> None:
    answers, paid = ANSWERS[row]
    for number, answer in enumerate(answers):
        (tmp_path / str(number)).mkdir()
        assert place(answer, tmp_path / str(number)) == paid, f"answer {number}"


TYPED = {
    "`y`, `yes`": (["y", "YES", " yes "], True, True),
    "`a`, `always`": (["a", "always"], True, False),
    "`n`, nothing, the end of the input": (["n", "no", ""], False, False),
    "anything else": (["reject", "yess", "ye", "ok", "approve", "1", "y y"], False, False),
}


@pytest.mark.parametrize("row", TYPED)
def test_what_is_typed_approves_only_if_it_is_a_yes(row: str, monkeypatch: pytest.MonkeyPatch) -> None:
    question = ApprovalQuestion(
        call_id="c1", name="box.pay", arguments=ASKED, arguments_digest="a", definition_digest="d"
    )
    typed, in_chat, at_terminal = TYPED[row]
    for words in typed:
        reader = ScriptedReader([], [words.strip()])
        person = Person(lambda reader=reader: reader, KeptScreen(), Redaction({}))  # type: ignore[misc]
        assert (person.decide(question).verdict == "approve") == in_chat
        assert (_at_terminal(monkeypatch, question, words) == "approve") == at_terminal


def _at_terminal(monkeypatch: pytest.MonkeyPatch, question: ApprovalQuestion, words: str) -> str:
    keyboard, terminal = pty.openpty()
    monkeypatch.setattr("termios.tcflush", lambda *_: os.write(keyboard, f"{words}\n".encode()))
    with os.fdopen(terminal, encoding="utf-8") as stdin, monkeypatch.context() as patched:
        patched.setattr(sys, "stdin", stdin)
        patched.setattr(sys.stderr, "isatty", lambda: True, raising=False)
        (decision,) = ask_at_terminal((question,))
    os.close(keyboard)
    return decision.verdict


def test_the_guide_has_these_rows() -> None:
    guide = Path(__file__).parents[2] / "docs" / "guides" / "tool-policy.md"
    rows = re.findall(r"^\| (.+?) \|", guide.read_text(encoding="utf-8"), re.MULTILINE)
    assert {*ANSWERS, *TYPED} <= {*rows}
