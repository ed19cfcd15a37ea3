"""What counts as a secret, and the forms in which a secret can occur.

A secret can occur unchanged, or escaped for JSON (at any depth), a shell, a URL, HTML or a Python literal, or
encoded as base64 (alone or among other bytes) or hexadecimal, also with line breaks. This module makes:

- Patterns, for complete texts: regular expressions. Each has probes: every form contains at least one of
  them, so the expression is compiled only when a probe is found in a text.
- Literals, for texts that were cut off: the forms that known encoders produce, as fixed bytes.
- Spellings, for texts that arrive in pieces: the ways to write each character.
"""

from __future__ import annotations

import contextlib
import re
from base64 import b64decode, b64encode
from binascii import Error
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote, quote_plus, unquote

import msgspec

SHORTEST_ENCODED = 8  # fewest bytes of a secret that is searched for in base64 and hexadecimal
SHORTEST_LINE = 60  # fewest characters of the lines in which programs write base64 or hexadecimal digits


class SecretPattern(NamedTuple):
    """Matches one secret in several similar forms, such as its base64 encodings.

    Forms without line breaks contain the first of `probes`, forms with line breaks one of the others.
    """

    probes: tuple[bytes, ...]
    source: bytes  # a regular expression of linear time
    longest: int  # bytes of the longest form, unless it has very many escapes

    @property
    def regex(self) -> re.Pattern[bytes]:
        """The compiled regular expression."""
        return _compiled(self.source)


class SecretForms(NamedTuple):
    """The regular expressions and the fixed bytes that find one secret in its various forms."""

    patterns: tuple[SecretPattern, ...]
    literals: tuple[bytes, ...]


# For each character of a secret, the ways to write it. Any combination of them is a form.
Spelling = tuple[tuple[str, ...], ...]


@lru_cache(maxsize=256)
def spellings_of(secret: str) -> tuple[Spelling, ...]:
    """Return the spellings of a secret: its text and, if long enough, its base64 and hexadecimal forms."""
    escaped = tuple(_spelled(char) for char in secret)
    data = secret.encode()
    if len(data) < SHORTEST_ENCODED:
        return (escaped,)
    signs = {"+": ("+", "-", "%2B", "%2b"), "/": ("/", "_", "%2F", "%2f", r"\/")}
    encoded = [
        tuple(signs.get(char, (char,)) for char in core.replace("\n", "")) for core in _base64_cores(data)
    ]
    digits = tuple((digit, digit.upper()) for digit in data.hex())
    return (escaped, *encoded, digits)


@lru_cache(maxsize=512)
def _spelled(char: str) -> tuple[str, ...]:
    forms = _written_out(char)
    in_capitals = (form.upper().replace("U", "u") for form in forms if r"\u" in form)
    return tuple(dict.fromkeys([*forms, *in_capitals]))


@lru_cache(maxsize=256)
def forms_of(secret: str) -> SecretForms:
    """Return the patterns and byte strings by which a secret is found in texts."""
    source = _escaped(secret)
    patterns = [SecretPattern((_longest_run(secret),), source, 64 + 2 * len(source))]
    data = secret.encode()
    literals = _written_out(secret)
    if len(data) >= SHORTEST_ENCODED:
        for in_lines in _base64_cores(data):
            core = in_lines.replace("\n", "")
            patterns.append(SecretPattern(_probes(core), _base64(in_lines), 16 * len(core)))
            literals += [core, core.replace("+", "-").replace("/", "_"), quote(core, safe="")]
        for in_lines in (data.hex("\n"), data.hex("\n").upper()):
            digits, source = in_lines.replace("\n", ""), in_lines.replace("\n", _LINE_BREAK).encode()
            patterns.append(SecretPattern(_probes(digits), source, 16 * len(digits)))
            literals.append(digits)
    return SecretForms(tuple(patterns), tuple(dict.fromkeys(form.encode() for form in literals)))


def _probes(encoded: str) -> tuple[bytes, ...]:
    # Lines have at least `SHORTEST_LINE` characters, so a line break cuts at most one of these two halves.
    half = min(len(encoded), SHORTEST_LINE) // 2
    return tuple(map(_longest_run, (encoded, encoded[:half], encoded[half : 2 * half])))


def _longest_run(text: str) -> bytes:
    return max(_NEVER_ESCAPED.findall(text), key=len, default="").encode()


@lru_cache(maxsize=512)
def _compiled(source: bytes) -> re.Pattern[bytes]:
    return re.compile(source)


# The usual encoders do not escape these characters.
_NEVER_ESCAPED = re.compile("[A-Za-z0-9]+")
# Any line breaks between two groups of base64 or hexadecimal digits, perhaps escaped and followed by spaces.
_LINE_BREAK = r"(?:(?:[\r\n]|\\{1,64}+[rn])[ \t]*+)*+"
# The replacements of `html.escape`. Importing `html` would take about a millisecond.
_IN_HTML_TEXT = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
_IN_HTML_ATTRIBUTE = {**_IN_HTML_TEXT, **str.maketrans({'"': "&quot;", "'": "&#x27;"})}
_CONTROLS = {"\n": "n", "\r": "r", "\t": "t", "\b": "b", "\f": "f"}


