"""Replace secrets by stable placeholders: in a message's JSON as it is about to be written, and in text.

Two kinds of secrets are replaced: values that somebody named (`hide`), in each of the forms of
`secret_forms`, and, though nobody named them, what `authorisations` finds. What holds none of them costs a
few searches for bytes, and is not copied.

A long message is gone through in pieces of a few milliseconds each, so that another thread can run in
between, and what is needed beside the message and its copy does not grow with it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from io import BytesIO
from typing import Any, NamedTuple, Self, TypeAlias

import msgspec

from grue.runtime.authorisations import REACH, authorisations, crosses_texts, may_authorise
from grue.runtime.json_places import Found, in_sentences, in_texts, in_values, whole_escapes, with_numbers
from grue.runtime.secret_forms import SecretForms, forms_of

_PIECE = 2**19
_CUT = "\N{HORIZONTAL ELLIPSIS}".encode()
"""How a text goes on where it was cut, and what was cut can be the end of a secret."""

TELLING = 6
"""Beginnings shorter than this say nothing of a secret."""

_AUTHORISATION = "[redacted:authorization]"
BEGINNING = "[redacted]"
"""Stands for the beginning of a secret whose end is missing."""


_Kept: TypeAlias = Callable[[bytes, Iterable[Found]], Iterator[Found]]
"""Chooses of what was found what is replaced."""


class _Secret(NamedTuple):
    value: str
    placeholder: str
    forms: SecretForms


_LETTERS = bytes(ord("a") if chr(byte).isalnum() and byte < 128 else ord(" ") for byte in range(256))


_LONG_PROBE = 16
"""Letters and digits in a row, as words seldom have."""


class _Known(NamedTuple):
    """The secrets, and the probes of all of them.

    Attributes:
        secrets: The longest first.
        probes: Bytes to be searched for one by one.
        rows: The longer ones, which are but letters and digits.
        row: As many of these in a row as the shortest of `rows` has: where no such row is, none of them is.
    """

    secrets: tuple[_Secret, ...] = ()
    probes: tuple[bytes, ...] = ()
    rows: tuple[bytes, ...] = ()
    row: bytes = b""

    @classmethod
    def of(cls, secrets: Iterable[_Secret]) -> Self:
        # A secret that contains another one has to go first: its name is the one that is shown.
        longest_first = tuple(sorted(secrets, key=lambda secret: -len(secret.value)))
        probes = dict.fromkeys(each.probe for secret in longest_first for each in secret.forms.patterns)
        rows = tuple(probe for probe in probes if len(probe) >= _LONG_PROBE)
        short = tuple(probe for probe in probes if len(probe) < _LONG_PROBE)
        return cls(longest_first, short, rows, b"a" * min(map(len, rows), default=0))

    def probed(self, written: bytes) -> bool:
        """Say whether any probe is there."""
        for probe in self.probes:
            if probe in written:
                return True
        if self.rows and self.row in written.translate(_LETTERS):
            for probe in self.rows:
                if probe in written:
                    return True
        return _CUT in written and bool(self.secrets)


class Redaction:
    """What must not leave the process, and what is shown instead. Safe to use from several threads.

    Args:
        secrets: Values to be replaced, by the name that stands for them in a placeholder.
    """

    def __init__(self, secrets: Mapping[str, str] | None = None) -> None:
        # Replaced as a whole: another thread may be going through the old ones.
        self._known = _Known()
        for name, value in (secrets or {}).items():
            self.hide(name, value)

    @property
    def secrets(self) -> tuple[str, ...]:
        """The values that were named."""
        return tuple(secret.value for secret in self._known.secrets)

    def hide(self, name: str, value: str) -> None:
        """Replace `value` by a placeholder with `name` from now on.

        An empty value is no secret, and one that is not Unicode cannot be in a message.
        """
        secrets = self._known.secrets
        if not value or not _is_unicode(value) or any(value == secret.value for secret in secrets):
            return
        self._known = _Known.of((*secrets, _Secret(value, f"[redacted:{name}]", forms_of(value))))

    def finds(self, written: bytes) -> bool:
        """Say whether there may be something to replace in a message's JSON; cheap, and never too seldom."""
        if len(written) <= _PIECE:
            # The same as for a piece below; every small message comes by here.
            if self._known.secrets and self._known.probed(written):
                return True
            lowered = written.lower()
            return b"authorization" in lowered or b"api-key" in lowered or b"bearer " in lowered
        reach = max((len(probe) for probe in (*self._known.probes, *self._known.rows)), default=0) + REACH
        pieces = (written[start : start + _PIECE + reach] for start in range(0, len(written), _PIECE))
        return any(self._known.probed(piece) or may_authorise(piece) for piece in pieces)

    def text(self, written: bytes) -> bytes:
        """Return any JSON without secrets."""
        if not self.finds(written):
            return written
        return _joined(written, in_texts(written, self._found(written, in_json=True)), _as_json)

    def plain(self, text: str) -> str:
        """Return text without secrets; lone surrogates stay."""
        written = text.encode("utf-8", "surrogatepass")
        if not self.finds(written):
            return text
        shown = _joined(written, self._found(written, in_json=False), lambda found: found.shown.encode())
        return shown.decode("utf-8", "surrogatepass")

    def whole_up_to(self, text: str, end: int) -> int:
        """Return the last place up to `end` that is within no secret."""
        written = text.encode("utf-8", "surrogatepass")
        at = len(text[:end].encode("utf-8", "surrogatepass"))
        if self.finds(written):
            around = (found for found in self._found(written, in_json=False) if found.start < at < found.end)
            at = next((found.start for found in around), at)
        return len(written[:at].decode("utf-8", "surrogatepass"))

    def apply(self, written: bytes, body: Any) -> tuple[bytes, Any]:
        """Return a message's JSON without secrets, and the message read back from it.

        Args:
            written: Its JSON.
            body: The message; where nothing has to be replaced, it is what is returned.

        Raises:
            msgspec.ValidationError: A secret is a word that the message cannot do without.
        """
        for kept in (with_numbers, in_texts, in_values):
            try:
                return self._applied(written, body, kept)
            except msgspec.ValidationError:
                continue  # a number or a word that the message needs happens to be a secret
        return self._applied(written, body, in_sentences)

    def _applied(self, written: bytes, body: Any, kept: _Kept) -> tuple[bytes, Any]:
        shown = _joined(written, kept(written, self._found(written, in_json=True)), _as_json)
        return (written, body) if shown == written else (shown, msgspec.json.decode(shown, type=type(body)))

    def _found(self, written: bytes, *, in_json: bool) -> Iterator[Found]:
        """Yield what is to be replaced, in order; where secrets overlap, all of them as one."""
        last: Found | None = None
        for start in range(0, len(written), _PIECE):
            here = self._in_piece(written, start, min(start + _PIECE, len(written)), in_json=in_json)
            for found in sorted(here, key=lambda found: found.start):
                if last is not None and found.start >= last.end:
                    yield last
                    last = found
                else:
                    last = found if last is None else last.united(found)
        if last is not None:
            yield last

    def _in_piece(self, written: bytes, start: int, end: int, *, in_json: bool) -> Iterator[Found]:
        """Yield what begins within `start` and `end`, in any order."""
        secrets = self._known.secrets
        for found in self._secrets_in(secrets, written, start, end):
            whole = whole_escapes(written, found) if in_json else found
            if whole is not None and not (in_json and crosses_texts(written, whole.start, whole.end)):
                yield whole
        if may_authorise(written[start : end + REACH]):
            for first, last in authorisations(written, start, end, in_json=in_json):
                found = Found(first, last, _AUTHORISATION, len(secrets))
                whole = whole_escapes(written, found) if in_json else found
                if whole is not None:
                    yield whole

    def _secrets_in(
        self, secrets: tuple[_Secret, ...], written: bytes, start: int, end: int
    ) -> Iterator[Found]:
        for rank, secret in enumerate(secrets):
            for span in _matches(secret.forms, written, start, end):
                yield Found(*span, secret.placeholder, rank)
        if _CUT in written[start : end + REACH]:
            for secret in secrets:
                for span in _beginnings(secret.forms, written, start, end):
                    yield Found(*span, BEGINNING, len(secrets) + 1)


