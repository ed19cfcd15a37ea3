"""The documents: code blocks that Python can read, commands that exist, and headings that are headings."""

import ast
import re
from pathlib import Path

from case_tables import each_case

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("docs/**/*.md"), *ROOT.glob("*.md"), *ROOT.glob("benchmarks/*.md")])
_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_LONGEST_HEADING = 80


def _blocks(page: Path, language: str) -> list[str]:
    found = []
    for indent, name, text in _BLOCK.findall(page.read_text(encoding="utf-8")):
        if name == language:
            found.append("".join(line.removeprefix(indent) for line in text.splitlines(keepends=True)))
    return found


@each_case("page", PAGES)
def test_every_python_block_can_be_read(page: Path) -> None:
    for block in _blocks(page, "python"):
        tree = ast.parse(block)
        assert tree.body, f"a block without code in {page.name}:\n{block}"


@each_case("page", PAGES)
def test_each_line_of_a_block_holds_one_command(page: Path) -> None:
    blocks = _blocks(page, "") + _blocks(page, "console") + _blocks(page, "sh")
    for line in "\n".join(blocks).splitlines():
        comment = line.partition(" # ")[2]
        assert " grue " not in comment, f"two commands on one line of {page.name}: {line}"


@each_case("page", PAGES)
def test_headings_stand_on_lines_of_their_own(page: Path) -> None:
    prose = _BLOCK.sub("", page.read_text(encoding="utf-8"))
    for line in prose.splitlines():
        if line.startswith("#"):
            assert len(line) <= _LONGEST_HEADING, (
                f"{page.name}: a paragraph follows on a heading's line: {line}"
            )
        assert " ## " not in line, f"{page.name}: a heading inside a line: {line}"


@each_case("page", PAGES)
def test_links_lead_somewhere(page: Path) -> None:
    """`make docs` checks the same in the built site."""
    prose = _BLOCK.sub("", page.read_text(encoding="utf-8"))
    for link in re.findall(r"\]\((?!https?:|mailto:)([^)\s]+)\)", prose):
        path, _, place = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if target.name == "example.html":
            continue  # a page that is made when the site is built
        assert target.exists(), f"{page.name} refers to {link}"
        if place and target.suffix == ".md":
            headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            assert place in {_anchor(heading) for heading in headings}, f"{page.name} refers to {link}"


def _anchor(heading: str) -> str:
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip())
