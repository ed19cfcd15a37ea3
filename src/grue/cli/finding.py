"""What `grue doctor` finds."""

from typing import Literal

from msgspec import Struct

Verdict = Literal["ok", "note", "WRONG"]


class Finding(Struct, frozen=True):
    """One thing that was looked at; the text's further lines say what to do."""

    verdict: Verdict
    text: str
