"""Keep secrets out of the trace: known values however they are escaped, and what authorises a request.

A message is looked at as JSON, as it is about to be written. Two kinds of secrets are replaced by stable
placeholders: values that somebody named (`hide`), and, though nobody named them, the values of authorisation
headers and bearer tokens, in text, in JSON, and in JSON within a text. What holds none of them costs a few
searches for bytes, and is not copied.
"""

import re
from typing import Any, NamedTuple

import msgspec


class Redaction:
    """What must not leave the process, and what is shown instead."""

    def __init__(self) -> None:
        self._secrets: dict[str, _Secret] = {}
        self._encoder = msgspec.json.Encoder()

    def hide(self, name: str, value: str) -> None:
        """Replace `value` by a placeholder with `name` from now on.

        An empty value is no secret, and one that is not Unicode cannot be in a message.
        """
        if not value or not _is_unicode(value) or value in self._secrets:
            return
        placeholder = f"[redacted:{name}]".replace("\\", r"\\")
        known = {**self._secrets, value: _Secret(_probe(value), re.compile(_pattern(value)), placeholder)}
        # A secret that contains another one has to go first, or its remainder would stay. One assignment:
        # other threads may be looking for the old ones.
        self._secrets = dict(sorted(known.items(), key=lambda item: -len(item[0])))

    def finds(self, written: bytes) -> bool:
        """Say whether there may be something to replace in a message's JSON; cheap, and never too seldom."""
        for secret in self._secrets.values():
            if secret.probe in written:
                return True
        if _CUT.encode() in written and self._secrets:
            return True
        lowered = written.lower()
        return b"authorization" in lowered or b"bearer " in lowered or b"api-key" in lowered

    def text(self, written: bytes) -> bytes:
        """Return any JSON without secrets."""
        return self._redact(_TEXT, written) if self.finds(written) else written

    def apply(self, written: bytes, body: Any) -> tuple[bytes, Any]:
        """Return a message's JSON without secrets, and the message read back from it.

        Args:
            written: Its JSON.
            body: The message; where nothing has to be replaced, it is what is returned.
        """
        body_type = type(body)
        shown = self._redact(_TEXT_OR_NUMBER, written)
        if shown == written:
            return written, body
        try:
            return shown, msgspec.json.decode(shown, type=body_type)
        except msgspec.ValidationError:
            # A number that the message needs happens to have a secret's digits.
            shown = self._redact(_TEXT, written)
            return shown, msgspec.json.decode(shown, type=body_type)

    def _redact(self, tokens: re.Pattern[bytes], written: bytes) -> bytes:
        return _HEADER_FIELD.sub(rb"\1" + _PLACEHOLDER.encode(), tokens.sub(self._redact_token, written))

    def _redact_token(self, token: re.Match[bytes]) -> bytes:
        written = token.group()
        text = before = msgspec.json.decode(written) if written.startswith(b'"') else written.decode()
        for secret in self._secrets.values():
            text = secret.pattern.sub(secret.placeholder, text)
        if _CUT in text:
            text = self._without_beginnings(text)
        text = _HEADER.sub(_hide_header, text)
        text = _BEARER.sub(_hide_header, text)
        return written if text == before else self._encoder.encode(text)

    def _without_beginnings(self, text: str) -> str:
        """Replace what is left of a secret in front of the mark of a text that was cut."""
        head, *tails = text.split(_CUT)
        for tail in tails:
            kept = (_beginning_at_end(head, secret) for secret in self._secrets)
            longest = max(kept, default=0)
            if longest:
                head = f"{head[:-longest]}[redacted]"
            head = f"{head}{_CUT}{tail}"
        return head


_CUT = "\N{HORIZONTAL ELLIPSIS} [cut: "
"""How a text that was too long goes on where it ends: what was cut can be the end of a secret."""

_TELLING = 6
"""Beginnings shorter than this say nothing of a secret."""


def _beginning_at_end(text: str, secret: str) -> int:
    """Return the length of the longest beginning of a secret that the text ends with, escaped or not."""
    forms, level = [secret], secret
    for _ in range(2):
        level = msgspec.json.encode(level).decode()[1:-1]
        forms.append(level)
    lengths = (
        length
        for form in dict.fromkeys(forms)
        for length in range(len(form) - 1, _TELLING - 1, -1)
        if text.endswith(form[:length])
    )
    return max(lengths, default=0)


