"""Removes secrets from texts about a server. A secret is known by its name, its place or its form."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from grue.runtime.secrets.redaction import Redaction
from grue.runtime.secrets.secret_forms import add_value, looks_secret, secrets_in

_URL_PASSWORD = re.compile(r"(?<=://)([^/\s:@]*:)[^/\s]*(?=@)")
_ASSIGNS = re.compile(r"""["']?\s{0,8}[=:]\s{0,8}["']?(?!//)""")
_NAME = re.compile(r"[A-Za-z][\w.-]*\Z")
_LONGEST_NAME = 201
_VALUE = re.compile(r"""(?:(?i:bearer|basic|token)\s+)?[^\s;,&"'}]+""")
_TOKEN = re.compile(  # of well-known services, and long words of letters and digits that are not paths
    r"\b(?:gh[opsur]_|github_pat_|glpat-|sk-|[rs]k_live_|xox[a-z]-|hf_|npm_|pypi-|AIza|AKIA|eyJ)[\w.-]{12,}"
    r"|(?<![\w/.+@-])(?=[^0-9]{0,63}[0-9])(?=[^A-Za-z]{0,63}[A-Za-z])[A-Za-z0-9_]{32,}(?![\w/.@-])"
)


class _Span(NamedTuple):
    name: str
    start: int
    end: int


class Redactor:
    """Replaces the secrets in `environments` (variables or headers) by placeholders with their names."""

    def __init__(self, *environments: Mapping[str, str]) -> None:
        self._redaction = Redaction(secrets_in(*environments))

    def text(self, text: str) -> str:
        """Return `text` with these secrets, and the passwords in its URLs, replaced."""
        return _URL_PASSWORD.sub(r"\1[redacted:password]", self._redaction.redact_text(text))

    def words(self, command: str, args: Sequence[str]) -> list[str]:
        """Return the words, redacted as by `text`; in arguments, also replace what looks like a secret."""
        shown = [self.text(command)]
        for before, arg in zip(("", *args), args, strict=False):
            parts, at = [], 0
            for name, start, end in _spans(before, arg):
                parts += [arg[at:start], f"[redacted:{name}]"]
                at = end
            shown.append(self.text("".join([*parts, arg[at:]])))
        return shown


def secrets_of_arguments(args: Sequence[str]) -> dict[str, str]:
    """Return what may be secret in a command's arguments, by the name of its placeholder."""
    # A secret has the name of its option or variable, or the name `password` or `token`. A whole argument
    # with a URL is named by its number, such as `argument 2`.
    found = {f"argument {number}": arg for number, arg in enumerate(args, 1) if "://" in arg}
    for before, arg in zip(("", *args), args, strict=False):
        for name, start, end in _spans(before, arg):
            scheme, _, token = arg[start:end].partition(" ")
            add_value(found, name, token if token and scheme.isalpha() else arg[start:end])
    return found


def _spans(before: str, arg: str) -> Iterator[_Span]:
    """Yield the places of secrets in `arg`, without overlap; `before` is the argument before `arg`."""
    if before.startswith("-") and "=" not in before and looks_secret(before):
        yield _Span(before.lstrip("-"), 0, len(arg))
        return
    found = [_Span("password", match.end(1), match.end()) for match in _URL_PASSWORD.finditer(arg)]
    found += [_Span("token", *match.span()) for match in _TOKEN.finditer(arg)]
    end = 0
    for assigns in _ASSIGNS.finditer(arg):
        # Search the `_LONGEST_NAME` characters before the sign for the name. One pattern for name and sign
        # would start anew at each letter of a long word, and take quadratic time.
        named = _NAME.search(arg, max(end, assigns.start() - _LONGEST_NAME), assigns.start())
        if named is None:
            continue
        end = assigns.end()
        value = _VALUE.match(arg, end)
        if value is not None and looks_secret(named[0]):
            found.append(_Span(named[0], *value.span()))
    at = 0
    for span in sorted(found, key=lambda span: (span.start, -span.end)):
        if span.start >= at:
            yield span
            at = span.end
