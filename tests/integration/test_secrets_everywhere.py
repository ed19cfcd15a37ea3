"""Every secret in every form, told by servers, models and endpoints: no output shows any of them.

One episode and a few commands are run, and everything that comes out of them is gone through.
"""

import base64
import json
import logging
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner
from written_secrets import PASSWORD, tells, written_out

from grue.cli.app import app
from grue.engine.runner import Runner, TurnRequest
from grue.errors import MCPError
from grue.runtime.trace.recorder import Recorder
from grue.testing.llm_server import LlmRequest, ScriptedLlmServer, error_reply, text_reply, tool_calls_reply
from grue.tool_sessions.server_specs import StdioServer
from grue.tracing.observers.events import LoggerObserver
from grue.tracing.observers.otel import OtelObserver
from grue.tracing.observers.run_folder import RunFolder
from grue.transports.llm.endpoint import LlmSettings

ENVIRONMENT = {"GRUE_API_KEY": "sk-live-0a1b2c3d4e5f6a7b", "TEAM_PASSWORD": PASSWORD}
OF_SERVER = {"DB_PASSWORD": "server/pass+word&0123"}
OF_MODEL = {"X-Api-Key": "header-key-9f8e7d6c5b4a"}
OF_URL = {"URL password": "url-pass?word~4321", "Basic password": "basic-pass:word-8765"}
ALL = {**ENVIRONMENT, **OF_SERVER, **OF_MODEL, **OF_URL}

TELLING_SERVER = str(Path(__file__).parents[1] / "support" / "telling_server.py")
TOLD_BY_SERVER = written_out({**ENVIRONMENT, **OF_SERVER})
TOLD_BY_MODEL = written_out({**ENVIRONMENT, **OF_SERVER, **OF_MODEL})
TOLD_BY_URL = written_out({**ENVIRONMENT, **OF_URL})


def told_by_model(request: LlmRequest) -> Any:
    """The model calls every tool with all it knows, and then says all of it."""
    if request.messages[-1]["role"] == "tool" or not request.tool_names:
        thinking = {"thinking": TOLD_BY_MODEL, "action": "north", "new_objective": TOLD_BY_MODEL[:900]}
        return text_reply(json.dumps(thinking), reasoning_content=TOLD_BY_MODEL)
    calls = ((name, {"text": TOLD_BY_MODEL, "authorization": TOLD_BY_MODEL}) for name in request.tool_names)
    return tool_calls_reply(*calls)


class TellingHandler(BaseHTTPRequestHandler):
    """Refuses everybody, with all it knows."""

    def do_POST(self) -> None:
        body = json.dumps({"error": TOLD_BY_URL}).encode()
        self.send_response(401)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.do_POST()

    def do_DELETE(self) -> None:
        self.do_POST()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def telling_url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), TellingHandler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"127.0.0.1:{server.server_port}/mcp"
    server.shutdown()
    server.server_close()
    thread.join()


class Records(logging.Handler):
    """Every record of every logger, as text."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{self.format(record)} {vars(record)}")


class Out:
    """What came out, by where it did."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.texts: dict[str, str] = {}

    def run(self, *args: str) -> None:
        """Run a command."""
        result = CliRunner().invoke(app, args)
        error = result.exception
        assert error is None or isinstance(error, SystemExit), traceback.format_exception(error)
        self.texts[" ".join(args)] = result.output

    def read(self, folder: Path) -> None:
        """Read every file."""
        for path in folder.rglob("*"):
            if path.is_file():
                self.texts[str(path.relative_to(self.folder))] = path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory, telling_url: str) -> Out:
    folder = tmp_path_factory.mktemp("everywhere")
    (folder / "known").write_text(TOLD_BY_SERVER, encoding="utf-8")
    out, records = Out(folder), Records()
    root, http_logger = logging.getLogger(), logging.getLogger("httpcore")
    level = root.level
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        root.addHandler(records)
        root.setLevel(logging.DEBUG)
        # Langfuse's import, which an earlier test may have done, turns it down.
        http_logger.setLevel(logging.NOTSET)
        try:
            write_project(folder, telling_url)
            run_commands(out, folder)
            run_turns(out, folder)
        finally:
            root.removeHandler(records)
            root.setLevel(level)
    out.texts["logging"] = "\n".join(records.lines)
    return out


def write_project(folder: Path, telling_url: str) -> None:
    """Write the settings of the commands: three servers, and a header for the model."""
    password, basic = (value.replace("?", "%3F") for value in OF_URL.values())
    credentials = base64.b64encode(f"me:{basic}".encode()).decode()
    program = [TELLING_SERVER, str(folder / "known")]
    servers = {
        "telling": {"command": sys.executable, "args": program, "env": OF_SERVER},
        "dying": {"command": sys.executable, "args": [*program, "--die"], "env": OF_SERVER},
        "far": {
            "url": f"http://me:{password}@{telling_url}?token={basic}",
            "headers": {"Authorization": f"Basic {credentials}"},
        },
    }
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": servers}), encoding="utf-8")
    (folder / "only.json").write_text(json.dumps({"mcpServers": {"telling": servers["telling"]}}))
    (folder / "pyproject.toml").write_text(
        f'[tool.zorkgpt.llm]\nextra_headers = {{"X-Api-Key" = "{OF_MODEL["X-Api-Key"]}"}}\n'
        "[tool.zorkgpt.retry]\nmax_retries = 0\n"
    )


