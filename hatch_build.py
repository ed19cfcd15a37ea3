"""What a package index shows of the README: a page there cannot reach the repository's files.

Pictures that lie in the repository are left out, and links into it become plain text. An absolute address
would need a host, and there is none yet. Whoever reads the page can install grue from the index.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_PICTURE = re.compile(r"^!\[[^\]]*\]\((?!https?:)[^)]*\)\n+", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]+)\]\((?!https?:)[^)]*\)")
_INSTALL = re.compile(r"grue is not on a package index yet: `pip install '\./grue\[mcp\]'`\s+installs[^.]*\.")


def for_an_index(readme: str) -> str:
    """Return the README without references to files of the repository and to a checkout."""
    installed = _INSTALL.sub("`pip install 'grue[mcp]'` installs grue.", readme)
    return _LINK.sub(r"\1", _PICTURE.sub("", installed))


class ReadmeHook(MetadataHookInterface):
    """Set the project's description."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Read README.md beside this file."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": for_an_index(text)}
