"""Where a turn stands, by its state."""

import pytest
from turns import ACCEPTED, Walk, calls, closed, opened, returned, run, text

from grue.messages import Usage
from grue.protocol.turn.states import progress_of

OPEN = (run("a"), opened("a"))


@pytest.mark.parametrize(
    ("events", "doing"),
    [
        ((), "starting"),
        ((run("a"),), "starting a"),
        ((run("a", support_check="before"),), "asking whether the model takes tools"),
        (OPEN, "waiting for the model (request 1)"),
        ((*OPEN, calls("a.think")), "waiting for a.think"),
        ((*OPEN, text("north")), "checking the answer"),
        ((*OPEN, text("north"), ACCEPTED), "closing its sessions"),
        ((*OPEN, text("north"), ACCEPTED, closed("a")), "ending"),
    ],
)
def test_progress_says_what_a_turn_waits_for(events: tuple[object, ...], doing: str) -> None:
    assert progress_of(Walk(*events).state).doing == doing


def test_progress_counts_what_is_done() -> None:
    walk = Walk(*OPEN, calls("a.think", "a.look"), returned(1))
    seen = progress_of(walk.state)
    assert (seen.doing, seen.iterations, seen.requests, seen.tool_calls) == ("waiting for a.look", 1, 1, 1)
    assert seen.usage == Usage(input_tokens=3, output_tokens=2)
    walk.send(returned(2))
    seen = progress_of(walk.state)
    assert (seen.iterations, seen.requests, seen.tool_calls) == (1, 2, 2)
