"""tests/unit mirrors src/grue: a file's tests are found by the name of the module."""

import ast
from functools import cache
from pathlib import Path

from case_tables import each_case

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "tests" / "unit"
OF_THE_PROJECT = (
    "docs",
    "editors",
    "import_grue",
    "layout",
    "mended_table",
    "mutants_table",
    "help",
    "natural_mistakes",
    "skill",
    "packaging",
    "private_codes",
    "public_api",
    "public_types",
    "requirements_table",
)
"""Tests of the package as a whole."""

A_FACT_OF_A_HOST = "a host's form of the core's fact has its tag, and so its name"
SAME_NAME_WHERE_IMPORTED = {
    "EpisodeStarted": A_FACT_OF_A_HOST,
    "EpisodeEnded": A_FACT_OF_A_HOST,
    "ToolCall": "Zork's client speaks with the words of the chat API",
}
"""Class names that a module can find in two of the modules that it imports, each with the reason."""

FILES = sorted(path.relative_to(UNIT) for path in UNIT.rglob("test_*.py"))


@cache
def body_of(module: Path) -> list[ast.stmt]:
    return ast.parse(module.read_bytes()).body


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


def room_of(module: Path) -> str:
    """The folder of a module; a host is a room of its own."""
    parts = module.relative_to(ROOT / "src" / "grue").parts[:-1]
    return "/".join(parts[: 2 if parts[:1] == ("hosts",) else 1]) or "(root)"


def test_no_two_classes_of_a_room_have_one_name() -> None:
    homes: dict[tuple[str, str], list[str]] = {}
    for module in sorted((ROOT / "src" / "grue").rglob("*.py")):
        for part in body_of(module):
            if isinstance(part, ast.ClassDef):
                homes.setdefault((room_of(module), part.name), []).append(module.name)
    assert {room_and_name: places for room_and_name, places in homes.items() if len(places) > 1} == {}


def test_no_module_meets_two_classes_of_one_name() -> None:
    """A class of its own, and those of the modules that it imports."""
    source = ROOT / "src"
    parts = {
        ".".join(path.relative_to(source).with_suffix("").parts): body_of(path)
        for path in sorted((source / "grue").rglob("*.py"))
    }
    classes = {
        name: {each.name for each in body if isinstance(each, ast.ClassDef)} for name, body in parts.items()
    }
    homes: dict[str, set[str]] = {}
    for name, body in parts.items():
        imports = [each for each in body if isinstance(each, ast.ImportFrom)]
        named = {f"{each.module}.{one.name}" for each in imports for one in each.names}
        met = [*{name, *named, *(str(each.module) for each in imports)} & classes.keys()]
        for twice in {each for home in met for each in classes[home]}:
            found = {home for home in met if twice in classes[home]}
            if len(found) > 1:
                homes.setdefault(twice, set()).update(found)
    assert homes.keys() == SAME_NAME_WHERE_IMPORTED.keys(), homes


def test_the_skill_agent_stays_small() -> None:
    """All lines of its modules. What another host could use belongs to the core."""
    modules = (ROOT / "src" / "grue" / "hosts" / "skill_agent").glob("*.py")
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in modules) < 1800


def test_what_is_absent_and_skips_a_test_is_named_with_the_way_to_get_it() -> None:
    told: dict[str, str] = {}
    named = (file for file in (ROOT / "tests").rglob("*.py") if b"importorskip" in file.read_bytes())
    for file in named:
        for call in (each for each in ast.walk(ast.parse(file.read_bytes())) if isinstance(each, ast.Call)):
            if isinstance(call.func, ast.Attribute) and call.func.attr == "importorskip":
                told[f"{file.name}:{call.lineno}"] = "".join(
                    ast.unparse(each.value) for each in call.keywords if each.arg == "reason"
                )
    assert len(told) > 20
    assert [place for place, reason in told.items() if "pip install" not in reason] == []