def _escaped(secret: str) -> bytes:
    """Return a regular expression for the secret, in which all but letters and digits may be escaped.

    Each level of JSON in JSON doubles the backslashes, so any number of them may precede a character. Every
    repetition is bounded or of a single character, so matching takes linear time.
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
            # `escape` matches the backslashes before an escaped form. At the start of the pattern it matches
            # only one, because more would take quadratic time on a text full of backslashes. If the part
            # before this one consists of backslashes, it has matched them all, so `escape` matches none.
            escape = rb"\\" if first else b"" if after_backslashes else rb"\\+"
            may_escape = b"" if first or after_backslashes else rb"\\*"
            parts.append(_char(part, escape, may_escape))
        after_backslashes = part.startswith("\\")
    return b"".join(parts)


def _char(char: str, escape: bytes, may_escape: bytes) -> bytes:
    """Return a regular expression for a character: plain after `may_escape`, escaped, or `_replaced`."""
    raw = re.escape(char.encode())
    units = (rb"u(?i:%b)" % unit.encode() for unit in _utf16(char))
    by_bytes = (b"x(?i:%02x)" % byte for byte in char.encode())
    # The forms `\u0041` and `\x41`, each with its backslashes.
    ways = [escape + rb"\\+".join(units), escape + rb"\\+".join(by_bytes)]
    if ord(char) < 256:
        ways.append(escape + b"x(?i:%02x)" % ord(char))
    if char in _CONTROLS:
        ways.append(escape + _CONTROLS[char].encode())
    if char == "'":  # a shell has no escape for it inside '...': the text `it's` is written 'it'\''s'
        ways += [rb"'\\+'\\*'", rb"""'\\*"\\*'\\*"\\*'"""]
    return b"(?:%b)" % b"|".join([*ways, _replaced(char), may_escape + raw])


def _replaced(char: str) -> bytes:
    """Return a regular expression for a character's encodings in URLs, HTML and quoted-printable mails."""
    in_url = b"".join(b"(?:%%(?:25){0,8}|=)(?i:%02x)" % byte for byte in char.encode())
    name = _in_html(char)[1:-1].encode()
    named = b"|" + re.escape(name) + b";" if name and not name.startswith(b"#") else b""
    # The ampersand may itself have been escaped, up to 8 times.
    in_html = rb"&(?:amp;){0,8}(?:#0{0,6}%d;|#[xX]0{0,6}(?i:%x);%b)" % (ord(char), ord(char), named)
    return in_url + b"|" + in_html + (rb"|\+" if char == " " else b"")


def _base64_cores(data: bytes) -> list[str]:
    """Return the base64 digits of `data` after 0, 1 and 2 other bytes, each in lines of up to 4 digits.

    Digits that also depend on the bytes before or after `data` are left out.
    """
    cores = []
    for before, start in enumerate((0, 2, 3)):
        encoded = b64encode(b"\0" * before + data).decode()
        end = (before + len(data)) * 8 // 6
        groups = [encoded[max(start, at) : min(at + 4, end)] for at in range(0, end, 4)]
        cores.append("\n".join(groups))
    return cores


_IN_BASE64 = str.maketrans(
    {
        "+": r"(?:\\*\+|-|\\+u002[bB]|%(?:25){0,8}2[bB])",
        "/": r"(?:\\*/|_|\\+u002[fF]|%(?:25){0,8}2[fF])",
        "\n": _LINE_BREAK,
    }
)


def _base64(in_lines: str) -> bytes:
    """Return a regular expression for base64 in either alphabet, also escaped for JSON or a URL.

    Each line feed of `in_lines` stands for an optional line break.
    """
    chars = in_lines.translate(_IN_BASE64).encode()
    # The end of an encoded text: a character with only some bits of the secret, and padding.
    return chars + rb"(?:[A-Za-z0-9+/_-]?(?:=|%(?:25){0,8}3[dD]|\\+u003[dD]){1,2})?"


def _written_out(secret: str) -> list[str]:
    """Return the secret, then its forms in JSON, URLs, HTML, shell commands and other encodings."""
    forms = [secret]
    level = [_in_json(secret), _in_ascii_json(secret), *_in_json_of_others(secret)]
    for _ in range(2):
        forms += level
        level = list(dict.fromkeys(write(form) for form in level for write in (_in_json, _in_ascii_json)))
    forms += level[:4]
    in_url = [quote(secret, safe=""), quote(secret), quote_plus(secret)]
    forms += in_url + [re.sub("%..", lambda sign: sign[0].lower(), form) for form in in_url]
    forms += [quote(in_url[0], safe=""), _in_html(secret), secret.translate(_IN_HTML_TEXT)]
    forms += [_in_html(secret).replace("&quot;", "&#34;").replace("&#x27;", "&#39;")]
    forms += [secret.replace("'", "'\"'\"'"), secret.replace("'", r"'\''")]
    forms += [re.sub(r"([^\w@%+=:,./-])", r"\\\1", secret)]
    forms += [re.sub(r"[^A-Za-z0-9\x80-\U0010ffff]", r"\\\g<0>", secret)]
    forms += [repr(secret)[1:-1], repr(secret.encode())[2:-1], secret.replace("/", r"\/")]
    return list(dict.fromkeys(forms))


