"""Play Z-machine story files with an interpreter: `dfrotz`, or `fernz` from pip.

The names of a story's objects are read to recognise rooms: a room's heading in the text is the name of an
object. Offsets are as in the Z-Machine Standards Document 1.1, sections 11 (header), 12 (objects), 3 (text).
"""

import hashlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import asdict, replace

from grue.errors import GameError
from grue.hosts.zork.games import story_text
from grue.hosts.zork.games.game import Observation
from grue.hosts.zork.games.interpreters import InterpreterProcess, choose_interpreter

_HEADER_BYTES: Final = 64
_MOST_BYTES: Final = 1 << 20  # twice what version 8 can address: some files have padding at their end
_OBJECT_TABLE: Final = 0x0A
_ABBREVIATIONS: Final = 0x18
_LENGTH: Final = 0x1A
_ALPHABETS: Final = (
    "abcdefghijklmnopqrstuvwxyz",
    "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    " \n0123456789.,!?_#'\"/\\-:()",
)
_LONGEST_NAME: Final = 255  # bytes or characters; in a damaged file a name may have no end


class StoryFile(Struct, frozen=True):
    """A story file that has been checked. `names` are those of its objects; empty if they cannot be read."""

    path: Path
    version: int
    digest: str
    names: frozenset[str]


def open_story(path: Path) -> StoryFile:
    """Read a story file. Raises `GameError` if it is missing, truncated, or not a Z-machine story."""
    try:
        with path.open("rb") as file:  # read no more than a story can have: `path` may be a disk image
            story = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise GameError(f"Cannot read the story file {path}: {error.strerror}.") from error
    fault = _fault(story)
    if fault is not None:
        raise GameError(f"{path} is not a Z-machine story file that can be played: {fault}.")
    return StoryFile(path.resolve(), story[0], hashlib.sha256(story).hexdigest(), object_names(story))


def _fault(story: bytes) -> str | None:
    if len(story) < _HEADER_BYTES:
        return f"it has {len(story)} bytes, and the header alone takes {_HEADER_BYTES}"
    if story.startswith(b"FORM"):
        return "it is a Blorb archive; extract the story (.z1 to .z8) from it"
    if not 1 <= story[0] <= 8:
        return f"its first byte should be the version, 1 to 8, and is {story[0]}"
    if len(story) > _MOST_BYTES:
        return "it has more than 1 MiB, which is more than any version can address"
    declared = _word(story, _LENGTH) * (2 if story[0] <= 3 else 4 if story[0] <= 5 else 8)
    if declared > len(story):
        return f"its header says {declared} bytes, but there are {len(story)}: it has been cut short"
    return None


def object_names(story: bytes) -> frozenset[str]:
    """Return the printable short names of all objects; none for versions 1 and 2, or a damaged table."""
    if story[0] < 3:
        return frozenset()
    try:
        return frozenset(name for name in _names(story) if name and name.isprintable())
    except IndexError:
        return frozenset()


def _names(story: bytes) -> Iterator[str]:
    @cache
    def abbreviation(number: int) -> str:
        return _decode(story, 2 * _word(story, _word(story, _ABBREVIATIONS) + 2 * number))

    early = story[0] == 3
    entry_bytes, pointer_at = (9, 7) if early else (14, 12)
    entry = _word(story, _OBJECT_TABLE) + (31 if early else 63) * 2
    first_properties = len(story)
    # The table ends where the first table of properties begins.
    while entry + entry_bytes <= first_properties:
        properties = _word(story, entry + pointer_at)
        first_properties = min(first_properties, properties)
        if story[properties]:
            yield _decode(story, properties + 1, abbreviation)
        entry += entry_bytes


def _word(story: bytes, at: int) -> int:
    return story[at] << 8 | story[at + 1]


def _z_characters(story: bytes, at: int) -> Iterator[int]:
    for offset in range(at, at + _LONGEST_NAME, 2):
        word = _word(story, offset)
        yield from (word >> 10 & 31, word >> 5 & 31, word & 31)
        if word & 0x8000:
            return


def _decode(story: bytes, at: int, abbreviation: Callable[[int], str] | None = None) -> str:
    # Abbreviations are decoded once and texts have a limit, because a damaged file may repeat long ones.
    text, alphabet = "", 0
    characters = _z_characters(story, at)
    for character in characters:
        if len(text) > _LONGEST_NAME:
            break
        shift, alphabet = alphabet, 0
        if character >= 6 and (shift, character) == (2, 6):
            text += chr(next(characters, 0) << 5 | next(characters, 0))
        elif character >= 6:
            text += _ALPHABETS[shift][character - 6]
        elif character >= 4:
            alphabet = character - 3
        elif character == 0:
            text += " "
        elif abbreviation is not None:
            text += abbreviation(32 * (character - 1) + next(characters, 0))
    return text


