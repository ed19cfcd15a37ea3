"""A trace as a regression test: `replay("trace.jsonl")`."""

from os import PathLike
from pathlib import Path

from grue.tracing.reading import open_episode
from grue.tracing.replay import Changes, render
from grue.tracing.replay import replay as replay_turns


def replay(path: str | PathLike[str], changes: Changes | None = None) -> int:
    """Replay a trace. No model, server or tool runs.

    ```python
    from grue.testing import replay

    def test_that_the_stubborn_server_is_still_borne() -> None:
        replay("stubborn.jsonl")
    ```

    Args:
        path: A trace file or a run folder.
        changes: Changes to the recorded run, such as other limits; `None`: none.

    Returns:
        The number of turns.

    Raises:
        AssertionError: The agent no longer produces the recorded messages; the text shows the first
            divergence with its causes.
        TraceError: The file is missing, damaged, or not a trace.
    """
    changes = changes or Changes()
    turns = list(replay_turns(open_episode(Path(path)), changes))
    if any(turn.divergence is not None for turn in turns):
        raise AssertionError("\n".join((f"{path} does not replay:", *render(turns, changes))))
    return len(turns)
