"""A result of one check by `grue doctor`."""

from typing import Literal

from msgspec import Struct

Verdict = Literal["ok", "note", "open", "WRONG"]


class Finding(Struct, frozen=True):
    """The result of one check.

    Attributes:
        verdict: The result; `open`: the check gave none.
        text: What was found; its further lines say what to do.
        lacking: What the last line of the output names as an exception, such as "tools of files"; empty:
            nothing.
    """

    verdict: Verdict
    text: str
    lacking: str = ""
