"""A result of one check by `grue doctor`."""

from typing import Literal

from msgspec import Struct

Verdict = Literal["ok", "note", "open", "WRONG"]


class Finding(Struct, frozen=True):
    """The result of one check.

    Attributes:
        verdict: `open`: it could not be found out.
        text: Its further lines say what to do.
        lacking: What is not as it should be though nothing is wrong, such as "tools of files".
    """

    verdict: Verdict
    text: str
    lacking: str = ""
