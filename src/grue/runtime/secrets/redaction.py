"""Replace secrets by stable placeholders, in the JSON of messages and in plain text.

A message without secrets usually costs only a few searches for bytes. A long message is searched in pieces,
which take a few milliseconds each. No regular expression here backtracks far. Secrets are found in bytes, and
replacing them must leave valid JSON.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from io import BytesIO
from operator import attrgetter
from typing import Any, NamedTuple, Self, TypeAlias

import msgspec
from msgspec.structs import replace

from grue.runtime.forks import here_and_in_children
from grue.runtime.large_data import let_others_run, steps
from grue.runtime.safe_text import well_formed
from grue.runtime.secrets import secret_forms


class Found(NamedTuple):
    """A span of bytes to replace by `shown`. Of overlapping spans, the lowest `rank` decides what to show."""

    start: int
    end: int
    shown: str
    rank: int
    is_number: bool = False  # a complete JSON number, and not a part of a string

    def merged(self, other: Self) -> Found:
        """Return one span that covers this span and `other`."""
        first = min(self, other, key=lambda found: found.rank)
        return first._replace(start=min(self.start, other.start), end=max(self.end, other.end))


def extend_to_escapes(written: bytes, found: Found) -> Found | None:
    r"""Return the span with its ends moved out of escapes; `None`: it begins in `\u...` or is then empty."""
    start, end = found.start, found.end
    if b"\\" not in written[max(0, start - _BACK) : start] + written[end - _BACK : end]:
        return found
    if _is_escaped(written, start):
        start -= 1
    elif _unicode_escape_before(written, start):
        return None
    if _is_escaped(written, end):
        end -= 1
    elif back := _unicode_escape_before(written, end):
        end += _BACK - back
    return found._replace(start=start, end=end) if start < end else None


_BACK = 5  # distance from the `u` of a `\u` escape to the character after the escape


def _unicode_escape_before(written: bytes, at: int) -> int:
    r"""Return how far before `at` the `u` is, if `at` is inside a `\u` escape; 0: it is not."""
    backs = (back for back in range(1, _BACK) if written[at - back] == ord("u"))
    return next((back for back in backs if _is_escaped(written, at - back)), 0)


def _is_escaped(written: bytes, at: int) -> bool:
    first = at
    while first > 0 and written[first - 1] == 0x5C:
        first -= 1
    return (at - first) % 2 == 1


_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|-?[0-9][-+.eE0-9]*', re.DOTALL)
_MAY_BE_NO_TEXT = re.compile(rb"[]\[{},:\s+.eE0-9truefalsn-]+")  # of the characters outside strings
_ENOUGH = 400  # how many bytes of a span are matched with `_MAY_BE_NO_TEXT`


def in_strings_and_numbers(written: bytes, spans: Iterable[Found]) -> Iterator[Found]:
    """Yield each span in a JSON string as it is. For spans in a number, yield the number's span, once."""
    last = -1
    for found in _in_tokens(written, spans):
        if found.start > last:
            yield found
        last = found.start if found.is_number else last


def in_strings(written: bytes, spans: Iterable[Found]) -> Iterator[Found]:
    """Yield the spans that are in JSON strings, but not those in numbers."""
    return (found for found in _in_tokens(written, spans) if not found.is_number)


def in_string_values(written: bytes, spans: Iterable[Found]) -> Iterator[Found]:
    """Yield the spans in JSON strings, except in keys and before the first comma, where the tag is."""
    tag_end, end = written.find(b","), 0
    for found in in_strings(written, spans):
        if found.end > end:  # this is another string than that of the span before
            end = _end_of_text(written, found.end)
        if found.start > tag_end and written[end + 1 : end + 2] != b":":
            yield found


def in_prose(written: bytes, spans: Iterable[Found]) -> Iterator[Found]:
    """Yield the spans in string values. Skip values of one word: the field may allow only certain words."""
    for found in in_string_values(written, spans):
        quote = written.rfind(b'"', 0, found.start)
        if _is_escaped(written, quote) or not _WORD.match(written, quote):
            yield found


_WORD = re.compile(rb'"[A-Za-z_-]*+"')


def _end_of_text(written: bytes, at: int) -> int:
    end = written.find(b'"', at)
    while _is_escaped(written, end):
        end = written.find(b'"', end + 1)
    return end


