"""Replace secrets by stable placeholders, in the JSON of messages and in plain text.

Two kinds of secrets are replaced: values that were registered with `hide`, in all the forms of
`secret_forms`, and credentials that `authorisations` recognises. A message without secrets costs a few
searches for bytes and is not copied.

A long message is searched in pieces of a few milliseconds each, so that other threads can run in between.
Beside the message and its redacted copy, the memory needed is constant.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Any, NamedTuple, Self, TypeAlias

import msgspec
from msgspec.structs import replace

from grue.runtime.large_data import buffer_of, decode, let_others_run, steps, write_to
from grue.runtime.loops.authorisations import (
    MAX_HEADER_BYTES,
    authorisations,
    crosses_strings,
    may_contain_credentials,
)
from grue.runtime.secrets.secret_forms import SecretForms, SecretPattern, forms_of
from grue.runtime.trace.json_places import (
    Found,
    extend_to_escapes,
    in_prose,
    in_string_values,
    in_strings,
    in_strings_and_numbers,
)

_PIECE = 2**16
"""Bytes that are searched at a time."""

_MOST_SPANS = 128
"""Spans that are replaced before other threads can run. That takes about a millisecond."""

_START = attrgetter("start")

_CUT = "\N{HORIZONTAL ELLIPSIS}".encode()
"""Marks the place where a text was shortened. A secret may have been cut there."""

MIN_BEGINNING_BYTES = 6
"""Length in bytes of the shortest beginning of a secret that is replaced."""

_AUTHORISATION = "[redacted:authorization]"
CUT_PLACEHOLDER = "[redacted]"
"""Placeholder for the beginning of a secret whose end was cut off."""


_Select: TypeAlias = Callable[[bytes, Iterable[Found]], Iterator[Found]]
"""Selects which of the found spans are replaced."""


class _Secret(NamedTuple):
    value: str
    placeholder: str
    forms: SecretForms


_LETTERS = bytes(ord("a") if chr(byte).isalnum() and byte < 128 else ord(" ") for byte in range(256))


_LONG_PROBE = 16
"""Length of a run of letters and digits that ordinary text rarely has."""


class _SecretIndex(NamedTuple):
    """The registered secrets, with an index for a quick first search.

    Attributes:
        secrets: The secrets, the longest first.
        probes: Short byte strings that are searched for one by one.
        long_probes: Longer ones, which consist of letters and digits only.
        shortest_run: `a` repeated to the length of the shortest long probe. A text without such a run, with
            all letters and digits mapped to `a`, contains no long probe.
    """

    secrets: tuple[_Secret, ...] = ()
    probes: tuple[bytes, ...] = ()
    long_probes: tuple[bytes, ...] = ()
    shortest_run: bytes = b""

    @classmethod
    def of(cls, secrets: Iterable[_Secret]) -> Self:
        # A secret that contains another one comes first, so that its name is shown.
        longest_first = tuple(sorted(secrets, key=lambda secret: -len(secret.value)))
        probes = dict.fromkeys(each.probe for secret in longest_first for each in secret.forms.patterns)
        long_probes = tuple(probe for probe in probes if len(probe) >= _LONG_PROBE)
        short = tuple(probe for probe in probes if len(probe) < _LONG_PROBE)
        return cls(longest_first, short, long_probes, b"a" * min(map(len, long_probes), default=0))

    def may_match(self, written: bytes) -> bool:
        """Return whether any probe is in a text."""
        for probe in self.probes:
            if probe in written:
                return True
        if self.long_probes and self.shortest_run in written.translate(_LETTERS):
            for probe in self.long_probes:
                if probe in written:
                    return True
        return _CUT in written and bool(self.secrets)


class Redaction:
    """The registered secrets, and how to replace them. Thread-safe.

    Args:
        secrets: Values to replace, by the name that their placeholder shows.
    """

    def __init__(self, secrets: Mapping[str, str] | None = None) -> None:
        # Replaced, never changed in place, because another thread may be using it.
        self._index = _SecretIndex()
        for name, value in (secrets or {}).items():
            self.hide(name, value)

    @property
    def secrets(self) -> tuple[str, ...]:
        """The registered values."""
        return tuple(secret.value for secret in self._index.secrets)

    def hide(self, name: str, value: str) -> None:
        """Replace `value` by a placeholder with `name` from now on.

        An empty value is ignored, and so is one that is not Unicode, which cannot be in a message.
        """
        secrets = self._index.secrets
        if not value or not _is_unicode(value) or any(value == secret.value for secret in secrets):
            return
        self._index = _SecretIndex.of((*secrets, _Secret(value, f"[redacted:{name}]", forms_of(value))))

    def may_contain_secrets(self, written: bytes) -> bool:
        """Return whether there may be a secret. Cheap; it has false positives but no false negatives."""
        if len(written) <= _PIECE:
            # As for each piece below, but written out, because every small message takes this path.
            if self._index.secrets and self._index.may_match(written):
                return True
            lowered = written.lower()
            return b"authorization" in lowered or b"api-key" in lowered or b"bearer " in lowered
        reach = (
            max((len(probe) for probe in (*self._index.probes, *self._index.long_probes)), default=0)
            + MAX_HEADER_BYTES
        )
        pieces = (written[start : start + _PIECE + reach] for start in steps(0, len(written), _PIECE))
        return any(self._index.may_match(piece) or may_contain_credentials(piece) for piece in pieces)

    def redact_json(self, written: bytes) -> bytes:
        """Return JSON without secrets."""
        if not self.may_contain_secrets(written):
            return written
        return _replaced(written, in_strings(written, self._spans(written, in_json=True)), _as_json)

    def redact_text(self, text: str) -> str:
        """Return plain text without secrets. Lone surrogates stay as they are."""
        written = text.encode("utf-8", "surrogatepass")
        if not self.may_contain_secrets(written):
            return text
        shown = _replaced(written, self._spans(written, in_json=False), lambda found: found.shown.encode())
        return shown.decode("utf-8", "surrogatepass")

    def safe_cut(self, text: str, end: int) -> int:
        """Return the last position up to `end` that is not inside a secret."""
        written = text.encode("utf-8", "surrogatepass")
        at = len(text[:end].encode("utf-8", "surrogatepass"))
        if self.may_contain_secrets(written):
            around = (found for found in self._spans(written, in_json=False) if found.start < at < found.end)
            at = next((found.start for found in around), at)
        return len(written[:at].decode("utf-8", "surrogatepass"))

    def redact_message(self, written: bytes, body: Any) -> tuple[bytes, Any]:
        """Return a message's JSON without secrets, and the message decoded from it.

        A message's class may name fields that say the same in another form (`also_hidden`), such as the ids
        of a text's tokens. If a secret is replaced, they are emptied.

        Args:
            written: The message's JSON.
            body: The message; returned unchanged if it contains no secret.

        Raises:
            msgspec.ValidationError: A secret equals a word that the message's type requires.
        """
        for select in (in_strings_and_numbers, in_strings, in_string_values):
            try:
                return self._redact_message(written, body, select)
            except msgspec.ValidationError:
                continue  # a secret equals a number or a word that the type requires: replace less
        return self._redact_message(written, body, in_prose)

    def _redact_message(self, written: bytes, body: Any, select: _Select) -> tuple[bytes, Any]:
        shown = _replaced(written, select(written, self._spans(written, in_json=True)), _as_json)
        if shown == written:
            return written, body
        hidden = dict.fromkeys(getattr(body, "also_hidden", ()))
        body = decode(msgspec.json.Decoder(type(body)), shown)
        if any(getattr(body, name) is not None for name in hidden):
            body = replace(body, **hidden)
            shown = msgspec.json.encode(body)
        return shown, body

    def _spans(self, written: bytes, *, in_json: bool) -> Iterator[Found]:
        """Yield the spans to replace, in order. Spans that overlap are merged.

        They are never collected in a list. With thousands of them alive at once, the interpreter would look
        for garbage again and again, in all that the process has imported, and hold every thread meanwhile.
        """
        last: Found | None = None
        count = 0
        for start in steps(0, len(written), _PIECE):
            for found in self._in_piece(written, start, min(start + _PIECE, len(written)), in_json=in_json):
                count += 1
                if not count % _MOST_SPANS:
                    let_others_run()
                if last is not None and found.start >= last.end:
                    yield last
                    last = found
                else:
                    last = found if last is None else last.merged(found)
        if last is not None:
            yield last

    def _in_piece(self, written: bytes, start: int, end: int, *, in_json: bool) -> Iterator[Found]:
        """Yield the spans that begin from `start` to before `end`, by their beginning."""
        found = self._secrets_in(written, start, end)
        if in_json:
            found = [_in_one_string(written, spans) for spans in found]
        if may_contain_credentials(written[start : end + MAX_HEADER_BYTES]):
            rank = len(self._index.secrets)
            for spans in authorisations(written, start, end, in_json=in_json):
                marked = _marked(spans, _AUTHORISATION, rank)
                found.append(_whole(written, marked) if in_json else marked)
        return found[0] if len(found) == 1 else heapq.merge(*found, key=_START)

    def _secrets_in(self, written: bytes, start: int, end: int) -> list[Iterator[Found]]:
        """Return the spans of each form that is in a piece."""
        secrets = self._index.secrets
        found = [
            _marked(_matches(pattern, written, start, end), secret.placeholder, rank)
            for rank, secret in enumerate(secrets)
            for pattern in secret.forms.patterns
            if written.find(pattern.probe, start, end + pattern.longest) >= 0
        ]
        if _CUT in written[start : end + MAX_HEADER_BYTES]:
            found += [
                _marked(_beginnings(form, written, start, end), CUT_PLACEHOLDER, len(secrets) + 1)
                for secret in secrets
                for form in secret.forms.literals
                if len(form) > MIN_BEGINNING_BYTES
            ]
        return found


def _marked(spans: Iterable[tuple[int, int]], shown: str, rank: int) -> Iterator[Found]:
    for start, end in spans:
        yield Found(start, end, shown, rank)


def _whole(written: bytes, spans: Iterable[Found]) -> Iterator[Found]:
    """Yield spans that do not begin or end inside an escape."""
    for found in spans:
        whole = extend_to_escapes(written, found)
        if whole is not None:
            yield whole


def _in_one_string(written: bytes, spans: Iterable[Found]) -> Iterator[Found]:
    """Yield spans of whole characters that do not reach over the end of a string."""
    for found in _whole(written, spans):
        if not crosses_strings(written, found.start, found.end):
            yield found


def _matches(pattern: SecretPattern, written: bytes, start: int, end: int) -> Iterator[tuple[int, int]]:
    for match in pattern.regex.finditer(written, start, end + pattern.longest):
        if match.start() >= end:
            break
        yield match.span()


def _beginnings(form: bytes, written: bytes, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the spans of beginnings of a secret that are followed by the mark of a shortened text."""
    head, at = form[:MIN_BEGINNING_BYTES], start - 1
    while (at := written.find(head, at + 1, end + MIN_BEGINNING_BYTES - 1)) >= 0:
        cut = written.find(_CUT, at + MIN_BEGINNING_BYTES, at + len(form) + len(_CUT) - 1)
        if cut >= 0 and form.startswith(written[at:cut]):
            yield at, cut


def _replaced(written: bytes, found: Iterable[Found], shown: Callable[[Found], bytes]) -> bytes:
    """Return `written` with the spans replaced."""
    view, out, at = memoryview(written), buffer_of(len(written)), 0
    for each in found:
        write_to(out, view[at : each.start])
        out.write(shown(each))
        at = each.end
    write_to(out, view[at:])
    out.truncate()
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
