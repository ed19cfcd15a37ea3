"""`grue play --resume` where the project's configuration has changed: refused, or told and recorded."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import bodies
from rows import first_of
from typer.testing import CliRunner, Result

from grue.cli.app import app
from grue.hosts.servers import think

pytest.importorskip("mcp", reason="MCP servers need the extra: pip install 'grue[mcp]'")


class Project:
    """A project in the working directory that an episode is begun in."""

    def __init__(self) -> None:
        self.server = {
            "command": sys.executable,
            "args": ["-I", think.__file__],
            "env": {"TOKEN": "t0p-s3cret-1234"},
        }
        self.name = "mind"
        self.mcp: dict[str, Any] = {"enabled": True}
        self.write()

    def write(self) -> None:
        Path("mcp_config.json").write_text(json.dumps({"mcpServers": {self.name: self.server}}))
        lines = [f"{key} = {json.dumps(value)}" for key, value in self.mcp.items()]
        Path("pyproject.toml").write_text("\n".join(["[tool.zorkgpt.mcp]", *lines]) + "\n")

    def off(self) -> None:
        self.mcp["enabled"] = False

    def renamed(self) -> None:
        self.name = "brain"

    def other_arguments(self) -> None:
        self.server["args"] = ["-I", "-S", think.__file__]

    def other_limits(self) -> None:
        self.mcp["max_tool_iterations"] = 3

    def locked(self) -> None:
        assert grue("tools", "--lock").exit_code == 0

    def strict(self) -> None:
        self.mcp["tool_lock"] = "off"


def grue(*args: object) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args])


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """One whose episode `run` has been played for two turns."""
    monkeypatch.chdir(tmp_path)
    made = Project()
    played = grue("play", "--offline", "--turns", "2", "--run-dir", "run", "-q")
    assert played.exit_code == 0, played.output
    return made


def changes() -> list[list[str]]:
    return [
        [each["what"] for each in body.get("changes", [])] for body in bodies(Path("run"), "EpisodeResumed")
    ]


@pytest.mark.slow
def test_what_has_not_changed_is_not_told(project: Project) -> None:
    resumed = grue("play", "--resume", "run", "--turns", "3", "-q")
    assert (resumed.exit_code, resumed.stderr, changes()) == (0, "", [[]])


@pytest.mark.parametrize(
    ("change", "was", "now"),
    [
        (Project.off, "the MCP server 'mind'", "no MCP"),
        (Project.renamed, "the MCP server 'mind'", "the MCP server 'brain'"),
    ],
)
@pytest.mark.slow
def test_another_server_or_none_is_refused_and_leaves_everything_as_it_was(
    project: Project, change: Callable[[Project], None], was: str, now: str
) -> None:
    before = {path.name: path.read_bytes() for path in Path("run").iterdir() if path.is_file()}
    change(project)
    project.write()
    refused = grue("play", "--resume", "run", "--turns", "3", "-q")
    assert refused.exit_code == 2
    assert f"begun with {was}, and now there is {now}." in " ".join(refused.stderr.split())
    assert {path.name: path.read_bytes() for path in Path("run").iterdir() if path.is_file()} == before


@pytest.mark.parametrize(
    ("change", "what", "says"),
    [
        (Project.other_arguments, "MCP server 'mind'", "(sha256 "),
        (Project.other_limits, "tool limits", "20 iterations, 30 s a call, 10 s to start -> 3 iterations, "),
        (Project.locked, "tool lock", "report, nothing is locked -> report, 1 tools (sha256 "),
        (Project.strict, "tool lock", "report, nothing is locked -> off, nothing is locked"),
    ],
)
@pytest.mark.parametrize("output", first_of(["--json", "-q", "--start=after_turn"]))
@pytest.mark.slow
def test_anything_else_is_told_and_recorded_once(
    project: Project, change: Callable[[Project], None], what: str, says: str, output: str
) -> None:
    change(project)
    project.write()
    told = grue("play", "--resume", "run", "--turns", "3", output)
    assert told.exit_code == 0, told.output
    assert changes() == [[what]]
    if output == "--json":
        (resumed,) = [line for line in map(json.loads, told.stdout.splitlines()) if line["type"] == "resumed"]
        assert [each["what"] for each in resumed["changes"]] == [what]
    else:
        words = " ".join(told.output.split())
        assert f"The {what} has changed since the episode was last played: " in words
        assert says in words
    assert f"The {what} has changed" in Path("run/episode.log").read_text()
    assert what in grue("trace", "show", "run", "--kind", "EpisodeResumed").stdout
    again = grue("play", "--resume", "run", "--turns", "4", "-q")
    assert (again.stderr, changes()) == ("", [[what], []])


@pytest.mark.slow
def test_no_secret_of_a_definition_is_told(project: Project) -> None:
    project.server["args"] = ["-X", "password=hunter2-hunter2", *project.server["args"]]
    project.write()
    assert "hunter2" not in grue("play", "--resume", "run", "--turns", "3", "-q").output
    assert "hunter2" not in Path("run/trace.jsonl").read_text()
    assert "t0p-s3cret" not in Path("run/trace.jsonl").read_text()


@pytest.mark.slow
def test_an_episode_begun_without_mcp_does_not_go_on_with_it(project: Project) -> None:
    project.off()
    project.write()
    assert grue("play", "--offline", "--turns", "1", "--run-dir", "plain", "-q").exit_code == 0
    project.mcp["enabled"] = True
    project.write()
    refused = grue("play", "--resume", "plain", "--turns", "2", "-q")
    assert refused.exit_code == 2
    assert "begun with no MCP, and now there is the MCP server 'mind'" in " ".join(refused.stderr.split())
