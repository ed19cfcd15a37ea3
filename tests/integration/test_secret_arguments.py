"""Secrets among the arguments of a server's command: nothing that is told or recorded has them."""

import json
import sys
from typing import Any

import pytest

from grue.engine.outside_turns.tool_client import ToolClient
from grue.messages import ServerFailure
from grue.runtime.trace.recorder import Envelope, Recorder
from grue.tool_sessions.failures import failure_text
from grue.tool_sessions.server_specs import StdioServer

pytest.importorskip("mcp", reason="MCP servers need the extra: pip install 'grue[mcp]'")

PASSWORD, TOKEN = "hunter2-hunter2", "t0ken-of-the-service"
REPEATS = "import sys; print('cannot use', *sys.argv[1:], file=sys.stderr); sys.exit(3)"


def test_a_server_that_fails_and_repeats_its_arguments_shows_no_secret() -> None:
    args = ("-c", REPEATS, f"postgres://user:{PASSWORD}@host/db", "postgres://u:pw@host/db", "--token", TOKEN)
    recorder = Recorder()
    recorded: list[Any] = []

    def note(envelope: Envelope[Any], written: bytes) -> None:
        recorded.append((envelope.body, written))

    recorder.add(note)
    server = StdioServer(name="db", command=sys.executable, args=args)
    with ToolClient({"db": server}, recorder=recorder) as client:
        failure = client.connect()["db"]
    assert isinstance(failure, ServerFailure)
    told = failure_text(failure)
    assert "cannot use" in told
    assert json.dumps("user:[redacted")[1:-1] in told
    for text in (told, repr(server), repr(recorded)):
        assert PASSWORD not in text
        assert TOKEN not in text
        assert ":pw@" not in text
