"""Every command that reads a file of ours, on files that are damaged in any way: a sentence and a status."""

import functools
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from damaged_files import Damage, damage
from example_counts import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rows import first_of
from typer.testing import CliRunner, Result

from grue.cli.app import app
from grue.hosts.servers import think
from grue.runtime.trace.file import TraceOptions
from grue.tracing.observers import run_folder

pytest.importorskip("mcp", reason="MCP servers need the extra: pip install 'grue[mcp]'")
pytestmark = pytest.mark.made_up_trace

Run = Callable[..., Result]

PROJECT = """
[tool.zorkgpt.mcp]
enabled = true
tool_call_timeout_seconds = 9.5
tool_lock = "report"
[tool.zorkgpt.llm]
client_base_url = "http://127.0.0.1:9/v1"
[tool.zorkgpt.budget]
episode_requests = 1000
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with its servers, its tool lock, and `run`: an episode with tool calls and payload files."""
    folder = tmp_path_factory.mktemp("project")
    server = {"command": sys.executable, "args": ["-I", think.__file__], "env": {"A": "b"}}
    (folder / "mcp_config.json").write_text(json.dumps({"mcpServers": {"mind": server}}))
    (folder / "pyproject.toml").write_text(PROJECT)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        options = functools.partial(TraceOptions, max_payload_bytes=1500)
        patch.setattr(run_folder, "TraceOptions", options)
        assert grue("tools", "--lock").exit_code == 0
        assert grue("play", "--offline", "--turns", "14", "--run-dir", "run", "-q").exit_code == 0
    assert list((folder / "run" / "payloads").iterdir())
    return folder


@pytest.fixture
def again(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Path]:
    """Makes a fresh copy of the project the working directory."""
    copy = tmp_path / "copy"

    def make() -> Path:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(project, copy)
        monkeypatch.chdir(copy)
        return copy

    return make


def grue(*args: object) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args])


def is_told(result: Result, *args: object) -> None:
    """Fail unless a command ended with a status of ours, and a sentence where that is a failure."""
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise AssertionError(f"grue {args}") from result.exception
    assert result.exit_code in (0, 1, 2), args
    assert "Traceback" not in result.output


READERS = [
    ("trace", "show", "run"),
    ("trace", "show", "run", "--json"),
    ("trace", "stats", "run"),
    ("trace", "stats", "run", "--json"),
    ("trace", "diagram", "run"),
    ("trace", "diagram", "run", "--mermaid"),
    ("trace", "html", "run"),
    ("trace", "replay", "run"),
    ("trace", "replay", "run", "--set", "after_timeout=force"),
    ("trace", "diff", "run", "whole"),
    ("trace", "diff", "--all", "whole", "run"),
]

TIMES = int(os.environ.get("GRUE_FUZZ", "1"))
"""How many times as many examples as usual are tried."""


def fuzzed(count: int) -> settings:
    return settings(
        max_examples=examples(count * TIMES), suppress_health_check=[HealthCheck.function_scoped_fixture]
    )


@pytest.mark.slow
@fuzzed(25)
@given(st.lists(damage(), min_size=1, max_size=3))
def test_every_reader_of_a_damaged_trace_says_so(again: Callable[[], Path], harm: list[Damage]) -> None:
    folder = again()
    trace = folder / "run" / "trace.jsonl"
    shutil.copytree(folder / "run", folder / "whole")
    trace.write_bytes(functools.reduce(lambda content, harmed: harmed(content), harm, trace.read_bytes()))
    for args in READERS:
        is_told(grue(*args), *args)


@pytest.mark.slow
@fuzzed(8)
@given(damage(), st.floats(0, 1, exclude_max=True))
def test_every_reader_of_a_trace_with_a_damaged_payload_says_so(
    again: Callable[[], Path], harm: Damage, which: float
) -> None:
    folder = again()
    shutil.copytree(folder / "run", folder / "whole")
    payloads = sorted((folder / "run" / "payloads").iterdir())
    payload = payloads[int(which * len(payloads))]
    payload.write_bytes(harm(payload.read_bytes()))
    for args in READERS:
        is_told(grue(*args), *args)


@pytest.mark.slow
@fuzzed(15)
@given(
    st.sampled_from(["trace.jsonl", "events.jsonl", "episode.log", "result.json"]), damage(), st.booleans()
)
def test_a_damaged_run_folder_is_resumed_or_refused(
    again: Callable[[], Path], name: str, harm: Damage, more: bool
) -> None:
    file = again() / "run" / name
    file.write_bytes(harm(file.read_bytes()))
    args = ("play", "--resume", "run", "-q", "--turns", "15" if more else "14")
    is_told(grue(*args), *args)


@pytest.mark.slow
@fuzzed(6)
@given(st.sampled_from(["pyproject.toml", "mcp_config.json", "mcp_tools.lock"]), damage())
def test_a_damaged_configuration_is_used_or_refused(
    again: Callable[[], Path], name: str, harm: Damage
) -> None:
    file = again() / name
    file.write_bytes(harm(file.read_bytes()))
    for args in (("tools",), ("play", "--offline", "--turns", "1", "-q"), ("play", "--resume", "run", "-q")):
        is_told(grue(*args), *args)


def folder(path: Path) -> None:
    path.mkdir()


def nothing(path: Path) -> None:
    path.unlink(missing_ok=True)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def pipe(path: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize("made", [folder, nothing, empty, endless, pipe])
@pytest.mark.parametrize(
    "name",
    first_of(
        ["trace.jsonl", "result.json", "events.jsonl", "episode.log", "payloads", "../mcp_tools.lock"], keep=2
    ),
)
@pytest.mark.slow
def test_whatever_stands_in_a_files_place_nobody_hangs(
    again: Callable[[], Path], name: str, made: Callable[[Path], None]
) -> None:
    place = again() / "run" / name
    shutil.rmtree(place) if place.is_dir() else place.unlink()
    made(place)
    reads_it = name in ("trace.jsonl", "payloads")
    commands = [args for args in READERS[:8:2] if reads_it]
    for args in [*commands, ("play", "--resume", "run", "-q", "--turns", "14")]:
        is_told(grue(*args), *args)