def _in_tokens(written: bytes, spans: Iterable[Found]) -> Iterator[Found]:
    tokens = _TOKEN.finditer(written)
    token: re.Match[bytes] | None = None
    for found in spans:
        if not _MAY_BE_NO_TEXT.fullmatch(written, found.start, min(found.end, found.start + _ENOUGH)):
            yield found
            continue
        token = token or next(tokens, None)
        # `true`, `false`, `null` and the signs between values cannot be replaced, only the numbers in a span.
        while token is not None and token.start() < found.end:
            if token.end() > found.start:
                if written.startswith(b'"', token.start()):
                    yield found
                else:
                    yield found._replace(start=token.start(), end=token.end(), is_number=True)
            if token.end() >= found.end:
                break
            token = next(tokens, None)


_PIECE = 2**16  # bytes that are searched at a time
_MOST_SPANS = 128  # spans to replace before other threads can run; this takes about a millisecond
_START = attrgetter("start")

_CUT = "\N{HORIZONTAL ELLIPSIS}".encode()  # marks a place where a text, and perhaps a secret, was cut
MIN_BEGINNING_BYTES = 6  # fewest bytes of a secret's beginning that is replaced
_AUTHORISATION = "[redacted:authorization]"
CUT_PLACEHOLDER = "[redacted]"  # for the beginning of a secret whose end was cut off
_Select: TypeAlias = Callable[[bytes, Iterable[Found]], Iterator[Found]]  # selects the spans to replace


class _Secret(NamedTuple):
    value: str
    placeholder: str
    forms: secret_forms.SecretForms


_LETTERS = bytes(ord("a") if chr(byte).isalnum() and byte < 128 else ord(" ") for byte in range(256))

_LINES = bytes(
    ord("a" if chr(byte).isalnum() or chr(byte) in "+/-_" else "b" if chr(byte) in "\r\n\\" else " ")
    for byte in range(128)
).ljust(256)
_FULL_LINE = b"a" * secret_forms.SHORTEST_LINE + b"b"
"""`translate(_LINES)` turns each base64 or hexadecimal digit into `a`, and each line break or backslash into
`b`. So an encoded line of at least `SHORTEST_LINE` digits becomes a text that ends in `_FULL_LINE`.
"""

_SHORT_TEXT = 4096  # a longer text is not searched for `in_lines`, but for a full line of digits
_LONG_PROBE = 16  # fewest bytes of a long probe; such a run of letters and digits is rare in ordinary text


class _SecretIndex(NamedTuple):
    """The registered secrets, the longest first, and parts of their forms (probes) for a quick test.

    The `long_probes` have only letters and digits. They are searched for only if the text, with each letter
    and digit replaced by `a`, has `shortest_run`. Each form with line breaks contains a probe in `in_lines`.
    """

    secrets: tuple[_Secret, ...] = ()
    probes: tuple[bytes, ...] = ()
    long_probes: tuple[bytes, ...] = ()
    shortest_run: bytes = b""
    in_lines: tuple[bytes, ...] = ()

    @classmethod
    def of(cls, secrets: Iterable[_Secret]) -> Self:
        # Where two secrets overlap, the placeholder has the name of the first in this tuple.
        longest_first = tuple(sorted(secrets, key=lambda secret: -len(secret.value)))
        patterns = [each for secret in longest_first for each in secret.forms.patterns]
        probes = dict.fromkeys(each.probes[0] for each in patterns)
        long_probes = tuple(probe for probe in probes if len(probe) >= _LONG_PROBE)
        short = tuple(probe for probe in probes if len(probe) < _LONG_PROBE)
        shortest_run = b"a" * min(map(len, long_probes), default=0)
        in_lines = tuple({probe for each in patterns for probe in each.probes[1:]})
        return cls(longest_first, short, long_probes, shortest_run, in_lines)

    def may_match(self, written: bytes) -> bool:
        """Return whether a text may hold a secret, or one cut by an ellipsis. Only `False` is certain."""
        has = written.__contains__
        if any(map(has, self.probes)):
            return True
        has_run = bool(self.long_probes) and self.shortest_run in written.translate(_LETTERS)
        if has_run and any(map(has, self.long_probes)):
            return True
        has_escape = b"\\" in written and (b"\\n" in written or b"\\r" in written)
        if self.in_lines and (has_escape or b"\n" in written or b"\r" in written):
            if len(written) > _SHORT_TEXT:
                return _CUT in written or _FULL_LINE in written.translate(_LINES)
            # A short text may be a piece that begins in the middle of an encoded line: the rest of that line
            # may be too short for `_FULL_LINE`.
            if any(map(has, self.in_lines)):
                return True
        return _CUT in written and bool(self.secrets)


