r"""The ways in which programs write down a secret, and how to find each of them in UTF-8 bytes.

A secret comes back as it was sent, or as a program has written it: escaped for JSON (at any depth), for a
shell, a URL, HTML or a Python literal; or encoded as base64, alone or amid other bytes, or as hexadecimal.

Three things are derived from a secret. A `SecretPattern` finds one family of forms: a probe, bytes that stand
in each form of the family, tells cheaply that there is none; the regular expression is compiled when a probe
has been found for the first time. The literals are the forms that writers are known to produce, for texts
that were cut. The spellings say for each place of a form what may stand there, for texts that are to go on.
"""

import html
import re
import shlex
from base64 import b64encode
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote, quote_plus

import msgspec

SHORTEST_ENCODED = 8
"""Bytes of the shortest secret that is looked for in base64 and hexadecimal: a shorter one may be chance."""


class SecretPattern(NamedTuple):
    """A family of forms of one secret.

    Attributes:
        probe: Bytes that each of them holds.
        source: A regular expression that matches each of them in linear time.
        longest: Bytes of the longest form that a search has to expect.
    """

    probe: bytes
    source: bytes
    longest: int

    @property
    def regex(self) -> re.Pattern[bytes]:
        """The compiled expression."""
        return _compiled(self.source)


class SecretForms(NamedTuple):
    """Everything that one secret is looked for by."""

    patterns: tuple[SecretPattern, ...]
    literals: tuple[bytes, ...]


Spelling = tuple[tuple[str, ...], ...]
"""Forms that differ in how their characters are written: for each one, what may stand there."""


@lru_cache(maxsize=256)
def spellings_of(secret: str) -> tuple[Spelling, ...]:
    """Return the forms of a secret, where one may begin as one writer has it and go on as another."""
    escaped = tuple(_spelled(char) for char in secret)
    data = secret.encode()
    if len(data) < SHORTEST_ENCODED:
        return (escaped,)
    signs = {"+": ("+", "-", "%2B", "%2b"), "/": ("/", "_", "%2F", "%2f", r"\/")}
    encoded = [tuple(signs.get(char, (char,)) for char in core) for core in _base64_cores(data)]
    digits = tuple((digit, digit.upper()) for digit in data.hex())
    return (escaped, *encoded, digits)


@lru_cache(maxsize=512)
def _spelled(char: str) -> tuple[str, ...]:
    forms = _written_out(char)
    return tuple(
        dict.fromkeys([*forms, *(form.upper().replace("U", "u") for form in forms if r"\u" in form)])
    )


@lru_cache(maxsize=256)
def forms_of(secret: str) -> SecretForms:
    """Return what to look for; kept, since every session of a server asks for the same."""
    source = _escaped(secret)
    patterns = [SecretPattern(_longest_run(secret), source, 64 + 2 * len(source))]
    data = secret.encode()
    literals = _written_out(secret)
    if len(data) >= SHORTEST_ENCODED:
        for core in _base64_cores(data):
            probe = max(re.findall("[A-Za-z0-9]+", core), key=len, default="").encode()
            patterns.append(SecretPattern(probe, _base64(core), 16 * len(core)))
            literals += [core, core.replace("+", "-").replace("/", "_"), quote(core, safe="")]
        for digits in (data.hex(), data.hex().upper()):
            patterns.append(SecretPattern(digits.encode(), digits.encode(), len(digits)))
            literals.append(digits)
    return SecretForms(tuple(patterns), tuple(dict.fromkeys(form.encode() for form in literals)))


@lru_cache(maxsize=512)
def _compiled(source: bytes) -> re.Pattern[bytes]:
    return re.compile(source)


# No writer escapes these, whatever for.
_NEVER_ESCAPED = re.compile("[A-Za-z0-9]+")
_CONTROLS = {"\n": "n", "\r": "r", "\t": "t", "\b": "b", "\f": "f"}


def _longest_run(secret: str) -> bytes:
    return max(_NEVER_ESCAPED.findall(secret), key=len, default="").encode()


def _escaped(secret: str) -> bytes:
    r"""Return a regular expression for the secret, raw or escaped in any way, character by character.

    Each level of JSON or of a shell doubles the backslashes, so any number of them may stand where one can.
    What is repeated is bounded, or is a single character: matching takes linear time and no memory.
    """
    parts: list[bytes] = []
    after_backslashes = False
    for part in re.findall(r"\\+|[^\\]", secret):
        first = not parts
        if part.startswith("\\"):
            many = b"" if first else b","
            parts.append(rb"(?:\\{%d%b}|(?:%b){%d})" % (len(part), many, _replaced("\\"), len(part)))
        elif _NEVER_ESCAPED.fullmatch(part):
            parts.append(re.escape(part.encode()))
        else:
            # What begins with any number of backslashes takes the square of the time on a text full of them.
            # Those of the character before have taken in those of this one.
            escape = rb"\\" if first else b"" if after_backslashes else rb"\\+"
            may_escape = b"" if first or after_backslashes else rb"\\*"
            parts.append(_char(part, escape, may_escape))
        after_backslashes = part.startswith("\\")
    return b"".join(parts)