def _in_html(text: str) -> str:
    return text.translate(_IN_HTML_ATTRIBUTE)


def _in_json(text: str) -> str:
    return msgspec.json.encode(text).decode()[1:-1]


def _in_ascii_json(text: str) -> str:
    return "".join(char if char.isascii() else _surrogates(char) for char in _in_json(text))


def _in_json_of_others(text: str) -> list[str]:
    """Return the text as the JSON encoders of PHP, .NET and Go write it. They escape more than necessary."""
    plain, of_ascii = _in_json(text), _in_ascii_json(text)
    in_net = "".join(
        _surrogates(char).upper().replace("U", "u")
        if char in "\"&'+<>`" or not char.isascii()
        else _in_json(char)
        for char in text
    )
    in_go = [re.sub("[&<>]", lambda sign: _surrogates(sign[0]), form) for form in (plain, of_ascii)]
    return [plain.replace("/", r"\/"), of_ascii.replace("/", r"\/"), in_net, *in_go]


def _surrogates(char: str) -> str:
    return "".join(rf"\u{unit}" for unit in _utf16(char))


def _utf16(char: str) -> list[str]:
    units = char.encode("utf-16-be").hex()
    return [units[start : start + 4] for start in range(0, len(units), 4)]


MIN_CHARS = 12
MIN_PASSWORD_CHARS = 8  # a shorter one could also occur as a part of ordinary words
_MOST_NAMES = 1024  # how many results `looks_secret` caches; the keys are names, not values
_URL_PASSWORD = re.compile(r"(?<=://)[^/\s:@]*:([^/\s]+)@")
# In connection strings, such as `AccountName=a;AccountKey=...` of Azure, `host=h password=...` of PostgreSQL.
_PAIR = re.compile(r"(?i)\b(?:account_?key|shared_?access_?key|password|pwd)=(?:'([^']+)'|([^\s;&'\"]+))")
_BASIC = re.compile(r"(?i)basic +([A-Za-z0-9+/_-]+=*)")
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_SECRET_PARTS = re.compile(
    r"SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|APIKEY|ACCESSKEY|PRIVATEKEY|TOKENS?$"
)
_SECRET_WORDS = frozenset(
    ("AUTH", "AUTHORIZATION", "BEARER", "COOKIE", "JWT", "KEY", "KEYS", "PASS", "PAT", "PWD")
)
# A name that ends in one of these words, or is in `_NOT_SECRET`, is not a secret's name.
_PLACES = frozenset(("DIR", "DIRECTORY", "FD", "FILE", "FOLDER", "PATH", "PID", "SOCK", "SOCKET"))
_NOT_SECRET = frozenset(("GOOGLE_APPLICATION_CREDENTIALS", "GRUE_TOKENS", "OLDPWD", "PWD"))


def secrets_in(*environments: Mapping[str, str]) -> dict[str, str]:
    """Return the secrets in the host's environment, or a server's `env` and `headers`, by names to show.

    A value is a secret if it has at least 12 characters and its variable has a secret's name. Passwords in
    URLs, in connection strings and in `Basic` credentials are secrets if they have at least 8 characters.
    """
    found: dict[str, str] = {}
    for environment in environments:
        for name, value in environment.items():
            if len(value.strip()) >= MIN_CHARS and looks_secret(name):
                add_value(found, name, value.strip())
            for password in _passwords_in(value):
                add_value(found, f"{name} password", password)
    return found


def add_value(named: dict[str, str], name: str, value: str) -> None:
    """Add a value by its name, or as `NAME 2`, `NAME 3` and so on if that name has another value."""
    free, number = name, 1
    while named.setdefault(free, value) != value:
        number += 1
        free = f"{name} {number}"


def _passwords_in(value: str) -> Iterator[str]:
    # Every runner searches the whole environment, and `in` is faster than the regular expression.
    passwords = list(map(unquote, _URL_PASSWORD.findall(value))) if "://" in value else []
    if "=" in value:
        passwords += (quoted or plain for quoted, plain in _PAIR.findall(value))
    for credentials in _BASIC.findall(value) if " " in value else ():
        altchars = b"-_" if {"-", "_"} & set(credentials) else None
        with contextlib.suppress(Error, UnicodeDecodeError):
            passwords.append(b64decode(credentials, altchars=altchars).decode().partition(":")[2])
    return (password for password in passwords if len(password) >= MIN_PASSWORD_CHARS)


@lru_cache(maxsize=_MOST_NAMES)
def looks_secret(name: str) -> bool:
    """Return whether a variable of this name, such as `API_KEY` but not `API_KEY_FILE`, may hold a secret."""
    words = [word.upper() for word in _WORDS.findall(name)]
    if not words or words[-1] in _PLACES or name.upper() in _NOT_SECRET:
        return False
    return any(word in _SECRET_WORDS or _SECRET_PARTS.search(word) for word in words)
