"""The public names are those of `public_api.txt`, so that a change of them is seen and meant."""

import ast
import importlib
import importlib.util
import re
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from case_tables import each_case

import grue

ROOT = Path(__file__).resolve().parents[2]
SNAPSHOT = Path(__file__).with_name("public_api.txt")


def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("public_api", ROOT / "tools" / "public_api.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_public_names_are_those_of_the_snapshot() -> None:
    expected, found = SNAPSHOT.read_text().splitlines(), tool().public_api()
    gone, new = sorted({*expected} - {*found}), sorted({*found} - {*expected})
    assert not gone and not new, (  # noqa: PT018
        f"gone: {gone}; new: {new}. If this is meant, say so in CHANGELOG.md and run: "
        "python tools/public_api.py > tests/unit/public_api.txt"
    )


def test_a_name_is_in_one_public_module_and_there_are_few() -> None:
    names = [line.split()[1] for line in SNAPSHOT.read_text().splitlines()]
    assert sorted({name for name in names if names.count(name) > 1}) == []
    assert len(tool().public_names("")) <= 45
    assert len(names) <= 150


@each_case(
    "name, home",
    [
        ("TurnTimedOut", "grue.errors"),
        ("TextDelta", "grue.messages"),
        ("RunFolder", "grue.hosting"),
    ],
)
def test_an_import_from_the_wrong_module_names_the_right_one(name: str, home: str) -> None:
    told = f"module 'grue' has no attribute '{name}'; it is in {home}: from {home} import {name}$"
    with pytest.raises(ImportError, match=told):
        exec(f"from grue import {name}")
    with pytest.raises(AttributeError, match=told):
        getattr(grue, name)


def test_a_message_that_is_not_public_is_told_of_nobody() -> None:
    with pytest.raises(ImportError, match="cannot import name 'AnyMessage'"):
        exec("from grue import AnyMessage")
    with pytest.raises(AttributeError, match=r"has no attribute 'AnyMessage'$"):
        getattr(grue, "AnyMessage")  # noqa: B009 - the name of a class


@each_case("module", tool().PUBLIC)
def test_every_public_name_can_be_imported(module: str) -> None:
    loaded = importlib.import_module(f"grue.{module}".rstrip("."))
    for name in tool().public_names(module):
        assert hasattr(loaded, name), name


def test_hosts_are_held_to_the_public_modules() -> None:
    """Every module of grue is public, or forbidden to hosts, or holds hosts and what they play with."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (contract,) = (each for each in contracts if each["name"].startswith("Hosts use public modules"))
    assert contract["source_modules"] == ["grue.hosts"]
    forbidden = {name.removeprefix("grue.") for name in contract["forbidden_modules"]}
    source = ROOT / "src" / "grue"
    modules = {
        path.stem for path in source.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert modules - forbidden - set(tool().PUBLIC) == {"__init__", "__main__", "hosts"}


@pytest.mark.slow
def test_docs_and_examples_import_what_is_public() -> None:
    """Also what has a page of its own in the reference, or a guide: tests, fleets, bundled hosts, actors."""
    public = set(SNAPSHOT.read_text().splitlines())
    docs = ROOT / "docs"
    codes = [(path, path.read_text(encoding="utf-8")) for path in docs.rglob("*.py")]
    block = re.compile(r"^ *```python\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
    for path in (*docs.rglob("*.md"), ROOT / "README.md"):
        codes += [(path, textwrap.dedent(code)) for code in block.findall(path.read_text(encoding="utf-8"))]
    found, private = 0, []
    for path, code in codes:
        of_actors = path.name in ("two_actors.py", "runtime.md")
        for module, name in _imported(code):
            found += 1
            told = re.fullmatch(r"grue\.(testing(\.\w+)?|fleet|hosts\.\w+)", module)
            if f"{module} {name}" not in public and not told and not of_actors:
                private.append(f"{path.name}: {module} {name}")
    assert found > 100
    assert private == []


def _imported(code: str) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "grue":
            yield from ((str(node.module), each.name) for each in node.names)
