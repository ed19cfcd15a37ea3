"""Compare a recorded text with a replayed one, if secrets were replaced by placeholders.

The recorded text was computed with the secret, and the secret was replaced afterwards. The replayed text is
computed from data in which the secret was already replaced. The two differ around a placeholder in three
cases:
the secret was a number, which is not quoted, while its placeholder is; a full stop or a comma after the
secret was taken for its end; the text was cut to a length, which counts the secret in one and the placeholder
in the other.
"""

import re
from collections.abc import Iterator

_PLACEHOLDER = "[redacted:"
_QUOTED = re.compile(r'\\*"(\[redacted:[^\]"]*\])\\*"')
_FOLLOWED = re.compile(r"(\[redacted:[^\]\"]*\])[.,;:!?)]+")
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|(\[redacted:[^\]"]*\])', re.DOTALL)
_CUT = "… [cut: "


def same_redacted(one: str, other: str) -> bool:
    """Return whether two texts agree, at least up to the point where one of them was cut."""
    first, second = _around_placeholders(one), _around_placeholders(other)
    if first == second:
        return True
    kept = min(first.find(_CUT), second.find(_CUT))
    if kept < 0:
        return False
    if first[:kept] == second[:kept]:
        return True
    # The cut may have split the secret, whose rest is then not recognised as one, or the placeholder.
    halved = set(_placeholders(first)) ^ set(_placeholders(second))
    return any(first[:start] == second[:start] for start in halved if start <= kept)


def _around_placeholders(text: str) -> str:
    return _FOLLOWED.sub(r"\1", _QUOTED.sub(r"\1", text))


def _placeholders(text: str) -> Iterator[int]:
    """Yield the positions at which placeholders begin, including a truncated one."""
    yield from (match.start() for match in re.finditer(re.escape(_PLACEHOLDER), text))
    cut = text.find(_CUT)
    last = text.rfind(_PLACEHOLDER[0], 0, cut)
    if last >= 0 and _PLACEHOLDER.startswith(text[last:cut]):
        yield last


def quote_placeholders(arguments: str) -> str:
    """Return the JSON text with quotes around each placeholder that replaces a number."""
    return _TOKEN.sub(lambda token: f'"{token.group(1)}"' if token.group(1) else token.group(), arguments)