def run_commands(out: Out, folder: Path) -> None:
    with ScriptedLlmServer(told_by_model) as llm:
        play = (
            "play",
            "--base-url",
            llm.base_url,
            "--model",
            "gpt-4o",
            "--turns",
            "1",
            "--mcp-config",
            "only.json",
        )
        out.run(*play, "--run-dir", "run", "--stream")
        out.run(*play, "--run-dir", "again", "--json")
    with ScriptedLlmServer(lambda _: error_reply(401, TOLD_BY_MODEL)) as llm:
        out.run(
            "play", "--base-url", llm.base_url, "--model", "m", "--turns", "1", "--no-mcp", "--run-dir", "no"
        )
    for shown in ("show", "show --json", "stats", "stats --json", "diagram", "diagram --mermaid", "html"):
        out.run("trace", *shown.split(), "run")
    out.run("trace", "diff", "run", "again", "--all")
    out.run("trace", "replay", "run")
    for options in ((), ("--json",)):
        out.run("tools", "--mcp-config", "mcp.json", *options)
        for tool in ("tell", "fail", "refuse"):
            out.run("call", f"telling.{tool}", "{}", "--mcp-config", "mcp.json", *options)
        out.run("call", "far.tell", "{}", "--mcp-config", "mcp.json", *options)
    out.run("doctor", "--mcp-config", "mcp.json")
    for run in ("run", "again", "no"):
        out.read(folder / run)


def run_turns(out: Out, folder: Path) -> None:
    """Run turns as a host does, watched by observers, and keep the text of what they raise."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    provider, exporter = TracerProvider(shutdown_on_exit=False), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    observer = OtelObserver(provider, session_id="s1", capture_content=True)
    program = (TELLING_SERVER, str(folder / "known"))
    telling = StdioServer(name="telling", command=sys.executable, args=program, env=OF_SERVER)
    dying = StdioServer(name="dying", command=sys.executable, args=(*program, "--die"), env=OF_SERVER)
    errors: list[str] = []

    def turn(script: Any, servers: Mapping[str, StdioServer], recorder: Recorder) -> None:
        with ScriptedLlmServer(script) as llm:
            key = ENVIRONMENT["GRUE_API_KEY"]
            settings = LlmSettings(base_url=llm.base_url, model="gpt-4o", api_key=key, extra_headers=OF_MODEL)
            with Runner(llm=settings, servers=servers, recorder=recorder) as runner:
                try:
                    runner.run_turn(TurnRequest(system=TOLD_BY_MODEL * 20, user="u", on_delta=lambda _: None))
                except MCPError as error:
                    errors.append(f"{error}\n{''.join(traceback.format_exception(error))}\n{vars(error)}")

    recorder = Recorder()
    recorder.add(observer)
    recorder.add(LoggerObserver(logging.getLogger("host")))
    with RunFolder(folder / "turns", recorder, episode_id="e") as run:
        turn(told_by_model, {"telling": telling}, recorder)
        turn(lambda _: error_reply(400, TOLD_BY_MODEL), {}, recorder)
        turn(told_by_model, {"dying": dying}, recorder)
        run.write_result({"text": TOLD_BY_MODEL})
    assert observer.close(5)
    assert len(errors) == 2
    out.texts["exceptions"] = "\n".join(errors)
    out.texts["spans"] = "\n".join(span.to_json() for span in exporter.get_finished_spans())
    provider.shutdown()
    out.read(folder / "turns")


@pytest.mark.slow
def test_no_output_shows_a_secret_in_any_form(out: Out) -> None:
    shown = {where: found for where, text in out.texts.items() if (found := tells(text, ALL))}
    assert not shown


@pytest.mark.parametrize(
    "where",
    [
        "run/trace.jsonl",
        "run/events.jsonl",
        "run/trace.html",
        "again/trace.jsonl",
        "no/trace.jsonl",
        "turns/trace.jsonl",
        "turns/episode.log",
        "turns/result.json",
        "trace show run",
        "trace show --json run",
        "trace diagram run",
        "tools --mcp-config mcp.json",
        "tools --mcp-config mcp.json --json",
        "call telling.tell {} --mcp-config mcp.json",
        "call telling.fail {} --mcp-config mcp.json --json",
        "call telling.refuse {} --mcp-config mcp.json",
        "call far.tell {} --mcp-config mcp.json",
        "doctor --mcp-config mcp.json",
        "exceptions",
        "spans",
        "logging",
    ],
)
@pytest.mark.slow
def test_what_was_told_of_a_secret_is_there_without_it(out: Out, where: str) -> None:
    assert "[redacted" in out.texts[where]


@pytest.mark.slow
def test_a_long_message_was_put_into_a_file_of_its_own(out: Out) -> None:
    assert any("payloads" in where for where in out.texts)
    assert "Using selector" in out.texts["logging"], "what libraries log for debugging is looked at too"
