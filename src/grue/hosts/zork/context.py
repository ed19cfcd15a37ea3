"""Build the text that the agent reads in each turn; pure."""

from collections.abc import Sequence

from msgspec import Struct

from grue.hosts.zork.games.game import Observation

RECENT = 6
"""How many past commands are shown, and are checked for a player who is stuck."""

_REPLY_CHARS = 160


class Move(Struct, frozen=True):
    """A command that was played, and its result.

    Attributes:
        location: Where it was played; `None` if unknown.
        gained: Points that it brought; `None` if the score is unknown.
    """

    command: str
    reply: str
    location: str | None
    gained: int | None


def context_text(
    game: str, turn: int, seen: Observation, moves: Sequence[Move], objectives: Sequence[str]
) -> str:
    """Return the user's text of a turn: location, inventory, score, recent moves, objectives, game text."""
    lines = [f"Game: {game}", f"Turn: {turn}"]
    if seen.location is not None:
        lines.append(f"Location: {seen.location}")
    if seen.inventory is not None:
        lines.append(f"Inventory: {', '.join(seen.inventory) or 'nothing'}")
    if seen.score is not None:
        most = f" of {seen.max_score}" if seen.max_score is not None else ""
        lines.append(f"Score: {seen.score}{most}")
    if objectives:
        lines += ["", "Objectives:", *(f"- {objective}" for objective in objectives)]
    if moves:
        lines += ["", "Recent actions and results:", *(_move_line(move) for move in moves[-RECENT:])]
    warning = stuck_warning(moves)
    if warning:
        lines += ["", warning]
    return "\n".join([*lines, "", "The game says:", seen.text.strip()])


def stuck_warning(moves: Sequence[Move]) -> str:
    """Return a warning for a player who is stuck; empty if the player is not.

    A player is stuck after the same command three times in a row, or after `RECENT` moves in one place that
    brought no points and at most half as many different replies.
    """
    last = [move.command for move in moves[-3:]]
    if len(last) == 3 and len(set(last)) == 1:
        return f"You have tried '{last[0]}' three times running. Do something else."
    recent = moves[-RECENT:]
    if len(recent) < RECENT or any(move.gained for move in recent):
        return ""
    places = {move.location for move in recent}
    replies = {move.reply for move in recent}
    if len(places) == 1 and len(replies) <= RECENT // 2:
        return "You are getting nowhere here. Try another exit, another thing, another verb."
    return ""


def _move_line(move: Move) -> str:
    reply = " ".join(move.reply.split())
    if len(reply) > _REPLY_CHARS:
        reply = f"{reply[:_REPLY_CHARS]}…"
    gained = f" ({move.gained:+d} points)" if move.gained else ""
    return f"> {move.command}{gained}: {reply}"
