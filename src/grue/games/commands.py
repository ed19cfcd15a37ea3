"""The model's command, before it reaches a game.

A model decorates ("**take lamp**"), chains ("n. n. take lamp") and sometimes asks for what would leave the
game or hang it ("save" waits for a file name). What leaves here is one plain command, or nothing.
"""

import re
import unicodedata
from typing import Final

MAX_LENGTH: Final = 120
"""Characters in a command. The games of the 1980s read about as many, and no useful command is longer."""

_TERMINAL_ESCAPES: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)?")
_FOLDED: Final = {
    **dict.fromkeys(map(ord, "\u2018\u2019\u201a\u201b\u2032"), "'"),
    **dict.fromkeys(map(ord, "\u201c\u201d\u201e\u201f\u2033\u00ab\u00bb"), '"'),
    **dict.fromkeys(map(ord, "\u2010\u2011\u2013\u2014\u2212"), "-"),
}
_FENCE: Final = re.compile(r"\s*(?:```|~~~)\w*\s*")
# Never part of a command; a backslash would be an escape to the interpreter.
_MARKUP: Final = re.compile(r"[*`~\\]+")
_LEADING: Final = re.compile(r"(?:[\s>#_.,;:]+|[-+]\s+|\d+[.)]\s+|[-+]$|then\b)+", re.IGNORECASE)
_TRAILING: Final = re.compile(r"[\s_.,;:!]+$")
_CHAIN: Final = re.compile(r";|[,\s]+(?:and\s+)?then\b", re.IGNORECASE)
# The interpreter ends a command at any full stop, so "n.n" is a chain too; a title or a decimal is none.
_FULL_STOP: Final = re.compile(
    r"(?<!\bmr)(?<!\bms)(?<!\bdr)(?<!\bst)(?<!\bmrs)(?<!\d)\.|(?<=\d)\.(?!\d)", re.IGNORECASE
)
# Commands to the interpreter: they ask questions, write files or end the session. The games of the 1980s tell
# words apart by their first six letters, so that is what is compared.
_META: Final = frozenset({
    "save", "restor", "restar", "quit", "q", "replay",
    "script", "unscri", "noscri", "transc", "record", "unreco",
})  # fmt: skip


def sanitise_command(text: str) -> str | None:
    """Reduce what a model wrote to one command that is safe to play, or to `None`.

    The result is non-empty printable ASCII on one line of at most `MAX_LENGTH` characters, and sanitising it
    again changes nothing (P2). Quotation marks, Markdown, prompt marks, terminal escapes and backslashes go;
    of several lines or of a chain ("n. take lamp", "n then e") the first command stays. `None` stands for
    nothing playable: nothing left, or a command that talks to the interpreter (save, restore, restart, quit,
    script, ...).
    """
    lines = (line for line in _TERMINAL_ESCAPES.sub("", text).splitlines() if not _FENCE.fullmatch(line))
    command = next(filter(None, map(_tidy, map(_ascii, lines))), None)
    return None if command is None or _is_meta(command) else command


def _ascii(line: str) -> str:
    folded = unicodedata.normalize("NFKD", line.translate(_FOLDED))
    spaced = "".join(" " if mark.isspace() or unicodedata.category(mark) == "Cc" else mark for mark in folded)
    return spaced.encode("ascii", "ignore").decode("ascii")


def _tidy(line: str) -> str:
    """Peel a line until nothing more comes off, which is also what makes the whole idempotent."""
    while (peeled := _peel(line)) != line:
        line = peeled
    return line


def _peel(line: str) -> str:
    line = " ".join(_MARKUP.sub(" ", line).split())
    line = _TRAILING.sub("", line)
    lead = _LEADING.match(line)
    line = _unquoted(line[lead.end() :] if lead else line)
    line = _FULL_STOP.split(_CHAIN.split(line, maxsplit=1)[0], maxsplit=1)[0]
    return line[:MAX_LENGTH].strip()


def _unquoted(line: str) -> str:
    for quote in ('"', "'"):
        inner = line[1:-1]
        wrapped = len(line) > 1 and line[0] == line[-1] == quote
        if wrapped and (quote not in inner or inner[:1] == inner[-1:] == quote):
            return inner
        if line.count(quote) == 1 and quote in (line[:1], line[-1:]):
            return line.strip(quote)
    return line


def _is_meta(command: str) -> bool:
    first = re.search(r"[a-z]+", command.lower())
    return first is not None and first.group()[:6] in _META
