"""Whether two texts are the same, as far as one can tell once secrets were taken out of what they come of.

A recorded text was made of the secret, and the secret removed from it; a replayed one is made of what the
recorder left. They differ around a placeholder in three cases: the secret was a number, which has no quotes
until a placeholder stands for it; a full stop or a comma followed the secret, and was taken for its end; and
the text was cut to a length, in which the secret counts, or its placeholder.
"""

import re
from collections.abc import Iterator

_PLACEHOLDER = "[redacted:"
_QUOTED = re.compile(r'\\*"(\[redacted:[^\]"]*\])\\*"')
_FOLLOWED = re.compile(r"(\[redacted:[^\]\"]*\])[.,;:!?)]+")
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|(\[redacted:[^\]"]*\])', re.DOTALL)
_CUT = "… [cut: "


def same_redacted(one: str, other: str) -> bool:
    """Return whether two texts agree, or do up to where the first of them was cut."""
    first, second = _around_placeholders(one), _around_placeholders(other)
    if first == second:
        return True
    kept = min(first.find(_CUT), second.find(_CUT))
    if kept < 0:
        return False
    if first[:kept] == second[:kept]:
        return True
    # The cut may have gone through the secret, and what was left of it is none; or through the placeholder.
    halved = set(_placeholders(first)) ^ set(_placeholders(second))
    return any(first[:start] == second[:start] for start in halved if start <= kept)


def _around_placeholders(text: str) -> str:
    return _FOLLOWED.sub(r"\1", _QUOTED.sub(r"\1", text))


def _placeholders(text: str) -> Iterator[int]:
    """Yield where placeholders begin, one that was cut included."""
    yield from (match.start() for match in re.finditer(re.escape(_PLACEHOLDER), text))
    cut = text.find(_CUT)
    last = text.rfind(_PLACEHOLDER[0], 0, cut)
    if last >= 0 and _PLACEHOLDER.startswith(text[last:cut]):
        yield last


def quote_placeholders(arguments: str) -> str:
    """Return JSON text in which a placeholder that took a number's place is a text."""
    return _TOKEN.sub(lambda token: f'"{token.group(1)}"' if token.group(1) else token.group(), arguments)
