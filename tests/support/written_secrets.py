"""The forms in which programs may write a secret, such as JSON, URLs or base64."""

import base64
import html
import json
import shlex
from collections.abc import Callable, Mapping
from urllib.parse import quote, quote_plus, urlencode

FORMS: dict[str, Callable[[str], str]] = {
    "raw": str,
    "JSON": lambda secret: json.dumps(secret, ensure_ascii=False)[1:-1],
    "ASCII JSON": lambda secret: json.dumps(secret)[1:-1],
    "JSON in JSON": lambda secret: json.dumps(json.dumps(secret))[3:-3],
    "JSON in JSON in JSON": lambda secret: json.dumps(json.dumps(json.dumps(secret)))[7:-7],
    "PHP's JSON": lambda secret: json.dumps(secret)[1:-1].replace("/", "\\/"),
    ".NET's JSON": lambda secret: json.dumps(secret)[1:-1].replace("+", "\\u002B").replace("'", "\\u0027"),
    ".NET's JSON, all of it": lambda secret: "".join(
        json.dumps(c)[1:-1] if c.isascii() and c not in "\"&'+<>`" else in_capitals(c) for c in secret
    ),
    "Go's JSON": lambda secret: json.dumps(secret)[1:-1].replace("&", "\\u0026").replace("<", "\\u003c"),
    "URL": lambda secret: quote(secret, safe=""),
    "URL, lower case": lambda secret: lowered_escapes(quote(secret, safe="")),
    "URL path": quote,
    "form field": quote_plus,
    "query": lambda secret: urlencode({"key": secret})[4:],
    "URL in URL": lambda secret: quote(quote(secret, safe=""), safe=""),
    "HTML attribute": html.escape,
    "HTML text": lambda secret: html.escape(secret, quote=False),
    "HTML by number": lambda secret: (
        html.escape(secret).replace("&quot;", "&#34;").replace("&#x27;", "&#39;")
    ),
    "shell, quoted": lambda secret: shlex.quote(secret),
    "shell, escaped": lambda secret: "".join(
        c if c.isalnum() or not c.isascii() else f"\\{c}" for c in secret
    ),
    "Python": repr,
    "Python bytes": lambda secret: repr(secret.encode()),
    "base64": lambda secret: in_base64(secret),
    "base64 behind 1 byte": lambda secret: in_base64(f"x{secret}"),
    "base64 behind 2 bytes": lambda secret: in_base64(f"xy{secret}"),
    "base64 for URLs": lambda secret: base64.urlsafe_b64encode(f"a:{secret}:z".encode()).decode(),
    "base64 in JSON in a URL": lambda secret: quote(in_base64(f"user:{secret}"), safe=""),
    "Basic credentials": lambda secret: f"Basic {in_base64(f'user:{secret}')}",
    "hexadecimal": lambda secret: secret.encode().hex(),
    "hexadecimal, upper case": lambda secret: secret.encode().hex().upper(),
}

KEY = "sk-live-0123456789abcdef"
PASSWORD = "p\"w\\d/+ <&'>=%ü漢😀$1!x"
SECRETS = {"KEY": KEY, "PASSWORD": PASSWORD}


def in_capitals(char: str) -> str:
    units = char.encode("utf-16-be").hex().upper()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def in_base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def lowered_escapes(url: str) -> str:
    parts = url.split("%")
    return "%".join([parts[0], *(part[:2].lower() + part[2:] for part in parts[1:])])


def tells(text: str, secrets: Mapping[str, str] = SECRETS) -> list[str]:
    """Return which secrets a text contains, such as `KEY as base64`. A few end characters may be missing."""
    return [
        f"{name} as {form}"
        for name, secret in secrets.items()
        for form, write in FORMS.items()
        if write(secret).strip("='\"b")[4:-4] in text
    ]


def written_out(secrets: Mapping[str, str]) -> str:
    """Return a text with every secret in every form, one a line."""
    return "".join(f"it is {write(secret)} .\n" for secret in secrets.values() for write in FORMS.values())