class Redaction:
    """Replaces secrets that `hide` has registered, credentials in headers, and bearer tokens. Thread-safe."""

    def __init__(self, secrets: Mapping[str, str] | None = None) -> None:
        # The index is replaced, never changed in place, because another thread may be using it. The lock
        # keeps two threads from replacing the same index, which would lose a secret.
        self._index = _SecretIndex()
        here_and_in_children(self._make_lock)
        for name, value in (secrets or {}).items():
            self.hide(name, value)

    @classmethod
    def of_environment(cls) -> Self:
        """Return a `Redaction` that replaces the secrets in this process's environment variables."""
        return cls(secret_forms.secrets_in(os.environ))

    def _make_lock(self) -> None:
        self._lock = threading.Lock()

    @property
    def secrets(self) -> tuple[str, ...]:
        """The registered values."""
        return tuple(secret.value for secret in self._index.secrets)

    def hide(self, name: str, value: str) -> None:
        """Replace `value` by a placeholder with `name` from now on. An empty or known value is ignored."""
        value = well_formed(value)
        if not value or value in self.secrets:
            return
        secret = _Secret(value, f"[redacted:{well_formed(name)}]", secret_forms.forms_of(value))
        with self._lock:
            secrets = self._index.secrets
            if value not in self.secrets:
                self._index = _SecretIndex.of((*secrets, secret))

    def may_contain_secrets(self, written: bytes) -> bool:
        """Return whether a text may contain a secret or a credential. Quick: only its `False` is certain."""
        if len(written) <= _PIECE:
            index = self._index
            return bool(index.secrets and index.may_match(written)) or may_contain_credentials(written)
        probes = (*self._index.probes, *self._index.long_probes)
        reach = max(map(len, probes), default=0) + MAX_HEADER_BYTES
        pieces = (written[start : start + _PIECE + reach] for start in steps(len(written), _PIECE))
        return any(self._index.may_match(piece) or may_contain_credentials(piece) for piece in pieces)

    def redact_json(self, written: bytes, *, numbers: bool = False) -> bytes:
        """Return the JSON text `written` with the secrets in strings replaced; `numbers`: in numbers too."""
        if not self.may_contain_secrets(written):
            return written
        select = in_strings_and_numbers if numbers else in_strings
        return _replaced(written, select(written, self._spans(written, in_json=True)), _as_json)

    def redact_text(self, text: str) -> str:
        """Return a plain text with the secrets replaced. Lone surrogates stay as they are."""
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
        """Return a message's JSON with secrets replaced where its type allows it, and that JSON decoded.

        Fields in `also_hidden` of the message's class repeat a text in another form, such as the ids of its
        tokens. If a secret is replaced, they are set to `None`. Raises `msgspec.ValidationError` if the
        message is invalid even when only the spans of `in_prose` are replaced.
        """
        for select in (in_strings_and_numbers, in_strings, in_string_values):
            # If a placeholder has replaced a number or word that the type requires, redact fewer places.
            with contextlib.suppress(msgspec.ValidationError):
                return self._redact_message(written, body, select)
        return self._redact_message(written, body, in_prose)

    def _redact_message(self, written: bytes, body: Any, select: _Select) -> tuple[bytes, Any]:
        shown = _replaced(written, select(written, self._spans(written, in_json=True)), _as_json)
        if shown == written:
            return written, body
        hidden = dict.fromkeys(getattr(body, "also_hidden", ()))
        body = msgspec.json.decode(shown, type=type(body))
        if any(getattr(body, name) is not None for name in hidden):
            body = replace(body, **hidden)
            shown = msgspec.json.encode(body)
        return shown, body

    def _spans(self, written: bytes, *, in_json: bool) -> Iterator[Found]:
        """Yield the spans to replace, in order, with overlapping ones merged.

        Do not collect them in a list: thousands of spans would make the garbage collector stop every thread.
        """
        last: Found | None = None
        count = 0
        for start in steps(len(written), _PIECE):
            end = min(start + _PIECE, len(written))
            # A credential that begins inside this one ends where it ends.
            inside = last is not None and last.shown == _AUTHORISATION and last.end > end + MAX_HEADER_BYTES
            for found in self._in_piece(written, start, end, in_json=in_json, credentials=not inside):
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

    def _in_piece(
        self, written: bytes, start: int, end: int, *, in_json: bool, credentials: bool
    ) -> Iterator[Found]:
        found = self._secrets_in(written, start, end)
        if in_json:
            found = [_in_one_string(written, spans) for spans in found]
        if credentials and may_contain_credentials(written[start : end + MAX_HEADER_BYTES]):
            rank = len(self._index.secrets)
            kinds = [_of_kind(kind, written, start, end, in_json) for kind in (_HEADER, _BEARER)]
            for spans in (_fields(written, start, end), *kinds) if in_json else kinds:
                marked = _marked(spans, _AUTHORISATION, rank)
                found.append(_whole(written, marked) if in_json else marked)
        return found[0] if len(found) == 1 else heapq.merge(*found, key=_START)

    def _secrets_in(self, written: bytes, start: int, end: int) -> list[Iterator[Found]]:
        """Return iterators over the places of each secret's forms, and of beginnings cut by an ellipsis."""
        secrets = self._index.secrets
        found = [
            _marked(_matches(pattern, written, start, end), secret.placeholder, rank)
            for rank, secret in enumerate(secrets)
            for pattern in secret.forms.patterns
            if any(written.find(probe, start, end + pattern.longest) >= 0 for probe in pattern.probes)
        ]
        if _CUT in written[start : end + MAX_HEADER_BYTES]:
            heads: dict[bytes, list[bytes]] = {}
            for form in (form for secret in secrets for form in secret.forms.literals):
                if len(form) > MIN_BEGINNING_BYTES:
                    heads.setdefault(form[:MIN_BEGINNING_BYTES], []).append(form)
            found += [
                _marked(_beginnings(head, forms, written, start, end), CUT_PLACEHOLDER, len(secrets) + 1)
                for head, forms in heads.items()
            ]
        return found


