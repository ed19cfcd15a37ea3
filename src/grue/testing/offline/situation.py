"""Read the state of the game from the text of a request, the only place where the offline model sees it."""

import json
import re
from typing import Final

from msgspec import Struct

from grue.testing.offline.chat_request import ChatMessage, ChatRequest, text_of

_HEAD: Final = re.compile(r"^Game: (?P<game>.+)\nTurn: (?P<turn>\d{1,9})$", re.MULTILINE)
_LOCATION: Final = re.compile(r"^Location: (.+)$", re.MULTILINE)
_INVENTORY: Final = re.compile(r"^Inventory: (.+)$", re.MULTILINE)
_RECENT: Final = re.compile(r"^Recent actions and results:\n((?:> .*\n)+)", re.MULTILINE)
_MOVE: Final = re.compile(r"^> (.+?)(?: \([+-]\d+ points\))?:(?: (.*))?$", re.MULTILINE)
_LEADS: Final = re.compile(r"^- '(.+)' leads to .+$", re.MULTILINE)
_KILLED: Final = re.compile(r"^- '(.+)' killed you here$", re.MULTILINE)
_SAID: Final = "\nThe game says:\n"
_REMEMBERED: Final = "\n\nWhat you remember of this place:\n"


class Played(Struct, frozen=True):
    """A command that was played, and the beginning of the game's reply."""

    command: str
    reply: str = ""


class Situation(Struct, frozen=True, kw_only=True):
    """A turn of a game, as the host's message describes it.

    Attributes:
        turn: Number of the turn, from 1.
        location: Name of the place; `None` if the message does not say.
        inventory: What the player carries, in the host's words; `None` if the message does not say.
        recent: The last commands played, oldest first.
        known: Commands that, according to the host's notes, lead to another place.
        deadly: Commands that, according to the host's notes, have killed the player in this place.
    """

    game: str
    turn: int
    location: str | None = None
    inventory: str | None = None
    recent: tuple[Played, ...] = ()
    known: frozenset[str] = frozenset()
    deadly: frozenset[str] = frozenset()
    text: str = ""


class Standing(Struct, frozen=True, kw_only=True):
    """The state of a conversation with the host.

    Attributes:
        situation: What the host last told about the game; `None` if the conversation is not about a game.
        rounds: Number of the model's replies since the message that describes the game.
        settled: Whether thinking is over, because the host has asked for the answer or a call has failed.
    """

    situation: Situation | None
    rounds: int = 0
    settled: bool = False


def read_standing(request: ChatRequest) -> Standing:
    """Return the state of a conversation: the Zork host's last message about a turn, and what followed it."""
    for index, message in reversed(list(enumerate(request.messages))):
        situation = read_situation(text_of(message.content)) if message.role == "user" else None
        if situation is not None:
            since = request.messages[index + 1 :]
            return Standing(
                situation=situation,
                rounds=sum(later.role == "assistant" for later in since),
                settled=any(
                    later.role == "user" or (later.role == "tool" and _failed(later)) for later in since
                ),
            )
    return Standing(situation=None)


def read_situation(text: str) -> Situation | None:
    """Parse the message that the Zork host sends for a turn; `None`: the text is not such a message."""
    head = _HEAD.search(text)
    if head is None:
        return None
    told, _, notes = text[head.start() :].partition(_REMEMBERED)
    facts, _, said = told.partition(_SAID)
    recent = _RECENT.search(facts)
    return Situation(
        game=head["game"].strip(),
        turn=int(head["turn"]),
        location=_first(_LOCATION, facts),
        inventory=_first(_INVENTORY, facts),
        recent=tuple(Played(*found) for found in _MOVE.findall(recent[1])) if recent else (),
        known=frozenset(_LEADS.findall(notes)),
        deadly=frozenset(_KILLED.findall(notes)),
        text=said.strip(),
    )


def _first(pattern: re.Pattern[str], text: str) -> str | None:
    found = pattern.search(text)
    return found[1] if found else None


def _failed(message: ChatMessage) -> bool:
    """Return whether the tool's call failed, timed out or was skipped.

    Source: R11.3
    """
    try:
        result = json.loads(text_of(message.content))
    except (ValueError, RecursionError):
        return False
    return isinstance(result, dict) and bool(result.get("error"))
