"""A run folder that is taken away while an episode is played: noticed in that turn, and said."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from grue.cli.app import app
from grue.testing.llm_server import LlmReply, LlmRequest, ScriptedLlmServer, text_reply

ANSWER = json.dumps({"thinking": "why not", "action": "look", "new_objective": None})


def deleted(folder: Path) -> None:
    shutil.rmtree(folder)


def moved(folder: Path) -> None:
    folder.rename("elsewhere")


def put_anew(folder: Path) -> None:
    shutil.copytree(folder, "copy")
    shutil.rmtree(folder)
    Path("copy").rename(folder)


def trace_deleted(folder: Path) -> None:
    (folder / "trace.jsonl").unlink()


@pytest.mark.parametrize("output", ["-q", "--json", "--turn-timeout=60"])
@pytest.mark.parametrize(
    ("lose", "words"),
    [
        (deleted, "The trace file run/trace.jsonl was deleted while it was being written."),
        (put_anew, "The trace file run/trace.jsonl was deleted while it was being written."),
        (trace_deleted, "The trace file run/trace.jsonl was deleted while it was being written."),
        (moved, "The run folder run was moved or deleted while it was being written."),
    ],
)
def test_it_ends_the_episode_in_the_turn_in_which_it_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lose: Callable[[Path], None], words: str, output: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GRUE_API_KEY", "a-key-of-no-use")

    def script(_request: LlmRequest) -> LlmReply:
        if len(server.requests) == 2:
            lose(Path("run"))
        return text_reply(ANSWER)

    with ScriptedLlmServer(script) as server:
        args = ["play", "--base-url", server.base_url, "--run-dir", "run", "--turns", "6", "--no-mcp", output]
        told = CliRunner().invoke(app, args)
    assert isinstance(told.exception, SystemExit)
    assert told.exit_code == 1
    assert " ".join(told.stderr.split()) == f"grue: {words}"
    assert len(server.requests) == 2, "no further turn is paid for"
