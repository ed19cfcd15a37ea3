"""The differences between two messages, and the description of a message that differs (`Divergence`).

Descriptions are printable, but untrusted. In a comparison, `2` equals `2.0`, but `true` does not equal `1`.
"""

import itertools
import os.path
import re
from collections.abc import Callable, Iterator
from itertools import zip_longest

import msgspec
from msgspec import Struct

from grue.runtime.safe_text import printable
from grue.tracing.facts import counted
from grue.tracing.message_words import kind_of, summarize
from grue.tracing.reading import EpisodeBody, EpisodeEnvelope

LAST_CAUSES = 12  # how many causes of a message are shown besides the first one
_LINE_CHARS = 160
_VALUE_CHARS = 100
_BEFORE_CHARS = 30
ABSENT = msgspec.UNSET  # stands for a value that only the other side has


class Difference(Struct, frozen=True):
    """Two values that differ, and their path, such as `$.calls[0].arguments`."""

    path: str
    left: object
    right: object


class Comparison:
    """Compares messages, pair after pair."""

    # `ignored` names fields that are not compared: `field`, or `Class.field` for one class only. In fields of
    # `ids` (`field` only), values may differ if left and right values pair one to one. `same_text` returns
    # whether two different texts count as equal.

    def __init__(
        self,
        *,
        ignored: frozenset[str] = frozenset(),
        ids: frozenset[str] = frozenset(),
        same_text: Callable[[str, str], bool] | None = None,
    ) -> None:
        self._ignored = ignored
        self._ids = ids
        self._same_text = same_text
        self._there: dict[tuple[str, object], object] = {}
        self._back: dict[tuple[str, object], object] = {}

    def differences(self, left: object, right: object, path: str = "$") -> Iterator[Difference]:
        """Yield the differences between two values, in the order of the fields, and remember paired ids."""
        # Compare plain JSON at once. In a compared message, only fields and tuples hold Structs.
        if not isinstance(left, Struct | tuple) and _json(left) == _json(right):
            return
        if isinstance(left, Struct) and type(left) is type(right):
            yield from self._of_fields(left, right, path)
        elif isinstance(left, dict) and isinstance(right, dict):
            for key in dict.fromkeys((*left, *right)):
                one, other = left.get(key, ABSENT), right.get(key, ABSENT)
                yield from self.differences(one, other, f"{path}{_step(key)}")
        elif isinstance(left, list | tuple) and isinstance(right, list | tuple):
            for position, (one, other) in enumerate(zip_longest(left, right, fillvalue=ABSENT)):
                yield from self.differences(one, other, f"{path}[{position}]")
        elif not self._same(left, right):
            yield Difference(path, left, right)

    def counterpart(self, name: str, left: object) -> object:
        """Return the right side's id that is paired with `left` in the message field `name`, or `None`."""
        return self._there.get((name, left))

    def paired(self, name: str, right: object) -> object:
        """Return `right` if it is paired with an id of the left side in field `name`; otherwise `None`."""
        return right if (name, right) in self._back else None

    def _of_fields(self, left: Struct, right: object, path: str) -> Iterator[Difference]:
        for name in left.__struct_fields__:
            if is_one_of(self._ignored, left, name):
                continue
            one, other = getattr(left, name), getattr(right, name)
            if name not in self._ids:
                yield from self.differences(one, other, f"{path}.{name}")
            elif not self._same_id(name, one, other):
                yield Difference(f"{path}.{name}", one, other)

    def _same(self, left: object, right: object) -> bool:
        if isinstance(left, str) and isinstance(right, str):
            return left == right or (self._same_text is not None and self._same_text(left, right))
        return type(left) is not bool and type(right) is not bool and left == right

    def _same_id(self, name: str, left: object, right: object) -> bool:
        there = self._there.setdefault((name, left), right)
        back = self._back.setdefault((name, right), left)
        return there == right and back == left


def is_one_of(names: frozenset[str], value: Struct, field: str) -> bool:
    """Return whether `names` contains the name `field`, alone or after the class of `value` and a dot."""
    return field in names or f"{type(value).__name__}.{field}" in names


def _json(value: object) -> bytes | None:
    return None if value is ABSENT else msgspec.json.encode(value)


_PLAIN_KEY = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def _step(key: object) -> str:
    text = str(key)
    return f".{text}" if _PLAIN_KEY.fullmatch(text) else f"[{msgspec.json.encode(text).decode()}]"


class Divergence(Struct, frozen=True, kw_only=True):
    """A message that is not the same in two versions of a turn, such as the recorded one and its replay."""

    turn: int
    left: EpisodeEnvelope | None  # `None`: the first version lacks the message
    right: EpisodeEnvelope | None  # `None`: the second version lacks it; a replayed message has `seq` 0
    differences: tuple[Difference, ...] = ()
    because: tuple[EpisodeEnvelope, ...] = ()  # the causes, the first cause first
    because_left_out: int = 0  # how many causes `because` lacks after its first one
    reason: str = ""  # an explanation, if the differences do not show what is wrong
    descendants: int = 0  # if a version lacks the message: how many messages that it caused are missing too

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
        return bool(self.left and self.right and type(self.left.body) is not type(self.right.body))

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
    return (same, same) if dense[0] == dense[1] else (_index_of(one, same), _index_of(other, same))


def _index_of(text: str, number: int) -> int:
    """Return the index of the `number`-th character (from 0) that is no white space, or else the length."""
    found = next(itertools.islice(re.finditer(r"\S", text), number, None), None)
    return found.start() if found else len(text)