def _marked(spans: Iterable[tuple[int, int]], shown: str, rank: int) -> Iterator[Found]:
    for start, end in spans:
        yield Found(start, end, shown, rank)


def _whole(written: bytes, spans: Iterable[Found]) -> Iterator[Found]:
    for found in spans:
        whole = extend_to_escapes(written, found)
        if whole is not None:
            yield whole


def _in_one_string(written: bytes, spans: Iterable[Found]) -> Iterator[Found]:
    for found in _whole(written, spans):
        if not crosses_strings(written, found.start, found.end):
            yield found


def _matches(
    pattern: secret_forms.SecretPattern, written: bytes, start: int, end: int
) -> Iterator[tuple[int, int]]:
    for match in pattern.regex.finditer(written, start, end + pattern.longest):
        if match.start() >= end:
            break
        yield match.span()


def _beginnings(
    head: bytes, forms: list[bytes], written: bytes, start: int, end: int
) -> Iterator[tuple[int, int]]:
    """Yield each span that ends at an ellipsis and begins one of `forms`, which all begin with `head`."""
    longest, at = max(map(len, forms)), start - 1
    while (at := written.find(head, at + 1, end + MIN_BEGINNING_BYTES - 1)) >= 0:
        cut = written.find(_CUT, at + MIN_BEGINNING_BYTES, at + longest + len(_CUT) - 1)
        if cut >= 0 and any(form.startswith(written[at:cut]) for form in forms):
            yield at, cut


def _replaced(written: bytes, found: Iterable[Found], shown: Callable[[Found], bytes]) -> bytes:
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


_NAME = b"(?:authorization|api-key)"
_SCHEME = b"(?:bearer|basic|token|digest|negotiate|apikey)"
_BLANK = rb"(?:[ \t]|\\{1,64}+t)"

# The characters of a credential, except digits. `_VALUE` also matches JSON escapes: `\/`, `\u002B`.
_SIGNS = rb"a-z._~+/=:;|!$%&*@#^-"
_VALUE = rb"(?:[0-9%b]|\\{1,64}+/|\\{1,64}+u[0-9a-f]{4})" % _SIGNS
_QUOTES = rb"""["'\\]{0,64}+"""

