"""Escape sequences in the names of a user's files, and in what is typed, do not reach the terminal."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from grue.cli.app import app

NASTY = "x\x1b[31m\x1b]0;title\x07\x9b2J\u202egnp\u2028y\x7f"
"""A colour, a window's title, a cursor movement by one character, a change of direction, a line separator."""


@pytest.fixture
def grue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run a command in a folder with such a name."""
    (tmp_path / NASTY).mkdir()
    monkeypatch.chdir(tmp_path / NASTY)
    return lambda *args: CliRunner().invoke(app, args)


def assert_printable(result: Result) -> None:
    assert result.output, "it says something"
    assert {char for char in result.output if not char.isprintable()} <= {"\n"}


COMMANDS = [
    ("trace", "show", NASTY),
    ("trace", "stats", NASTY),
    ("trace", "diagram", NASTY),
    ("trace", "html", NASTY),
    ("trace", "diff", NASTY, NASTY),
    ("trace", "replay", NASTY),
    ("trace", "show", "--turn", NASTY, "x"),
    ("trace", NASTY),
    ("tools", "--mcp-config", NASTY),
    ("tools", NASTY),
    ("call", NASTY),
    ("call", f"mind.{NASTY}"),
    ("call", "mind.think", NASTY),
    ("call", "mind.think", "--arg", NASTY),
    ("call", "mind.think", "--timeout", NASTY),
    ("doctor", "--no-network", "--mcp-config", NASTY),
    ("play", "--game", NASTY, "--offline"),
    ("play", "--game", f"{NASTY}.z5", "--offline"),
    ("play", "--resume", NASTY),
    ("play", "--base-url", NASTY),
    ("play", "--turns", NASTY),
    (f"--{NASTY}",),
    (NASTY,),
]


@pytest.mark.parametrize("args", COMMANDS, ids=lambda args: " ".join(args).replace(NASTY, "NASTY"))
def test_no_command_prints_an_escape_sequence_that_was_typed(
    grue: Callable[..., Result], args: tuple[str, ...]
) -> None:
    assert_printable(grue(*args))


@pytest.mark.parametrize("written", ["", "{", "[]", '{"mcpServers": {"a": {"command": "\\u001b[31mno"}}}'])
def test_no_command_prints_an_escape_sequence_of_a_files_name_or_text(
    grue: Callable[..., Result], written: str
) -> None:
    for name in (f"{NASTY}.json", "pyproject.toml"):
        Path(name).write_text(written)
        for args in (("tools", "--mcp-config", name), ("doctor", "--no-network", "--mcp-config", name)):
            assert_printable(grue(*args))


@pytest.mark.slow
def test_what_a_run_is_called_is_printable_in_every_command(grue: Callable[..., Result]) -> None:
    run = f"run-{NASTY}"
    assert_printable(grue("play", "--offline", "--turns", "1", "--no-mcp", "--run-dir", run))
    for args in (("show",), ("stats",), ("stats", "--json"), ("diagram",), ("html",), ("replay",)):
        assert_printable(grue("trace", *args, run))
    shutil.copytree(run, "other")
    assert_printable(grue("trace", "diff", run, "other", "--all"))
    assert_printable(grue("play", "--offline", "--run-dir", run))


@pytest.mark.slow
def test_a_server_in_a_folder_with_such_a_name_is_told_of_in_printable_words(
    grue: Callable[..., Result],
) -> None:
    script = Path(f"{NASTY}.py")
    script.write_text("import sys; sys.exit('\\x1b[31mno licence')")
    servers = {NASTY: {"command": "python3", "args": [str(script.absolute())], "cwd": str(Path.cwd())}}
    Path("mcp.json").write_text(json.dumps({"mcpServers": servers}))
    plain = {"plain": servers[NASTY]}
    Path("plain.json").write_text(json.dumps({"mcpServers": plain}))
    for file in ("mcp.json", "plain.json"):
        for args in (("tools",), ("tools", "--json"), ("tools", "--lock"), ("doctor", "--no-network")):
            assert_printable(grue(*args, "--mcp-config", file))
    assert_printable(grue("call", "plain.tool", "--mcp-config", "plain.json"))
