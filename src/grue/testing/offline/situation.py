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
    """A turn of a game, as the host's message describes it."""

    game: str
    turn: int  # from 1
    location: str | None = None  # `None`: the message does not say; likewise `inventory`
    inventory: str | None = None
    recent: tuple[Played, ...] = ()  # the last commands played, oldest first
    known: frozenset[str] = frozenset()  # commands that, in the host's notes, lead elsewhere
    deadly: frozenset[str] = frozenset()  # commands that have killed the player here
    text: str = ""


class Standing(Struct, frozen=True, kw_only=True):
    """The state of a conversation with the host."""

    situation: Situation | None  # `None`: it is not about a game
    rounds: int = 0  # the model's replies since the message about the game
    settled: bool = False  # whether the host wants the answer, or a call has failed


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
    try:
        result = json.loads(text_of(message.content))
    except (ValueError, RecursionError):
        return False
    return isinstance(result, dict) and bool(result.get("error"))