def _matches(forms: SecretForms, written: bytes, start: int, end: int) -> Iterator[tuple[int, int]]:
    for pattern in forms.patterns:
        limit = min(end + pattern.longest, len(written))
        if written.find(pattern.probe, start, limit) < 0:
            continue
        for match in pattern.regex.finditer(written, start, limit):
            if match.start() >= end:
                break
            yield match.span()


def _beginnings(forms: SecretForms, written: bytes, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield where a secret begins that was cut before its end."""
    for form in forms.literals:
        if len(form) <= TELLING:
            continue
        head, at = form[:TELLING], start - 1
        while (at := written.find(head, at + 1, end + TELLING - 1)) >= 0:
            cut = written.find(_CUT, at + TELLING, at + len(form) + len(_CUT) - 1)
            if cut >= 0 and form.startswith(written[at:cut]):
                yield at, cut


def _joined(written: bytes, found: Iterable[Found], shown: Callable[[Found], bytes]) -> bytes:
    """Return `written` with placeholders."""
    view, out, at = memoryview(written), BytesIO(), 0
    for each in found:
        out.write(view[at : each.start])
        out.write(shown(each))
        at = each.end
    out.write(view[at:])
    return out.getvalue()


def _as_json(found: Found) -> bytes:
    text = msgspec.json.encode(found.shown)
    return text if found.is_number else text[1:-1]


def _is_unicode(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
