"""The ten mistakes that newcomers make most often: each error names the next command."""

import json
import re
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import command, environment, forked, grue

from grue.testing.llm_server import ScriptedLlmServer, error_reply

ROOT = Path(__file__).resolve().parents[2]
WITHOUT_MCP = """
import importlib.metadata as m
from pathlib import Path
real, glob = m.version, Path.glob
def version(name):
    if name == "mcp":
        raise m.PackageNotFoundError(name)
    return real(name)
m.version = version
Path.glob = lambda self, *how: (p for p in glob(self, *how) if not p.name.startswith("mcp-"))
"""


def told(folder: Path, *words: str, before: str = "", said: str = "", **environ: str) -> str:
    """What a command that fails says."""
    keys = {"GRUE_API_KEY": "", "OPENROUTER_API_KEY": ""}
    done = subprocess.run(
        command(*words, before=before) if before else forked("grue", *words),
        cwd=folder,
        env=environment(**{**keys, **environ}),
        input=said,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    text = done.stdout + done.stderr
    assert done.returncode, text
    assert "Traceback" not in text
    return " ".join(text.split())


def no_key(folder: Path) -> str:
    return told(folder, "chat", "--base-url", "https://openrouter.ai/api/v1", "--no-mcp")


def wrong_model(folder: Path) -> str:
    refusal = error_reply(404, "There is no model m.", code="model_not_found")
    with ScriptedLlmServer([refusal] * 4) as llm:
        return told(folder, "chat", "--base-url", llm.base_url, "--model", "m", "--no-mcp", said="Hello\n")


def no_server(folder: Path) -> str:
    (folder / "mcp_config.json").write_text('{"mcpServers": {"a": {"command": "true"}}}')
    return told(folder, "call", "files.read")


def no_node(folder: Path) -> str:
    servers = {"mcpServers": {"seq": {"command": "npx", "args": ["-y", "some-server"]}}}
    (folder / "mcp_config.json").write_text(json.dumps(servers))
    return told(folder, "tools", PATH="/nowhere")


def port_in_use(folder: Path) -> str:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return told(folder, "mock-server", "--http", str(taken.getsockname()[1]))


def wrong_folder(folder: Path) -> str:
    return told(folder, "trace", "show")


def old_python(_: Path) -> str:
    return (ROOT / "Makefile").read_text(encoding="utf-8")


def no_mcp(folder: Path) -> str:
    return told(folder, "tools", before=WITHOUT_MCP)


def of_another_host(folder: Path) -> str:
    (folder / "config.toml").write_text('[mcp_servers.files]\ncommand = "files"\n')
    return told(folder, "tools", "--mcp-config", "config.toml")


def dead_endpoint(folder: Path) -> str:
    url = "http://127.0.0.1:9/v1"
    return told(folder, "chat", "--base-url", url, "--model", "m", "--no-mcp", said="Hello\n")


NEXT: dict[Callable[[Path], str], str] = {
    no_key: r"set GRUE_API_KEY or OPENROUTER_API_KEY .* --offline",
    wrong_model: r"`grue doctor` names the models",
    no_server: r"There is no MCP server 'files'.* `grue add`",
    no_node: r"`apt-get install nodejs npm`",
    port_in_use: r"`grue mock-server --http 0`",
    wrong_folder: r"`grue play --offline` makes one",
    old_python: r"needs Python 3\.11 or later; name one with: make PYTHON=",
    no_mcp: r"pip install 'mcp>=2\.3,<3'",
    of_another_host: r"`grue init --from config\.toml`",
    dead_endpoint: r"`grue doctor` checks it",
}


@pytest.mark.parametrize("mistake", NEXT, ids=lambda mistake: mistake.__name__)
@pytest.mark.slow
def test_the_error_names_the_next_command(mistake: Callable[[Path], str], tmp_path: Path) -> None:
    said = mistake(tmp_path)
    assert re.search(NEXT[mistake], said), said


@pytest.mark.slow
def test_the_command_after_a_dead_endpoint_says_how_to_check_it_and_then_does(tmp_path: Path) -> None:
    assert "`grue doctor` checks it" in dead_endpoint(tmp_path)
    assert "grue doctor --base-url URL --model NAME checks one" in grue("doctor", cwd=tmp_path).stdout
    asked = grue("doctor", "--base-url", "http://127.0.0.1:9/v1", "--model", "m", cwd=tmp_path)
    assert asked.returncode == 1
    assert "http://127.0.0.1:9/v1 cannot be reached" in asked.stdout