_HEADER = re.compile(
    rb"(?i)%(name)b%(quotes)b%(blank)b*+[:=]%(blank)b*+%(quotes)b(?:%(scheme)b%(blank)b++)?+"
    rb"(?!%(scheme)b(?:[\s\\\"']|\Z))(?=%(value)b{6})"
    % {b"name": _NAME, b"quotes": _QUOTES, b"blank": _BLANK, b"scheme": _SCHEME, b"value": _VALUE}
)
# A bearer token without a header's name. It must look like a token, because prose may have "bearer of".
_BEARER = re.compile(
    rb"(?i)bearer ++(?=%b{12})(?=sk-|(?:[%b]++|\\{1,64}+/)*+(?:[0-9]|\\{1,64}+u[0-9a-f]{4}))"
    % (_VALUE, _SIGNS)
)
# A header as a member of a JSON object. Its value must be a string; other values are not credentials.
_FIELD = re.compile(rb'(?i)"[a-z-]{0,40}%b"\s{0,8}:\s{0,8}"(?:%b +)?' % (_NAME, _SCHEME))

# Each match covers a step of a text: a single match over megabytes would block all other threads.
_VALUE_STEP = re.compile(rb"(?i)(?:[0-9%b]{1,4096}+|\\{1,64}+/|\\{1,64}+u[0-9a-f]{4}){1,64}+" % _SIGNS)
_TEXT_STEP = re.compile(rb'(?:[^"\\]{1,4096}+|\\.){1,64}+', re.DOTALL)
# Another value after the first one. Some schemes have several, such as `Signature=`.
_NEXT_VALUE = re.compile(rb"(?i),?+%b{1,64}+(?=%b{12})" % (_BLANK, _VALUE))
_SHORTEST = 6
MAX_HEADER_BYTES = 512  # the most from the start of a header's name to the first byte of its value


def may_contain_credentials(written: bytes) -> bool:
    """Return whether a text may contain a credential. A quick test: only its `False` is certain."""
    lowered = written.lower()
    return b"authorization" in lowered or b"api-key" in lowered or b"bearer " in lowered


