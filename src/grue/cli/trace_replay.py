"""`grue trace replay`: compute the agent's decisions again from a trace, and print the differences."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from grue.cli.saying import say
from grue.errors import MCPConfigError
from grue.tracing.changes import Changes, parted
from grue.tracing.reading import open_episode
from grue.tracing.replay import TurnReplay, render
from grue.tracing.replay import replay as replay_turns


def replay(file: Path, changes: Changes, turn: int | None = None) -> bool:
    """Replay one turn or all, and print the result; return whether all decisions are as recorded."""
    turns: list[TurnReplay] = list(replay_turns(open_episode(file), changes, turn=turn))
    if turn is not None and not turns:
        raise MCPConfigError(f"{file} has no turn {turn}.")
    for line in render(turns, changes):
        say(line)
    return all(replayed.divergence is None for replayed in turns)


def changes_from(
    settings: Sequence[str] = (),
    *,
    max_iterations: int | None = None,
    after_timeout: str | None = None,
    system: Path | None = None,
) -> Changes:
    """Return the changes for a replay: `settings` (`KEY=VALUE`, `budget.KEY=VALUE`), and the others."""
    given = (setting.partition("=") for setting in settings)
    values = {key.strip(): value_of(value) for key, _, value in given}
    named = {"max_tool_iterations": max_iterations, "after_timeout": after_timeout}
    values |= {key: value for key, value in named.items() if value is not None}
    try:
        policy, limits = parted(values)
        return Changes(policy=policy, limits=limits, system=None if system is None else text_of(system))
    except ValueError as error:
        raise MCPConfigError(f"The replay cannot use these changes: {error}.") from error


def value_of(text: str) -> object:
    """Parse the value of a setting as JSON; return a text that is not JSON as it is, without outer spaces."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return text.strip()


def text_of(path: Path) -> str:
    """Return the text of a file; raise `MCPConfigError` if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise MCPConfigError(f"Cannot read {path}: {reason}.", path=str(path)) from error
