"""A result of one check by `grue doctor`."""

from typing import Literal

from msgspec import Struct

Verdict = Literal["ok", "note", "open", "WRONG"]


class Finding(Struct, frozen=True):
    """The result of one check.

    Attributes:
        verdict: The result; `open` if the check could not decide.
        text: What was found; its further lines say what to do.
        lacking: The part that is not in order, such as "tools of files". The last line of the output names it
            after "Everything is in order, except for". Empty if there is no such part.
    """

    verdict: Verdict
    text: str
    lacking: str = ""
