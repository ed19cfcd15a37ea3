"""docs/mended.md: each row says what happened and of which kind it was, and names tests that exist."""

import re
from pathlib import Path

from case_tables import each_case

ROOT = Path(__file__).resolve().parents[2]
TABLE = (ROOT / "docs" / "mended.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in TABLE.splitlines()
    if line.startswith("| ") and not line.endswith("| test that failed |")
]
REFERENCE = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


@each_case("row", ROWS)
def test_each_row_names_a_test_that_exists(row: list[str]) -> None:
    what, kind, tests = row
    assert what
    assert kind
    assert "::" not in REFERENCE.sub("", tests), "a reference is not as it should be"
    named = REFERENCE.findall(tests)
    assert named or tests == "each of these tests at a load of 16"
    for path, name in named:
        assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), f"{path}::{name}"


def test_no_defect_stands_there_twice() -> None:
    assert len({what for what, *_ in ROWS if what != "the same"}) == len(ROWS) > 40
