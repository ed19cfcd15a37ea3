"""What has no effect is told to a program that watches no trace, once, where it is seen."""

import logging
import re
import subprocess
import sys

import pytest
from transport_servers import faulty

from grue import (
    FailurePolicy,
    FunctionTools,
    LlmSettings,
    Recorder,
    RetryPolicy,
    Runner,
    StdioServer,
    ToolPolicy,
    ToolRule,
    TurnRequest,
)
from grue.engine import wiring
from grue.testing.llm_server import ScriptedLlmServer, completion, error_reply, tool_calls_reply
from grue.tracing.observers.events import LoggerObserver

SHOP = {"shop": FunctionTools({"price": lambda article: 21})}
PATTERN = TurnRequest("How much?", tools=("shop.prise",))
SAYS = "grue: tools= of the request has 'shop.prise', which matches no tool"
WORDS = r".*\. Its last line on stderr: no table: \[redacted.*\]"
DIED = "grue: server shop died: the server ended during tools/call" + WORDS
GIVEN_UP = "grue: server shop is disabled .*: the server ended during initialize" + WORDS
CUT = (
    r"grue: the result of the tool call \S+ cut: the model was sent [\d,]+ of [\d,]+ characters;"
    r" TurnLimits\(max_result_chars=\) is the limit"
)
PROGRAM = """
from grue import FunctionTools, LlmSettings, Runner, TurnRequest
from grue.testing.llm_server import ScriptedLlmServer, completion

usage = {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17}
reply = completion({"role": "assistant", "content": "I cannot know."}, usage=usage)
def price(article: str, currency: str = "euro") -> int:
    '''Return the price of an article of the shop, in a currency, without the costs of its transport.'''
    return 21
with ScriptedLlmServer([reply] * 2) as model:
    llm = LlmSettings(base_url=model.base_url, model="small")
    for _ in range(2):
        with Runner(llm=llm, servers={"shop": FunctionTools([price])}) as runner:
            print(runner.run_turn("How much?").response)
"""


@pytest.fixture(autouse=True)
def untold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wiring, "_told", set())


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.name == "grue"]


def ask(
    request: TurnRequest[str], recorder: Recorder | None = None, policy: ToolPolicy | None = None
) -> Runner:
    with ScriptedLlmServer(["I do not know."] * 2) as llm:
        settings = LlmSettings(base_url=llm.base_url, model="m")
        with Runner(llm=settings, servers=SHOP, recorder=recorder, tool_policy=policy) as runner:
            runner.run_turn(request)
            runner.run_turn(request)
    return runner


def test_a_pattern_that_matches_nothing_is_told_once_in_a_process(caplog: pytest.LogCaptureFixture) -> None:
    ask(PATTERN)
    ask(PATTERN)
    assert told(caplog) == [SAYS]


def test_a_rule_that_matches_nothing_is_told(caplog: pytest.LogCaptureFixture) -> None:
    ask(TurnRequest("How much?"), policy=ToolPolicy(rules=(ToolRule(tools=("shop.pay",), verdict="deny"),)))
    assert told(caplog) == ["grue: the tool policy has 'shop.pay', which matches no tool"]


def test_a_reply_that_was_cut_is_told_unless_it_is_asked_for_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cut = completion({"role": "assistant", "content": "It is"}, finish_reason="length")
    for factor, said in ((1.0, ["grue: LLM reply was cut short at 5 tokens (max_tokens)"]), (4.0, [])):
        caplog.clear()
        with ScriptedLlmServer([cut, "It is blue."]) as llm:
            retry = RetryPolicy(length_retry_factor=factor)
            llm_settings = LlmSettings(base_url=llm.base_url, model="m", max_tokens=5, retry=retry)
            Runner(llm=llm_settings).run_turn(TurnRequest("A colour?", answer=None))
        assert told(caplog) == said


def settings(llm: ScriptedLlmServer) -> LlmSettings:
    return LlmSettings(base_url=llm.base_url, model="m")


