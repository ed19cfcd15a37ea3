"""A difference between two versions of a turn, and its description in printable, but untrusted text."""

import itertools
import os.path
import re
from collections.abc import Iterator

import msgspec
from msgspec import Struct

from grue.runtime.safe_text import printable
from grue.tracing.differences import ABSENT, Difference
from grue.tracing.facts import counted
from grue.tracing.message_words import kind_of, summarize
from grue.tracing.reading import EpisodeBody, EpisodeEnvelope

LAST_CAUSES = 12  # of a message, which are shown besides its first cause
_LINE_CHARS = 160
_VALUE_CHARS = 100
_BEFORE_CHARS = 30


class Divergence(Struct, frozen=True, kw_only=True):
    """A message that is not the same in two versions of a turn, such as the recorded one and its replay."""

    turn: int
    left: EpisodeEnvelope | None  # `None`: it is missing in the first version
    right: EpisodeEnvelope | None  # its counterpart; a replayed message has `seq` 0
    differences: tuple[Difference, ...] = ()
    because: tuple[EpisodeEnvelope, ...] = ()  # the causes, the first cause first
    because_left_out: int = 0  # how many are left out after the first item of `because`
    reason: str = ""  # an explanation, if the differences do not show what is wrong
    descendants: int = 0  # how many messages that it caused are missing too

    def lines(self, left: str, right: str) -> Iterator[str]:
        """Yield the full description. `left` and `right` are names for the two versions of the turn."""
        width = max(len(left), len(right))
        for name, envelope in ((left, self.left), (right, self.right)):
            yield f"  {name:<{width}}  {described(envelope) if envelope else 'nothing'}"
        if self.reason:
            yield f"  {printable(self.reason, _LINE_CHARS)}"
        if self.descendants:
            yield f"  and {counted(self.descendants, 'message')} that it caused"
        for difference in () if self._of_two_kinds else self.differences:
            one, other = excerpts(difference.left, difference.right)
            yield f"  {printable(difference.path, _LINE_CHARS)}"
            yield f"    {left:<{width}}  {one}{_meaning(difference.path, difference.left)}"
            yield f"    {right:<{width}}  {other}{_meaning(difference.path, difference.right)}"
        if self.because:
            yield "  because of"
            yield from (f"    {line}" for line in _chain(self.because, self.because_left_out))

    @property
    def _of_two_kinds(self) -> bool:
        if self.left is None or self.right is None:
            return False
        return type(self.left.body) is not type(self.right.body)

    def line(self, left: str, right: str) -> str:
        """Return a one-line summary."""
        envelope = self.left or self.right
        text = described(envelope) if envelope else self.reason
        if self.left and self.right:
            paths = ", ".join(difference.path for difference in self.differences)
            instead = f"{right}: {described(self.right)}" if self._of_two_kinds else f"differs in {paths}"
            return printable(f"turn {self.turn}: {text}; {instead}", _LINE_CHARS)
        if self.reason:
            return printable(f"turn {self.turn}: {text}; {self.reason}", _LINE_CHARS)
        more = f", and {counted(self.descendants, 'message')} that it caused" if self.descendants else ""
        where = f"only in {left if self.left else right}{more}"
        return printable(f"turn {self.turn}: {where}: {text}", _LINE_CHARS)


def described(envelope: EpisodeEnvelope) -> str:
    """Return an envelope as one line: number (unless 0), sender and receiver, kind, summary."""
    number = f"#{envelope.seq} " if envelope.seq else ""
    way = f"{envelope.sender} → {envelope.receiver}"
    summary = f"{kind_of(envelope.body)} {summarize(envelope.body)}"
    return printable(f"{number}{way}  {summary}".rstrip(), _LINE_CHARS)


def derived(
    body: EpisodeBody, *, sender: str, receiver: str, turn: int, cause: int | None
) -> EpisodeEnvelope:
    """Return an envelope for a message that a replay has computed."""
    return EpisodeEnvelope(
        seq=0, t=0.0, at=0.0, turn=turn, sender=sender, receiver=receiver, cause=cause, body=body
    )


def _meaning(path: str, value: object) -> str:
    return " (the same tools as before)" if path == "$.mode.tools" and value is None else ""


def _chain(because: tuple[EpisodeEnvelope, ...], left_out: int) -> Iterator[str]:
    first, *rest = because
    yield described(first)
    left_out += max(0, len(rest) - LAST_CAUSES)
    if left_out:
        yield f"… {left_out} more …"
    yield from map(described, rest[-LAST_CAUSES:])


def excerpts(left: object, right: object) -> tuple[str, str]:
    """Return two values as short lines of JSON. If a line is long, both begin a little before they differ."""
    texts = [_written(left), _written(right)]
    if all(len(text) <= _VALUE_CHARS for text in texts):
        return texts[0], texts[1]
    both_texts = isinstance(left, str) and isinstance(right, str)
    if both_texts:
        texts = [str(left), str(right)]
    starts = [max(0, at - _BEFORE_CHARS) for at in _first_difference(*texts)]
    texts = [text[start:] for text, start in zip(texts, starts, strict=True)]
    one, other = (
        f"{'…' if start else ''}{printable(_written(text) if both_texts else text, _VALUE_CHARS)}"
        for text, start in zip(texts, starts, strict=True)
    )
    return one, other


def _written(value: object) -> str:
    return "absent" if value is ABSENT else printable(msgspec.json.encode(value).decode())


def _first_difference(one: str, other: str) -> tuple[int, int]:
    """Return where each text begins to differ. White space counts only if nothing else differs."""
    dense = "".join(one.split()), "".join(other.split())
    compared = dense if dense[0] != dense[1] else (one, other)
    same = len(os.path.commonprefix(compared))  # noqa: RUF071 - any texts, no paths
    return (same, same) if dense[0] == dense[1] else (_place(one, same), _place(other, same))


def _place(text: str, number: int) -> int:
    """Return the index of the `number`-th character (from 0) that is no white space, or else the length."""
    found = next(itertools.islice(re.finditer(r"\S", text), number, None), None)
    return found.start() if found else len(text)
