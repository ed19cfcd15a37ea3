"""A page as a file: its template, its style and script, its security policy, and data that is safe in it.

Text from models, tools and games cannot run as code in a page. Each of three measures would suffice: the text
is data in a script element that browsers do not execute, and it cannot end that element; the script shows it
only as text; and the content security policy allows the page's own style and script, by their hashes, but no
other script, no form, and no text that becomes markup. It allows no request either. Only a page that is
served while it follows a trace may ask its own server.
"""

import base64
import hashlib
import html
import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import msgspec

from grue.errors import TraceError

_MARKED_WITHIN = 1000
_DATA = re.compile("<!--data-([a-z-]+)-->")
_PLACES = re.compile("<!--([a-z]+)-->")
"""Placeholders of a page. They are filled in one pass, so that inserted text is never taken for one."""


def page_parts(
    name: str, title: str, *, style: Sequence[str], scripts: Sequence[str], served: bool = False
) -> list[bytes]:
    """Return a page's text, cut at the places that hold its data.

    Args:
        name: Name of its template in `viewer_page/`.
        title: The page's title.
        style: Names of its style sheets, without suffix.
        scripts: Names of the parts of its script, in the order in which they are joined.
        served: The page may ask the server that it came from.
    """
    css = "\n".join(_part(f"{each}.css") for each in style)
    script = "\n".join(_part(f"{each}.js") for each in scripts)
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src '{_hash(script)}'",
            f"style-src '{_hash(css)}'",
            *(["img-src 'self'", "connect-src 'self'"] if served else ["img-src data:"]),
            "base-uri 'none'",
            "form-action 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    )
    parts = {
        "title": html.escape(title),
        "generator": f"grue {name}",
        "policy": policy,
        "style": css,
        "script": script,
    }
    template = _part("head.html") + _part(f"{name}.html")
    page = _PLACES.sub(lambda place: parts.get(place[1], place[0]), template)
    return [part.encode("utf-8", "replace") for part in _DATA.split(page)[::2]]


def _part(name: str) -> str:
    return resources.files("grue.tracing").joinpath("viewer_page", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def embedded(value: object) -> bytes:
    """Return JSON that is safe to embed in HTML and JavaScript.

    In JSON these characters occur only in strings, so each can be written as an escape.
    """
    written = msgspec.json.encode(value)
    for char, escape in _ESCAPES:
        written = written.replace(char, escape)
    return written


_ESCAPES = tuple((char.encode(), f"\\u{ord(char):04x}".encode()) for char in "<>&\u2028\u2029")


def refuse_foreign(target: Path, name: str) -> None:
    """Refuse to replace a file that is not a page of this template.

    Raises:
        TraceError: It is not, or cannot be read.
    """
    mark = f'<meta name="generator" content="grue {name}">'.encode()
    try:
        with target.open("rb") as file:
            is_ours = mark in file.read(_MARKED_WITHIN)
    except FileNotFoundError:
        return
    except OSError as error:
        raise TraceError(f"Cannot write the page {target}: {error.strerror}.") from error
    if not is_ours:
        raise TraceError(f"Cannot write the page {target}: a file that grue did not write has its name.")