def _fields(written: bytes, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of each credential in a field whose name begins in this piece."""
    at, limit = start, end + MAX_HEADER_BYTES
    while (found := _FIELD.search(written, at, limit)) and found.start() < end:
        value = found.end()
        at = _end_of_run(_TEXT_STEP, written, value)
        if at - value >= _SHORTEST:
            yield value, at


def _of_kind(
    kind: re.Pattern[bytes], written: bytes, start: int, end: int, in_json: bool
) -> Iterator[tuple[int, int]]:
    at, limit = start, end + MAX_HEADER_BYTES
    while (found := kind.search(written, at, limit)) and found.start() < end:
        at = value = found.end()
        if not (in_json and crosses_strings(written, found.start(), value)):
            at = _end_of_values(written, value)
            yield value, at


def _end_of_values(written: bytes, at: int) -> int:
    at = _end_of_run(_VALUE_STEP, written, at)
    while more := _NEXT_VALUE.match(written, at):
        at = _end_of_run(_VALUE_STEP, written, more.end())
    return at


def _end_of_run(step: re.Pattern[bytes], written: bytes, at: int) -> int:
    while more := step.match(written, at):
        at = more.end()
    return at


def crosses_strings(written: bytes, start: int, end: int) -> bool:
    """Return whether the span has an unescaped quote. `start` must not be in the middle of an escape."""
    at = start
    while (at := written.find(b'"', at, end)) >= 0:
        before = written[start:at]
        if (len(before) - len(before.rstrip(b"\\"))) % 2 == 0:
            return True
        at += 1
    return False


_HEADERS = tuple(tuple((char,) for char in name) for name in ("authorization", "api-key", "bearer "))
# Not `(...)*+`: before Python 3.11.5, such a group also consumes the repetition in which a lookahead fails.
_LINE = r"[^\n\\]*+(?>(?:\\(?!n)[^\n\\]*+)*)"
# A header or bearer token at the end of the text. Its value may begin or go on in the next piece.
_OPEN = re.compile(
    rf"""(?ia)(?:(?:authorization|api-key)["'\\]{{0,64}}+[ \t]*+(?:[:=]{_LINE})?|bearer ++[^\s"'\\]*+)\Z"""
)
_LABEL = re.compile("(?ia)authorization|api-key|bearer ")
_LONG = 4096  # a longer held-back text is searched only at a line's end, not for each piece


class TextPieces:
    """Regroups the pieces of a text: if a secret may begin at a piece's end, that end is held back."""

    def __init__(self, redaction: Redaction) -> None:
        self._redaction = redaction
        self._held = ""
        self._line: list[str] = []
        self._names = _BeginningMatcher(_HEADERS)
        self._secrets = _BeginningMatcher(
            spelling for secret in redaction.secrets for spelling in secret_forms.spellings_of(secret)
        )

    def feed(self, piece: str) -> str:
        """Add a piece. Return the text that can be redacted and shown now; it may be empty."""
        self._names.feed(piece.lower())
        self._secrets.feed(piece)
        if self._line:
            self._line.append(piece)
            if "\n" not in piece and "\\n" not in piece:
                return ""
            piece = "".join(self._line)
            self._line = []
        text = self._held + piece
        shown = self._safe_length(text)
        self._held = text[shown:]
        if len(self._held) > _LONG:
            self._line, self._held = [self._held], ""
        return text[:shown]

    def end(self) -> str:
        """Return the held-back text. If 6 or more characters at its end may begin a secret, replace them."""
        text = self._held + "".join(self._line)
        self._held, self._line = "", []
        shown = max(0, len(text) - self._secrets.longest)
        is_long = len(text[shown:].rstrip("\r\n")) >= MIN_BEGINNING_BYTES
        return f"{text[:shown]}{CUT_PLACEHOLDER}" if is_long else text

    def _safe_length(self, text: str) -> int:
        end = len(text) - max(self._names.longest, self._secrets.longest)
        # Search the last line only: `_OPEN` matches no line break, and trying it at each label of a long text
        # would take quadratic time.
        has_label = _LABEL.search(text) is not None
        line = max(text.rfind("\n"), text.rfind("\\n")) + 1 if has_label else 0
        for name in _LABEL.finditer(text, line) if has_label else ():
            if name.start() >= end:
                break
            if _OPEN.match(text, name.start()):
                end = name.start()
                break
        if end == len(text):
            return end
        reach = _PIECE + self._secrets.reach  # a secret around `end` is not expected to be longer
        first = max(0, end - reach)
        return first + self._redaction.safe_cut(text[first : max(0, end) + reach], max(0, end) - first)


class _BeginningMatcher:
    """Finds the longest suffix of a text that may be the beginning of one of the `spellings`."""

    def __init__(self, spellings: Iterable[secret_forms.Spelling]) -> None:
        self._spellings = tuple(spellings)
        longest = (sum(max(map(len, forms)) for forms in spelling) for spelling in self._spellings)
        self.reach = max(longest, default=0)
        self._firsts: dict[str, list[_State]] = {}
        for number, spelling in enumerate(self._spellings):
            for form in spelling[0]:
                self._firsts.setdefault(form[0], []).append((form, number, 1))
        self._states: dict[_State, int] = {}

    @property
    def longest(self) -> int:
        return max(self._states.values(), default=0)

    def feed(self, piece: str) -> None:
        if len(piece) > self.reach:
            self._states, piece = {}, piece[len(piece) - self.reach :]
        for char in piece:
            states: dict[_State, int] = {}
            for state, length in self._states.items():
                # Base64 and hexadecimal digits may be broken into lines, but not by endless empty lines.
                if char in "\r\n" and length < 16 * self.reach:
                    states[state] = length + 1
                if state[0][0] == char:
                    self._advance(states, state, length + 1)
            for state in self._firsts.get(char, ()):
                self._advance(states, state, 1)
            self._states = states

    def _advance(self, states: dict[_State, int], state: _State, length: int) -> None:
        """Add to `states` the states that can follow `state`. No state follows a secret's last character."""
        form, number, at = state
        rest, spelling = form[1:], self._spellings[number]
        if rest:
            states[rest, number, at] = max(length, states.get((rest, number, at), 0))
        elif at < len(spelling):
            for each in spelling[at]:
                states[each, number, at + 1] = max(length, states.get((each, number, at + 1), 0))


_State: TypeAlias = tuple[str, int, int]  # rest of a character's form, spelling's number, next position in it
