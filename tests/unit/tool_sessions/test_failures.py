import pydantic
import pytest

from grue.errors import MCPError
from grue.messages import ServerFailure, ServerName
from grue.policies import ServerPhase
from grue.tool_sessions.failures import (
    INSTALL_NODE,
    ServerFailed,
    ToolTimedOutError,
    failure_text,
    first_fault,
    remedy_for,
)

FAILURE = ServerFailure(
    server=ServerName("thoughts"),
    phase="initialize",
    command="npx -y thoughts",
    cause="the server ended during initialize (exit status 3)",
    exit_status=3,
    stderr_tail="first\nlast",
    remedy="Check that Node.js is installed and the package is available.",
)


def test_r6_1_text_names_server_cause_command_last_words_and_remedy() -> None:
    assert failure_text(FAILURE).splitlines() == [
        "Failed to start MCP server 'thoughts': the server ended during initialize (exit status 3)",
        "Command: npx -y thoughts",
        "Its last lines on stderr:",
        "  first",
        "  last",
        "Check that Node.js is installed and the package is available.",
    ]
    assert str(ServerFailed(FAILURE)) == failure_text(FAILURE)


def test_a_failure_in_a_call_does_not_claim_that_the_start_failed() -> None:
    failure = ServerFailure(server=ServerName("s"), phase="call", command="c", cause="it broke")
    assert failure_text(failure).splitlines() == ["MCP server 's' failed in call: it broke", "Command: c"]


def test_a_server_by_url_is_reached_and_has_an_address() -> None:
    failure = ServerFailure(server=ServerName("s"), phase="initialize", command="https://h/mcp", cause="gone")
    assert failure_text(failure).splitlines() == [
        "Failed to reach MCP server 's': gone",
        "URL: https://h/mcp",
    ]


@pytest.mark.parametrize("command", ["node", "npx", "/usr/bin/npx"])
@pytest.mark.parametrize("phase", ["spawn", "initialize", "list"])
def test_r14_5_node_commands_get_the_words_of_the_requirement(command: str, phase: ServerPhase) -> None:
    words = "Check that Node.js is installed and the package is available."
    assert remedy_for(command, phase) == words
    assert remedy_for(command, phase, missing=True) == f"{words} Install Node.js: {INSTALL_NODE}"


def test_r14_1_a_missing_command_says_what_to_install() -> None:
    assert "astral.sh" in remedy_for("uvx", "spawn", missing=True)
    assert "Install foo" in remedy_for("foo", "spawn", missing=True)
    assert "Install foo" in remedy_for("/opt/foo", "spawn", missing=True)
    assert "begins at the server's `cwd`" in remedy_for("bin/foo", "spawn", missing=True)


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("./server.py", 'write "command": "python", "args": ["./server.py", ...]'),
        ("server.mjs", 'write "command": "node", "args": ["server.mjs", ...]'),
        ("python server.py", 'write "command": "python", "args": ["server.py", ...]'),
        ("node /srv/index.js", 'write "command": "node", "args": ["/srv/index.js", ...]'),
        ("https://mcp.example.com/mcp", 'write "url"; in code, HttpServer(url=...)'),
    ],
)
def test_a_missing_command_that_is_no_program_says_what_to_write(command: str, says: str) -> None:
    assert says in remedy_for(command, "spawn", missing=True)


def test_timed_out_start_mentions_the_time_limit_and_a_death_does_not() -> None:
    assert "timeout" in remedy_for("foo", "initialize", slow_place="the timeout")
    assert "timeout" not in remedy_for("foo", "initialize")
    assert remedy_for("foo", "call").startswith("Run the command in a terminal")
    assert remedy_for("foo", "call", wrote=True).startswith("Its last lines on stderr may say why")


def test_p25_a_timeout_is_both_ours_and_a_timeout_error() -> None:
    error = ToolTimedOutError("echo", 30.0)
    assert isinstance(error, TimeoutError)
    assert isinstance(error, MCPError)
    assert str(error) == "Tool call timed out after 30s"


def test_first_fault_is_one_line() -> None:
    class Answer(pydantic.BaseModel):
        version: str

    with pytest.raises(pydantic.ValidationError) as caught:
        Answer.model_validate({})
    assert first_fault(caught.value) == "version: Field required"
    assert first_fault(ValueError("one\ntwo")) == "one"
    assert first_fault(ValueError()) == "ValueError"


def test_an_error_of_the_host_with_errors_of_another_kind_has_its_text() -> None:
    class FormError(ValueError):
        def errors(self, field: str) -> dict[str, str]:
            return {}

    assert first_fault(FormError("two fields are wrong")) == "two fields are wrong"