def _char(char: str, escape: bytes, may_escape: bytes) -> bytes:
    """Return a regular expression for one character, with the backslashes that may stand before it."""
    raw = re.escape(char.encode())
    ways = [escape + _numbered(char), escape + _by_bytes(char)]
    if ord(char) < 256:
        ways.append(escape + b"x(?i:%02x)" % ord(char))
    if char in _CONTROLS:
        ways.append(escape + _CONTROLS[char].encode())
    if char == "'":  # a shell ends the quotes, writes one, and begins them anew
        ways += [rb"'\\+'\\*'", rb"""'\\*"\\*'\\*"\\*'"""]
    return b"(?:%b)" % b"|".join([*ways, _replaced(char), may_escape + raw])


def _replaced(char: str) -> bytes:
    """Return a regular expression for a character in a URL, a mail or HTML: what stands in its place."""
    in_url = b"".join(b"(?:%%(?:25){0,8}|=)(?i:%02x)" % byte for byte in char.encode())
    name = html.escape(char)[1:-1].encode()
    named = b"|" + re.escape(name) + b";" if name and not name.startswith(b"#") else b""
    # `&amp;` for an ampersand may itself have been escaped.
    in_html = rb"&(?:amp;){0,8}(?:#0{0,6}%d;|#[xX]0{0,6}(?i:%x);%b)" % (ord(char), ord(char), named)
    return in_url + b"|" + in_html + (rb"|\+" if char == " " else b"")


def _numbered(char: str) -> bytes:
    r"""Return a regular expression for what comes after the first backslash of a `\u` escape."""
    units = char.encode("utf-16-be").hex()
    numbers = [units[start : start + 4] for start in range(0, len(units), 4)]
    return rb"\\+".join(b"u(?i:%b)" % number.encode() for number in numbers)


def _by_bytes(char: str) -> bytes:
    r"""Return the same for a `\x` escape of each byte."""
    return rb"\\+".join(b"x(?i:%02x)" % byte for byte in char.encode())


def _base64_cores(data: bytes) -> list[str]:
    """Return what stands in base64 for `data` behind 0, 1 and 2 other bytes, whatever those are."""
    cores = []
    for before in range(3):
        encoded = b64encode(b"\0" * before + data).decode()
        cores.append(encoded[(0, 2, 3)[before] : (before + len(data)) * 8 // 6])
    return cores


def _base64(core: str) -> bytes:
    """Return a regular expression for base64 in either alphabet, and escaped for JSON or a URL.

    A last character that only part of the secret has gone into is taken along, and the padding.
    """
    signs = {
        "+": rb"(?:\\*\+|-|\\+u002[bB]|%(?:25){0,8}2[bB])",
        "/": rb"(?:\\*/|_|\\+u002[fF]|%(?:25){0,8}2[fF])",
    }
    chars = b"".join(signs.get(char, char.encode()) for char in core)
    return chars + rb"(?:[A-Za-z0-9+/_-]?(?:=|%(?:25){0,8}3[dD]|\\+u003[dD]){1,2})?"


def _written_out(secret: str) -> list[str]:
    """Return the forms that writers are known to produce, the secret itself first."""
    forms = [secret]
    level = [_in_json(secret), _in_ascii_json(secret), *_in_json_of_others(secret)]
    for _ in range(2):
        forms += level
        level = list(dict.fromkeys(write(form) for form in level for write in (_in_json, _in_ascii_json)))
    forms += level[:4]
    in_url = [quote(secret, safe=""), quote(secret), quote_plus(secret)]
    forms += in_url + [re.sub("%..", lambda sign: sign[0].lower(), form) for form in in_url]
    forms += [quote(in_url[0], safe=""), html.escape(secret), html.escape(secret, quote=False)]
    forms += [html.escape(secret).replace("&quot;", "&#34;").replace("&#x27;", "&#39;")]
    forms += [shlex.quote(secret)[1:-1] if shlex.quote(secret) != secret else secret]
    forms += [secret.replace("'", r"'\''"), re.sub(r"([^\w@%+=:,./-])", r"\\\1", secret)]
    forms += [re.sub(r"(?a)([^\W_]|[^\x00-\x7f])|(.)", _after_backslash, secret, flags=re.DOTALL)]
    forms += [repr(secret)[1:-1], repr(secret.encode())[2:-1], secret.replace("/", r"\/")]
    return list(dict.fromkeys(forms))


def _after_backslash(char: re.Match[str]) -> str:
    return char[1] or f"\\{char[2]}"


def _in_json(text: str) -> str:
    return msgspec.json.encode(text).decode()[1:-1]


def _in_ascii_json(text: str) -> str:
    return "".join(char if char.isascii() else _surrogates(char) for char in _in_json(text))


def _in_json_of_others(text: str) -> list[str]:
    """Return the text as PHP, .NET and Go write it, which escape more than they have to."""
    plain, of_ascii = _in_json(text), _in_ascii_json(text)
    in_net = "".join(
        _surrogates(char).upper().replace("U", "u") if char in "&'+<>`" else char for char in of_ascii
    )
    in_go = "".join(_surrogates(char) if char in "&<>" else char for char in plain)
    in_go_ascii = "".join(_surrogates(char) if char in "&<>" else char for char in of_ascii)
    return [plain.replace("/", r"\/"), of_ascii.replace("/", r"\/"), in_net, in_go, in_go_ascii]


def _surrogates(char: str) -> str:
    units = char.encode("utf-16-be").hex()
    return "".join(rf"\u{units[start : start + 4]}" for start in range(0, len(units), 4))
