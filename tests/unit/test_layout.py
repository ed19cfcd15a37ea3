"""tests/unit mirrors src/grue: a file's tests are found by the name of the module."""

from pathlib import Path

from case_tables import each_case

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "tests" / "unit"
OF_THE_PROJECT = (
    "docs",
    "import_grue",
    "layout",
    "natural_mistakes",
    "packaging",
    "private_codes",
    "public_api",
    "requirements_table",
)
"""Tests of the package as a whole."""

FILES = sorted(path.relative_to(UNIT) for path in UNIT.rglob("test_*.py"))


def names_in(folder: Path) -> set[str]:
    """The names of a folder's modules and packages."""
    return {path.stem for path in folder.iterdir() if path.suffix == ".py" or path.is_dir()}


@each_case("file", FILES)
def test_a_test_file_has_the_name_of_its_module_and_perhaps_a_word_more(file: Path) -> None:
    name = file.stem.removeprefix("test_")
    if len(file.parts) == 1 and name in OF_THE_PROJECT:
        return
    source = ROOT if file.parts[0] == "tools" else ROOT / "src" / "grue"
    assert (source / file.parent).is_dir(), "there is no such package"
    modules = names_in(source / file.parent)
    assert any(name == module or name.startswith(f"{module}_") for module in modules), "no such module"


def test_the_skill_agent_stays_small() -> None:
    """All lines of its modules. What another host could use belongs to the core."""
    modules = (ROOT / "src" / "grue" / "hosts" / "skill_agent").glob("*.py")
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in modules) < 1800
