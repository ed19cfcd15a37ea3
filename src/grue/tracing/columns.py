"""Fit printable text into columns of a terminal, where some characters take two columns or none."""

from rich.cells import cell_len as cells
from rich.cells import set_cell_size

from grue.runtime.safe_text import ELLIPSIS

__all__ = ["cells", "cut", "pad"]


def cut(text: str, width: int) -> str:
    """Return the beginning of printable `text` that fits into `width` columns, with `…` at its end if cut."""
    if cells(text) <= width:
        return text
    return set_cell_size(text, width - 1).rstrip() + ELLIPSIS if width > 0 else ""


def pad(text: str, width: int) -> str:
    """Return printable `text`, padded with spaces at the end to `width` columns."""
    return set_cell_size(text, max(width, cells(text)))
