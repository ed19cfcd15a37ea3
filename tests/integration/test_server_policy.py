"""The policy of one server in a turn: whether it has to start, and calls that its own schemas refuse."""

from pathlib import Path

from lifetimes import DONE, ECHO, answering
from transport_servers import faulty

from grue import LlmSettings, Runner, ServerOptions, StdioServer, TurnRequest
from grue.messages import McpDisabled, SessionClosed, SessionOpened
from grue.testing.leftovers import assert_nothing_left
from grue.testing.llm_server import ScriptedLlmServer

OPTIONAL = ServerOptions(required=False)


def test_a_server_that_is_not_required_does_not_end_the_first_turn_for_the_others() -> None:
    servers = {
        "faulty": faulty(),
        "gone": StdioServer(name="gone", command="false", options=OPTIONAL),
        "missing": StdioServer(name="missing", command="no-such-program", options=OPTIONAL),
    }
    told: list[object] = []
    with ScriptedLlmServer(answering(ECHO, DONE, ECHO, DONE)) as llm, assert_nothing_left():
        settings = LlmSettings(base_url=llm.base_url, model="scripted")
        with Runner(llm=settings, servers=servers) as runner:
            runner.recorder.add(lambda envelope, _line: told.append(envelope.body))
            outcomes = [runner.run_turn(TurnRequest(system="s", user="u")) for _ in range(2)]
    assert [outcome.response for outcome in outcomes] == ["done", "done"]
    assert [call.settlement for outcome in outcomes for call in outcome.tool_calls] == ["returned"] * 2
    disabled = [body for body in told if isinstance(body, McpDisabled)]
    assert {(body.server, body.newly) for body in disabled} == {
        (server, newly) for server in ("gone", "missing") for newly in (True, False)
    }
    opened = [body.server for body in told if isinstance(body, SessionOpened)]
    assert opened == ["faulty"] * 2
    assert sum(isinstance(body, SessionClosed) for body in told) >= len(opened)


def test_the_model_repairs_a_call_that_the_servers_schema_refuses(tmp_path: Path) -> None:
    said = tmp_path / "said"
    wrong = [("faulty.echo", {"text": 5})]
    with ScriptedLlmServer(answering(wrong, ECHO, DONE)) as llm:
        settings = LlmSettings(base_url=llm.base_url, model="scripted")
        with Runner(llm=settings, servers={"faulty": faulty("--record", str(said))}) as runner:
            outcome = runner.run_turn(TurnRequest(system="s", user="u"))
    assert [call.result.is_error for call in outcome.tool_calls] == [True, False]
    assert "$.text: 5 is not of type 'string'" in (outcome.tool_calls[0].result.error_message or "")
    assert said.read_text().count("tools/call") == 1
