"""tools/mutants.toml: each row fits the code, so that its mutant can be tried."""

import tomllib
from pathlib import Path

from case_tables import each_case

ROOT = Path(__file__).resolve().parents[2]
ROWS = tomllib.loads((ROOT / "tools" / "mutants.toml").read_text(encoding="utf-8"))["mutant"]


@each_case("row", ROWS)
def test_each_row_has_its_text_once_in_the_code_and_a_test(row: dict[str, str]) -> None:
    code = (ROOT / "src" / "grue" / row["file"]).read_text(encoding="utf-8")
    assert (code.count(row["old"]), row["old"] != row["new"]) == (1, True), row["name"]
    path, _, name = row["test"].partition("::")
    assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), row["name"]


def test_no_name_stands_there_twice() -> None:
    names = [row["name"] for row in ROWS]
    assert sorted(set(names)) == sorted(names)