@pytest.mark.parametrize(
    ("shop", "said"),
    [
        (faulty("--exit-at", "call", "--stderr", "rates\nno table: key-of-the-shop"), DIED),
        (faulty("--exit-at", "initialize", "--stderr", "rates\nno table: key-of-the-shop"), GIVEN_UP),
        (FunctionTools({"echo": lambda text: "21 euro; " * 9_000}), CUT),
    ],
    ids=["died", "given up", "cut"],
)
@pytest.mark.slow
def test_a_server_that_fails_and_a_result_that_was_cut_are_told_once(
    caplog: pytest.LogCaptureFixture, shop: StdioServer | FunctionTools, said: str
) -> None:
    policy = FailurePolicy(first_connect="disable", connect_retries=0)
    for _ in range(2):
        with (
            ScriptedLlmServer([tool_calls_reply(("shop.echo", {"text": "a"})), "21 euro."] * 2) as llm,
            Runner(llm=settings(llm), servers={"shop": shop}, policy=policy) as runner,
        ):
            runner.recorder.hide("SHOP_KEY", "key-of-the-shop")
            runner.run_turn("How much?")
            runner.run_turn("How much?")
    (line,) = told(caplog)
    assert re.fullmatch(said, line)


@pytest.mark.slow
def test_an_elicit_function_that_failed_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async def elicit(request: object) -> dict[str, object]:
        raise LookupError("no window")

    with ScriptedLlmServer([tool_calls_reply(("shop.echo", {"text": "a"})), "I cannot know."]) as llm:
        shop = {"shop": faulty("--ask", "elicitation")}
        with Runner(llm=settings(llm), servers=shop, elicit=elicit) as runner:
            runner.run_turn("How much?")
    assert told(caplog) == [
        "grue: MCP server 'shop' got no answer from the user: the host could not ask for the input: no window"
    ]


def test_a_request_that_is_sent_again_is_told_once_for_each_reason(caplog: pytest.LogCaptureFixture) -> None:
    """A program that is silent for minutes seems to hang."""
    refused = error_reply(503, "busy")
    with ScriptedLlmServer([refused, refused, "It is blue.", refused, "It is red."]) as llm:
        retry = RetryPolicy(initial_delay_s=0.01, max_delay_s=0.01)
        runner = Runner(llm=LlmSettings(base_url=llm.base_url, model="m", retry=retry))
        runner.run_turn("A colour?")
        runner.run_turn("Another one?")
    assert told(caplog) == ["grue: the model did not answer (unavailable 503: busy); attempt 2 in 0.0 s"]


def test_a_program_with_a_recorder_or_a_log_of_its_own_is_not_told_twice(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ask(PATTERN, recorder=Recorder())
    assert told(caplog) == []
    with ScriptedLlmServer(["I do not know."]) as llm, Runner(llm=settings(llm), servers=SHOP) as runner:
        runner.recorder.add(LoggerObserver(logging.getLogger("shop")))
        runner.run_turn(PATTERN)
    assert told(caplog) == []
    assert SAYS.removeprefix("grue: ") in [each.getMessage() for each in caplog.records]


def test_a_secret_in_what_is_told_is_hidden(caplog: pytest.LogCaptureFixture) -> None:
    with ScriptedLlmServer(["I do not know."]) as llm, Runner(llm=settings(llm), servers=SHOP) as runner:
        runner.recorder.hide("SHOP_KEY", "prise")
        runner.run_turn(PATTERN)
    (line,) = told(caplog)
    assert "prise" not in line


@pytest.mark.slow
def test_a_plain_program_reads_on_stderr_that_its_model_was_not_shown_the_tools() -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert ran.stdout == "I cannot know.\n" * 2
    (line,) = ran.stderr.splitlines()
    assert line.startswith("grue: LLM small (")
    assert "12 tokens for a prompt with 1 tool and called none: its chat template" in line