_AGAIN: Final = ("g", "again")
_OVER: Final = "The story has ended."


class ZMachineGame:
    """A story file (.z1 to .z8) as a `Game`.

    The room is known once the game has printed the room's heading or a status line. Score and moves come from
    the status line, or from texts that name the score. Without a status line, SCORE, which takes no game
    time, is sent at the start and after each command, until an answer to SCORE names no score. SCORE is not
    sent after a question of the game, which would take SCORE for the answer, nor after an unknown word, which
    the next command may correct ("oops"). The inventory is always `None`, because asking for it takes a turn.
    `notice` is a sentence for people about the choice of the interpreter, or empty.
    """

    def __init__(self, story: Path, *, interpreter: str | None = None) -> None:
        self._story = open_story(story)
        self.name = self._story.path.stem
        self.fingerprint = self._story.digest
        chosen = choose_interpreter(self._story.version, interpreter)
        self.notice = chosen.reason
        self._player = chosen.interpreter
        self._interpreter: InterpreterProcess | None = None
        self._forget()

    def _forget(self) -> None:
        self._known = Observation()  # the room, score and so on, as last printed; no text
        self._tells_score = True
        self._done = False
        self._repeated = ""

    def reset(self, seed: int = 0) -> Observation:
        """Start the story in a new interpreter; raises `GameError` if that is impossible."""
        self.close()
        self._forget()
        self._interpreter = InterpreterProcess(self._player, self._story.path, seed=seed)
        return self._converse(self._interpreter, None)

    def step(self, command: str) -> Observation:
        """Play one command. After the end of the story, commands have no effect."""
        if self._interpreter is None:
            raise GameError(f"{self.name} is not running; start it with reset().")
        if self._done:
            return self._observe(_OVER)
        # Replace AGAIN by the last command: the game would repeat the last line it got, perhaps SCORE.
        # Before the first command, AGAIN becomes an empty line, which has no effect.
        if command.strip().lower() in _AGAIN:
            command = self._repeated
        if not command.lower().startswith("oops"):
            self._repeated = command
        return self._converse(self._interpreter, command)

    def _converse(self, interpreter: InterpreterProcess, command: str | None) -> Observation:
        try:
            printed, prompt = interpreter.exchange(command)
            text = self._tidy(printed)
            self._done = interpreter.ended or bool(story_text.SAYS_OVER.search(text))
            text = self._learn(text)
            self._ask_score(interpreter, text, prompt)
        except GameError:
            self.close()
            raise
        return self._observe(text or _OVER * self._done, died=bool(story_text.SAYS_DIED.search(text)))

    def _tidy(self, printed: str) -> str:
        return story_text.tidy(printed, broken_lines=self._player.breaks_lines)

    def _learn(self, text: str) -> str:
        """Remember the room and score in a text, and return the text without the status line."""
        text, status = story_text.take_status_line(text)
        room = story_text.heading(text, self._story.names)
        if self._know(status):
            self._tells_score = False
        elif room is not None or story_text.SAYS_DARK.search(text):
            self._known = replace(self._known, location=room)
        self._know(story_text.told_score(text))
        return text

    def _know(self, told: Observation | None) -> bool:
        if told is not None:
            given = {name: value for name, value in asdict(told).items() if value is not None}
            self._known = replace(self._known, **given)
        return told is not None

    def _ask_score(self, interpreter: InterpreterProcess, text: str, prompt: str) -> None:
        answers = story_text.asks_something(text, prompt) or story_text.TOOK_NO_TIME.search(text)
        if self._done or answers or not self._tells_score:
            return
        printed, _ = interpreter.exchange("score")
        self._tells_score = self._know(story_text.told_score(self._tidy(printed)))

    def _observe(self, text: str, *, died: bool = False) -> Observation:
        known = self._known
        complete = self._done and not died and known.score is not None and known.score == known.max_score
        won = complete or bool(story_text.SAYS_WON.search(text))
        return replace(known, text=text, died=died, won=won, done=self._done)

    def close(self) -> None:
        """End the interpreter. May be called twice; `reset` starts another one."""
        if self._interpreter is not None:
            self._interpreter.close()
            self._interpreter = None
