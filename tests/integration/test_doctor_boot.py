"""`grue doctor` on servers that npx and uvx start: what the start consists of, and what would be faster."""

import json
import os
import re
import shlex
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace
from real_servers import installed
from typer.testing import CliRunner

from grue import StdioServer, TurnLimits
from grue.cli import doctor as doctor_command
from grue.cli.app import app
from grue.hosts.servers import think
from grue.messages import SessionOpened
from grue.sandbox.box import Sandbox

pytest.importorskip("mcp", reason="MCP servers need the extra: pip install 'grue[mcp]'")

PARTS = r"its start: {launcher} [\d.]+ s, download [\d.]+ s(, \w+ [\d.]+ s)?, program and handshake [\d.]+ s"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without any tools but those that a test makes, which come first on the PATH."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    for name in ("npm_config_cache", "UV_TOOL_DIR", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def server_at(path: Path) -> Path:
    """The bundled server as a program of its own."""
    source = path.with_suffix(".py")
    script(source, Path(think.__file__).read_text())
    return launcher(path, sys.executable, source)


def launcher(path: Path, *program: str | Path) -> Path:
    """A launcher that starts the program. Its first line has no path: there, none may hold a space."""
    return script(path, f"#!/bin/sh\nexec {shlex.join(map(str, program))}\n")


@pytest.fixture
def quick_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a program that starts without npx and uvx count as started at once, however busy the machine is."""

    def quickly(server: StdioServer, limits: TurnLimits) -> SessionOpened | None:
        opened = started(server, limits)
        is_launcher = Path(server.command).name in ("npx", "uvx")
        return opened if opened is None or is_launcher else replace(opened, elapsed_s=0.0)

    started = doctor_command._started
    monkeypatch.setattr(doctor_command, "_started", quickly)


def installed_package(project: Path) -> Path:
    """The package `thinker` with a program of its own, which npx starts too. Return the program's path."""
    modules = project / "node_modules"
    own = server_at(modules / ".bin" / "thinker")
    (modules / "thinker").mkdir()
    (modules / "thinker" / "package.json").write_text('{"version": "1.2.3", "bin": "x.js"}')
    launcher(project / "bin" / "npx", own)
    return own


def doctor(project: Path, command: str, *args: str, names: tuple[str, ...] = ("mind",)) -> str:
    servers = {"mcpServers": {name: {"command": command, "args": args} for name in names}}
    (project / "mcp_config.json").write_text(json.dumps(servers))
    told = CliRunner().invoke(app, ["doctor", "--no-network", "--mcp-config", "mcp_config.json"])
    return told.output


@pytest.mark.usefixtures("quick_programs")
def test_npx_is_measured_and_the_packages_own_program_is_named(project: Path) -> None:
    own = installed_package(project)
    told = doctor(project, "npx", "-y", "thinker")
    assert re.search(PARTS.format(launcher="npx"), told), told
    assert f'"command": "{own}", "args": []' in told
    assert "It stays at version 1.2.3." in told


@pytest.mark.slow
def test_servers_that_start_at_the_same_time_are_measured_alone_too(project: Path) -> None:
    installed_package(project)
    told = doctor(project, "npx", "-y", "thinker", names=("mind", "body"))
    assert len(re.findall(r"its start: npx [\d.]+ s, the other servers [\d.]+ s, ", told)) == 2, told


@pytest.mark.slow
def test_a_start_that_is_not_faster_is_not_named(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = server_at(project / ".local" / "share" / "uv" / "tools" / "thinker" / "bin" / "thinker")
    launcher(project / "bin" / "uvx", own)

    def slowly(server: StdioServer, limits: TurnLimits) -> SessionOpened:
        opened = started(server, limits)
        assert opened is not None
        return replace(opened, elapsed_s=600.0)

    started = doctor_command._started
    monkeypatch.setattr(doctor_command, "_started", slowly)
    told = doctor(project, "uvx", "thinker")
    assert re.search(PARTS.format(launcher="uvx"), told), told
    assert "faster" not in told


def test_nothing_is_named_if_the_program_is_not_found(project: Path) -> None:
    launcher(project / "bin" / "npx", server_at(project / "elsewhere"))
    told = doctor(project, "npx", "-y", "thinker")
    assert re.search(r"its start: download [\d.]+ s, npx and the server [\d.]+ s", told), told
    assert "faster" not in told


@pytest.mark.usefixtures("quick_programs")
@pytest.mark.slow
def test_uvx_is_measured_and_the_tools_own_program_is_named(project: Path) -> None:
    own = server_at(project / ".local" / "share" / "uv" / "tools" / "thinker" / "bin" / "thinker")
    launcher(project / "bin" / "uvx", own)
    told = doctor(project, "uvx", "thinker")
    assert re.search(PARTS.format(launcher="uvx"), told), told
    assert f'"command": "{own}", "args": []' in told


@pytest.mark.usefixtures("quick_programs")
@pytest.mark.slow
def test_uv_offline_is_named_only_if_it_starts(project: Path) -> None:
    own = server_at(project / "elsewhere")
    launcher(project / "bin" / "uvx", own)
    uv = script(project / "bin" / "uv", "#!/bin/sh\nexit 1\n")
    assert "faster" not in doctor(project, "uvx", "thinker")
    script(uv, f"#!/bin/sh\nexec {shlex.quote(str(own))}\n")
    assert f'"command": "{uv}", "args": ["tool", "run", "--offline", "thinker"]' in doctor(
        project, "uvx", "thinker"
    )


def test_the_interpreter_that_a_server_with_a_sandbox_names_is_not_run_outside_of_it(project: Path) -> None:
    evil = script(project / "packages" / "python3", f"#!/bin/sh\ntouch {project / 'stolen'}\n")
    own = script(project / "packages" / "thinker", f"#!{evil}\n")
    assert doctor_command._interpreter_s(StdioServer(str(own), name="it", sandbox=Sandbox())) is None
    assert not (project / "stolen").exists()
    assert doctor_command._interpreter_s(StdioServer(str(own), name="it")) is not None


@pytest.mark.slow
def test_a_real_package(project: Path) -> None:
    package = "@modelcontextprotocol/server-sequential-thinking"
    modules = installed("GRUE_NPM_SERVERS", package)
    (project / "node_modules").symlink_to(modules)
    told = doctor(project, "npx", "-y", package)
    assert re.search(r"its start: .*program and handshake [\d.]+ s", told), told
    assert "faster without npx" in told
    assert str(project / "node_modules" / ".bin" / "mcp-server-sequential-thinking") in told