class _Secret(NamedTuple):
    """A value to look for.

    Attributes:
        probe: Bytes that are in every JSON text with the secret in it.
        pattern: The secret in a text, however often JSON has escaped it.
        placeholder: What stands in its place, as `re.sub` takes it.
    """

    probe: bytes
    pattern: re.Pattern[str]
    placeholder: str


_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*"')
_TEXT_OR_NUMBER = re.compile(_TEXT.pattern + rb"|-?[0-9][-+.eE0-9]*")
"""What of a JSON text can hold a secret; replaced token by token, so that what comes out is JSON again."""

_NAME = "(?:authorization|api-key)"
_SCHEME = "(?:bearer|basic|token|digest|negotiate|apikey)"
_PLACEHOLDER = "[redacted:authorization]"

# What a credential is made of, and how JSON writers escape that: a slash as `\/`, a plus sign as `\u002B`.
# Their number is bounded: matching has to take linear time on texts full of backslashes, too.
_VALUE = r"(?:[a-z0-9._~+/=:;|!$%&*@#^-]|\\{1,64}/|\\{1,64}u[0-9a-f]{4})"
_QUOTES = r"""["'\\]{0,64}"""

_HEADER = re.compile(
    rf"(?ia)(?P<before>{_NAME}{_QUOTES}[ \t]*[:=][ \t]*{_QUOTES}(?:{_SCHEME}[ \t]+)?)"
    rf"(?!{_SCHEME}(?:\s|$)){_VALUE}{{6,}}(?:,?[ \t]+{_VALUE}{{12,}})*"
)
_BEARER = re.compile(rf"(?ia)(?P<before>bearer +)(?=sk-|{_VALUE}*[0-9]){_VALUE}{{12,}}")
"""Without the header's name, only what looks like a token: prose may say 'bearer of' something."""

_HEADER_FIELD = re.compile(
    rf'(?i)("[a-z-]{{0,40}}{_NAME}":")(?!(?:{_SCHEME} )?\[redacted:)(?:[^"\\]|\\.){{6,}}(?=")'.encode()
)
"""A header in an object of the message itself, its value a text; values of other kinds are no credentials."""


def _hide_header(found: re.Match[str]) -> str:
    return found["before"] + _PLACEHOLDER


def _is_unicode(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


# Neither JSON nor any of its writers escapes these.
_NEVER_ESCAPED = re.compile(r"[A-Za-z0-9 _.~:,;!*()#$%@^|{}\[\]?-]+")
_CONTROLS = {"\n": "n", "\r": "r", "\t": "t", "\b": "b", "\f": "f"}


def _probe(secret: str) -> bytes:
    return max(_NEVER_ESCAPED.findall(secret), key=len, default="").encode()


def _pattern(secret: str) -> str:
    r"""Return a regular expression for `secret` in JSON within JSON, at any depth.

    Each level doubles the backslashes, so any number of them may stand where one can; a character may also
    stand as `\u` and its number, as writers do that keep to ASCII or think of HTML.
    """
    parts: list[str] = []
    after_backslashes = False
    for part in re.findall(r"\\+|[^\\]", secret):
        first = not parts
        if part.startswith("\\"):
            parts.append(rf"\\{{{len(part)}{'' if first else ','}}}")
        elif _NEVER_ESCAPED.fullmatch(part):
            parts.append(re.escape(part))
        else:
            # What begins with any number of backslashes takes the square of the time on a text full of them.
            # Those of the character before have taken in those of this one.
            escape = r"\\" if first else "" if after_backslashes else r"\\+"
            may_escape = "" if first or after_backslashes else r"\\*"
            control = f"|{escape}{_CONTROLS[part]}" if part in _CONTROLS else ""
            parts.append(f"(?:{may_escape}{re.escape(part)}|{escape}{_numbered(part)}{control})")
        after_backslashes = part.startswith("\\")
    return "".join(parts)


def _numbered(char: str) -> str:
    r"""Return a regular expression for what comes after the first backslash of a `\u` escape."""
    units = char.encode("utf-16-be").hex()
    numbers = [units[start : start + 4] for start in range(0, len(units), 4)]
    return r"\\+".join(f"u(?i:{number})" for number in numbers)
