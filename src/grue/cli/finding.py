"""A result of one check by `grue doctor`."""

from typing import Literal

from msgspec import Struct

Verdict = Literal["ok", "note", "open", "WRONG"]


class Finding(Struct, frozen=True):
    """The result of one check; the text's further lines say what to do. `open`: it could not be found out."""

    verdict: Verdict
    text: str
