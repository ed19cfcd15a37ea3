"""Find the room, the score and the end of the game in a story's text, by patterns that many games share."""

import re
from typing import Final

from grue.hosts.zork.games.game import Observation

WIDTH: Final = 255
"""Columns of the interpreter's screen. A story's header has one byte for this number, so 255 is the most."""

_STATUS_LINE: Final = re.compile(
    r"^ ?(?P<room>\S.*?)(?<! ) {3,}"
    r"(?:Score: *)?(?P<score>-?\d+)(?: */ *| +(?:Moves|Turns): *)(?P<moves>\d+) *$",
    re.MULTILINE,
)
_SCORE: Final = re.compile(
    r"\bscore (?:is|would be|of) (-?\d+)|\bscored? (?:so far )?(-?\d+)\b", re.IGNORECASE
)
_MAX_SCORE: Final = re.compile(
    r"(?:\btotal of|\bout of(?: a)?(?: possible| maximum| total)?(?: of)?) (\d+)", re.IGNORECASE
)
_MOVES: Final = re.compile(r"\b(?:in|after) (\d+) (?:moves?|turns?)\b", re.IGNORECASE)
SAYS_DIED: Final = re.compile(
    r"^(?:[^\S\n]|\*)*you (?:have died|died|are dead|have been killed)[\s*.!]*$", re.IGNORECASE | re.MULTILINE
)
SAYS_WON: Final = re.compile(
    r"^[^\S\n]*\*+\s*you(?: have|'ve)? w[io]n\b[^\n]*\*\s*$", re.IGNORECASE | re.MULTILINE
)
SAYS_OVER: Final = re.compile(
    r"(?:^|>)(?>[^>]*?\brestart\b)(?=[^>]*\brestore\b)(?=[^>]*\b(?:quit|end this session)\b)", re.IGNORECASE
)
"""The question of a game that is over: whether to RESTART, RESTORE or QUIT."""
TOOK_NO_TIME: Final = re.compile(r"(?:don't|do not) know the word", re.IGNORECASE)
"""The answer to an unknown word, which the next command may correct ("oops")."""
SAYS_DARK: Final = re.compile(r"\bpitch (?:black|dark)\b", re.IGNORECASE)


def tidy(printed: str, *, broken_lines: bool = True) -> str:
    """Remove the prompt and outer blank lines. If `broken_lines`, join lines that the interpreter broke."""
    text, room_left = "", -1
    for line in printed.rstrip().removesuffix(">").split("\n"):
        # The interpreter has broken the previous line only if the first word of this line did not fit there.
        first = re.match(r"[^\s-]*-?", line)
        broken = broken_lines and bool(line) and first is not None and 0 <= room_left <= len(first.group())
        text += (("" if text.endswith("-") else " ") if broken else "\n") + line.rstrip()
        room_left = WIDTH - len(line) if line else -1
    return re.sub(r"\n{3,}", "\n\n", text).strip("\n")


def take_status_line(text: str) -> tuple[str, Observation | None]:
    """Return the text without its status line, and what this line tells; `None`: it has no such line."""
    found = _STATUS_LINE.search(text)
    if found is None:
        return text, None
    line = Observation(score=int(found["score"]), moves=int(found["moves"]), location=found["room"])
    return _STATUS_LINE.sub("", text).strip("\n"), line


def told_score(text: str) -> Observation | None:
    """Return the score that a text of the game names, such as its answer to SCORE; `None`: it names none."""
    found = _SCORE.search(text)
    if found is None:
        return None
    most, moves = _MAX_SCORE.search(text), _MOVES.search(text)
    return Observation(
        score=int(found[1] or found[2]),
        max_score=int(most[1]) if most else None,
        moves=int(moves[1]) if moves else None,
    )


def heading(text: str, names: frozenset[str]) -> str | None:
    """Return the room of the last heading: a capitalised one of `names`, alone or before ", " or " ("."""
    for line in reversed(text.split("\n")):
        name = re.split(r", | \(", line, maxsplit=1)[0]
        if name[:1].isupper() and name in names:
            return name
    return None


def asks_something(text: str, prompt: str) -> bool:
    """Return whether the game seems to ask a question."""
    return prompt.strip() != ">" or text.endswith("?")
