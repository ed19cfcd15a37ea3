"""What servers show of themselves, in a repr and in rich's tracebacks, and of what they wrote."""

import io
from pathlib import Path

import anyio
import pytest
from rich.console import Console
from rich.pretty import pretty_repr
from rich.traceback import Traceback
from written_secrets import FORMS, KEY, PASSWORD, SECRETS, tells

from grue.runtime.processes.child_process import ServerProcess
from grue.runtime.processes.limits import ProcessLimits
from grue.runtime.processes.process_group import ProcessRegistry
from grue.tool_sessions.redaction import Redactor
from grue.tool_sessions.server_specs import HttpServer, StdioServer
from grue.transports.llm.endpoint import LlmSettings

SHOWN = [
    StdioServer(
        name="files", command="npx", args=("files", "--api-key", KEY), env={"A_TOKEN": KEY, "LANG": KEY}
    ),
    HttpServer(
        name="far", url=f"https://me:{KEY}@host/mcp?token={KEY}", headers={"Authorization": f"Bearer {KEY}"}
    ),
    LlmSettings(model="m", api_key=KEY, extra_headers={"X-Key": KEY}, extra_body={"api_key": KEY}),
]


@pytest.mark.parametrize("server", SHOWN, ids=lambda shown: type(shown).__name__)
def test_neither_repr_nor_rich_shows_a_secret(server: object) -> None:
    for shown in (repr(server), str(server), f"{server}", pretty_repr(server), pretty_repr({"a": [server]})):
        assert not tells(shown)
        assert type(server).__name__ in shown


@pytest.mark.parametrize("server", SHOWN, ids=lambda shown: type(shown).__name__)
def test_a_traceback_with_locals_shows_no_secret(server: object) -> None:
    def fail(local: object) -> None:
        raise ValueError("in the middle")

    out = io.StringIO()
    with pytest.raises(ValueError, match="middle") as caught:
        fail(server)
    Console(file=out, width=200).print(
        Traceback.from_exception(caught.type, caught.value, caught.tb.tb_next, show_locals=True)
    )
    assert type(server).__name__ in out.getvalue()
    assert not tells(out.getvalue())


def test_credentials_of_a_url_and_of_a_basic_header_are_known() -> None:
    server = HttpServer(
        name="far",
        url="https://me:pass%3Fword1@host/mcp",
        headers={"Authorization": "Basic dTp0b3Atc2VjcmV0LTE="},
    )
    redactor = Redactor(server.named_values())
    for told in (
        "pass?word1",
        "pass%3Fword1",
        "bWU6cGFzcz93b3JkMQ==",
        "dTp0b3Atc2VjcmV0LTE=",
        "top-secret-1",
    ):
        assert "[redacted:" in redactor.text(f"refused: {told}"), told


def test_a_password_in_a_url_of_the_environment_is_known_whatever_its_name() -> None:
    redactor = Redactor(
        {"DATABASE_URL": "postgres://me:pass-word-1@host/db", "HTTPS_PROXY": "http://me:x@host"}
    )
    assert redactor.text("for pass-word-1 and x") == "for [redacted:DATABASE_URL password] and x"


def stderr_tail(tmp_path: Path, said: str, limit: int) -> str:
    """What is told of what a server has written to standard error."""
    (tmp_path / "said").write_text(said)
    server = StdioServer(name="s", command="sh", args=("-c", f"cat {tmp_path / 'said'} >&2"))

    async def run() -> str:
        limits = ProcessLimits(stderr_tail_bytes=limit)
        async with ServerProcess(server, ProcessRegistry(), limits) as process:
            await process.wait_exit()
        return process.stderr_tail(Redactor({"A_KEY": KEY, "A_PASSWORD": PASSWORD}).text)

    return anyio.run(run)


@pytest.mark.parametrize("end", range(0, 40, 3))
def test_a_tail_that_begins_within_a_secret_tells_nothing_of_it(tmp_path: Path, end: int) -> None:
    for between in ("\n", " "):
        said = f"{'x' * 900}{between}{KEY} {'y' * (100 - end)}"
        told = stderr_tail(tmp_path, said, 120)
        assert not tells(told)
        assert not any(KEY[start:] in told for start in range(len(KEY) - 6))
        assert told.endswith("yyy")


def test_what_was_dropped_does_not_leave_the_end_of_a_secret(tmp_path: Path) -> None:
    told = stderr_tail(tmp_path, f"{'x' * 5000}{KEY * 30}", 300)
    assert not any(KEY[start:] in told.replace("[redacted:A_KEY]", "") for start in range(len(KEY) - 6))


@pytest.mark.parametrize("form", FORMS)
def test_last_words_tell_a_secret_in_no_form(form: str, tmp_path: Path) -> None:
    said = "".join(f"login failed: {FORMS[form](secret)}\n" for secret in SECRETS.values())
    told = stderr_tail(tmp_path, said, 4000)
    assert told.count("[redacted:") == 2
    assert not tells(told)
