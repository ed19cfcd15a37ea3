"""A signal handler that calls grue in the middle of a turn: it is refused at once, and the turn goes on."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from transport_servers import faulty
from worded_turns import worded_model

PROGRAM = Path(__file__).parent.parent / "support" / "reentrant_turn.py"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with worded_model() as model:
        yield model.server.base_url


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "keep", "where"),
    [
        ("same", "nothing", "mcp.types"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("handle", "nothing", "mcp"),
                ("map", "nothing", "mcp"),
                ("client", "nothing", "mcp.shared.exceptions"),
                ("other", "nothing", "0.3"),
            )
        ),
        ("same", "loop", "0.3"),
    ],
)
def test_a_signal_handler_that_begins_a_turn_in_a_turn_is_refused(
    url: str, way: str, keep: str, where: str
) -> None:
    server = faulty()
    command = [sys.executable, str(PROGRAM), url, way, keep, where, server.command, *server.args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    *struck, turn, over = done.stdout.splitlines()
    assert (turn, over) == ("turn: done", "over")
    # A fast machine may be through before the time is.
    assert struck or where == "0.3"
    assert all(said.startswith("handler: MCPError grue was called by a signal handler") for said in struck)
