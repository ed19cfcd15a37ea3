"""Reduce a model's text to one safe command before it is sent to a game."""

import re
import unicodedata
from typing import Final

MAX_LENGTH: Final = 120  # the most characters in a command: about as many as the games of the 1980s read

_TERMINAL_ESCAPES: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)?")
_FOLDED: Final = {
    **dict.fromkeys(map(ord, "\u2018\u2019\u201a\u201b\u2032"), "'"),
    **dict.fromkeys(map(ord, "\u201c\u201d\u201e\u201f\u2033\u00ab\u00bb"), '"'),
    **dict.fromkeys(map(ord, "\u2010\u2011\u2013\u2014\u2212"), "-"),
}
_FENCE: Final = re.compile(r"\s*(?:```|~~~)\w*\s*")
# Backslashes are removed too, because `dfrotz` takes a line with a backslash as a command to itself.
_MARKUP: Final = re.compile(r"[*`~\\]+")
_LEADING: Final = re.compile(r"(?:[\s>#_.,;:]+|[-+]\s+|\d+[.)]\s+|[-+]$|then\b)+", re.IGNORECASE)
_TRAILING: Final = " _.,;:!"
_CHAIN: Final = re.compile(r";|[,\s]+(?:and\s+)?then\b", re.IGNORECASE)
# A command ends at a full stop, as in the games, but not at one in a title ("mr.") or a decimal number.
_FULL_STOP: Final = re.compile(
    r"(?<!\bmr)(?<!\bms)(?<!\bdr)(?<!\bst)(?<!\bmrs)(?<!\d)\.|(?<=\d)\.(?!\d)", re.IGNORECASE
)
# Commands that ask questions, write files or end the session, cut to six letters: old games read no more.
_META: Final = frozenset({
    "save", "restor", "restar", "quit", "q", "replay",
    "script", "unscri", "noscri", "transc", "record", "unreco",
})  # fmt: skip


def sanitise_command(text: str) -> str | None:
    """Return the first command in a model's text; `None`: there is none, or it is not safe to play.

    The result is printable ASCII on one line of at most `MAX_LENGTH` characters, and sanitising it again
    changes nothing. Of several lines or a chain ("n. take lamp", "n then e"), the first command counts. A
    command for the interpreter (save, restore, restart, quit, script, ...) is not safe.

    Source: P2
    """
    lines = (line for line in _TERMINAL_ESCAPES.sub("", text).splitlines() if not _FENCE.fullmatch(line))
    command = next(filter(None, map(_tidy, map(_ascii, lines))), None)
    first = re.search(r"[a-z]+", (command or "").lower())
    return None if first is not None and first.group()[:6] in _META else command


def _ascii(line: str) -> str:
    folded = unicodedata.normalize("NFKD", line.translate(_FOLDED))
    spaced = "".join(" " if mark.isspace() or unicodedata.category(mark) == "Cc" else mark for mark in folded)
    return spaced.encode("ascii", "ignore").decode("ascii")


def _tidy(line: str) -> str:
    """Call `_peel` until nothing changes, so that `sanitise_command` is idempotent."""
    while (peeled := _peel(line)) != line:
        line = peeled
    return line


def _peel(line: str) -> str:
    line = " ".join(_MARKUP.sub(" ", line).split())
    line = line.rstrip(_TRAILING)  # a pattern that ends in `$` would need minutes for a long row of dots
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
