"""tests/unit mirrors src/grue: a file's tests are found by the name of the module."""

import ast
import re
from functools import cache
from pathlib import Path
from typing import get_args

import pytest
from case_tables import each_case

from grue import messages as m
from grue.runtime.processes.limits import ProcessLimits
from grue.tracing import message_words
from grue.tracing.reading import known_kinds

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


@pytest.mark.slow
def test_no_two_classes_of_a_room_have_one_name() -> None:
    homes: dict[tuple[str, str], list[str]] = {}
    for module in sorted((ROOT / "src" / "grue").rglob("*.py")):
        for part in body_of(module):
            if isinstance(part, ast.ClassDef):
                homes.setdefault((room_of(module), part.name), []).append(module.name)
    assert {room_and_name: places for room_and_name, places in homes.items() if len(places) > 1} == {}


@pytest.mark.slow
def test_no_module_meets_two_classes_of_one_name() -> None:
    """A class of its own, and the public ones of the modules that it imports."""
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
        seen = {home: {each for each in classes[home] if home == name or each[0] != "_"} for home in met}
        for twice in {each for names in seen.values() for each in names}:
            found = {home for home in met if twice in seen[home]}
            if len(found) > 1:
                homes.setdefault(twice, set()).update(found)
    assert homes.keys() == SAME_NAME_WHERE_IMPORTED.keys(), homes


def modules_that_name(word: str) -> set[str]:
    """The modules that have the word as a string or as a part of an import, besides those of its own name."""
    source = ROOT / "src" / "grue"
    found = set()
    for path in source.rglob("*.py"):
        place, text = path.relative_to(source).as_posix(), path.read_bytes()
        if word.encode() not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            imported = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            if (isinstance(node, ast.Constant) and node.value == word) or word in imported.split("."):
                found.add(place)
    return {place for place in found if word not in place.removesuffix(".py").split("/")}


@pytest.mark.slow
def test_a_wire_format_is_added_in_three_places() -> None:
    """Its module, its row, and its dialect's module. The others say what OpenAI's own endpoints are."""
    rows = {"protocol/chat_wire/formats.py"}
    of_openai = {"protocol/chat_wire/profiles.py", "tracing/observers/otel_attributes.py"}
    assert modules_that_name("responses") == rows | of_openai


@pytest.mark.slow
def test_a_bundled_host_is_added_in_three_places() -> None:
    """Its package, its row, and its command, here `grue chat`; fleets play it by a work of their own."""
    places = {re.sub(r"^cli/.*", "cli", place) for place in modules_that_name("agent_loop")}
    assert places == {"hosts/__init__.py", "cli", "fleet/agent_loop_work.py"}


@pytest.mark.slow
def test_the_exit_time_of_a_server_is_named_where_it_is_set_and_used() -> None:
    """The limit with its default, what one server has of its own, the key of a file, and the waits."""
    source = ROOT / "src" / "grue"
    named = {
        path.name
        for path in source.rglob("*.py")
        if "exit_grace_s" in re.findall(r"\w+", path.read_text(encoding="utf-8"))
    }
    assert named == {
        "limits.py",
        "server_specs.py",
        "mcp_servers.py",
        "child_process.py",
        "manager_connection.py",
    }
    limits, guides = ProcessLimits(), ROOT / "docs" / "guides"
    settings = (guides / "configuration.md").read_text(encoding="utf-8")
    servers = (guides / "servers.md").read_text(encoding="utf-8")
    assert f"gets to exit, {limits.exit_grace_s:g} s by default" in settings
    steps = (
        f"before it gets SIGTERM (and {limits.term_grace_s:g} s later SIGKILL); {limits.exit_grace_s:g} s by"
    )
    assert f"{steps} default" in servers
    assert f"is cancelled, the process gets at most {limits.cancelled_grace_s:g} s for each step" in servers


def test_a_note_is_added_in_three_places() -> None:
    """Its class, its sender, and its words, without which readers would show its fields."""
    notes = {kind for base in (m.TurnNote, m.SessionNote, m.LlmNote) for kind in base.__subclasses__()} - set(
        get_args(m.TurnEvent)
    )
    assert len(notes) > 25
    tree = ast.parse((ROOT / "src" / "grue" / "messages.py").read_bytes())
    repeated = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert {kind.__name__ for kind in notes} & repeated == set()
    assert {*notes, m.CostUncounted, m.TurnResumed} <= set(known_kinds().values())


def test_each_kind_of_message_has_its_words_in_its_class_or_in_a_row() -> None:
    with_row = message_words._TABLE.keys()
    for kind in get_args(m.AnyMessage):
        assert (kind in with_row) != bool(kind.words), kind


def test_the_skill_agent_stays_small() -> None:
    """All lines of its modules, besides those that describe: types of actions, skills, facts."""
    describing = {"registry.py", "skills.py", "served_skills.py", "facts.py"}
    modules = (ROOT / "src" / "grue" / "hosts" / "skill_agent").glob("*.py")
    lines = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in modules}
    assert describing < lines.keys()
    assert sum(count for name, count in lines.items() if name not in describing) < 1800


@pytest.mark.slow
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
