"""Check that a tag, the version and the changelog agree, and print the version's section of the changelog.

    python tools/release.py v0.2.0 > notes.md

The publishing workflow runs this first. The section `Unreleased` must be empty.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def notes_for(tag: str, *, version: str, changelog: str) -> str:
    """Return the changelog's section about the version that a tag names.

    Raises:
        ValueError: The tag is not that of `version`, `Unreleased` has lines, or `version` has none.
    """
    if tag != f"v{version}":
        raise ValueError(f"The tag is {tag}, but the version is {version}: the tag should be v{version}.")
    sections = dict(re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL))
    if sections.get("Unreleased", "").strip():
        raise ValueError(f"CHANGELOG.md has lines under Unreleased: move them to {version}.")
    if not sections.get(version, "").strip():
        raise ValueError(f"CHANGELOG.md says nothing of {version}.")
    return f"{sections[version].strip()}\n"


def _main(tag: str) -> None:
    version = re.findall(r'"(.+)"', (ROOT / "src/grue/runtime/version.py").read_text(encoding="utf-8"))[-1]
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    try:
        sys.stdout.write(notes_for(tag, version=version, changelog=changelog))
    except ValueError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    _main(sys.argv[1])
