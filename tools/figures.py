"""Print the figures of the source tree: folders, import graph, sizes, and who names a message.

    python tools/figures.py                      all figures
    python tools/figures.py ReplyCut TextDelta   the same, with the modules that name these messages

Imports for type checkers only are not counted.
"""

import collections
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import grimp
from check_sizes import MODULE, measure

SOURCE = Path("src/grue")
MESSAGES = ("ReplyCut", "ToolDrifted", "McpDisabled")
LONG = 40

Imports = Mapping[str, set[str]]


def module_imports() -> Imports:
    """Return what each module imports of grue."""
    graph = grimp.build_graph("grue", exclude_type_checking_imports=True)
    return {name: set(graph.find_modules_directly_imported_by(name)) for name in graph.modules}


def folder_imports(imports: Imports) -> Imports:
    """Return what each folder, or module of the root, imports of the others."""
    found: dict[str, set[str]] = collections.defaultdict(set)
    for name, imported in imports.items():
        found[_folder(name)] |= {_folder(each) for each in imported} - {_folder(name)}
    del found["grue"]
    return found


def circles(imports: Imports) -> list[set[str]]:
    """Return the groups of modules, or folders, that import each other."""
    reached = {name: _reached(name, imports) for name in imports}
    groups = (frozenset(n for n in reached[name] if name in reached.get(n, ())) for name in imports)
    return [set(group) for group in {*groups} if len(group) > 1]


def outside_contracts() -> list[str]:
    """Return the folders, and the modules of the root, that no contract of import-linter names."""
    named = set(re.findall(r"grue\.(\w+)", str(_contracts())))
    there = {path.stem for path in SOURCE.glob("*.py")} | {path.parent.name for path in _folders()}
    return sorted(name for name in there - named if not name.startswith("__"))


def long_functions() -> Iterator[str]:
    """Yield the functions of more than `LONG` lines, without their docstrings."""
    for path in _modules():
        for size in measure(str(path), path.read_text()):
            if size.name != MODULE and size.rule == "lines" and size.amount > LONG:
                yield f"{path}:{size.line} {size.name}: {size.amount}"


def main() -> None:
    """Print the figures."""
    imports = module_imports()
    folders = folder_imports(imports)
    layers = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0][
        "layers"
    ]
    print(f"folders: {sum(1 for _ in _folders())}; layers: {len(layers)}; modules: {len(imports)}")
    print(f"folders and root modules in no contract: {', '.join(outside_contracts()) or 'none'}")
    arrows = sum(map(len, imports.values()))
    print(f"imports between modules: {arrows}; between folders: {sum(map(len, folders.values()))}")
    print(f"circles of modules: {circles(imports)}; of folders: {circles(folders)}")
    lines = collections.Counter[str]()
    for path in _modules():
        inside = path.relative_to(SOURCE).parts
        lines[inside[0] if len(inside) > 1 else "(root)"] += len(path.read_text().splitlines())
    print(f"lines: {lines.total()} ({', '.join(f'{name} {count}' for name, count in lines.most_common())})")
    found = sorted(long_functions())
    print(f"functions of more than {LONG} lines: {len(found)}", *found, sep="\n  ")
    for message in sys.argv[1:] or MESSAGES:
        texts = ((path, path.read_text()) for path in _modules())
        naming = [str(p.relative_to(SOURCE)) for p, text in texts if re.search(rf"\b{message}\b", text)]
        print(f"modules that name {message}: {len(naming)} ({', '.join(naming)})")


def _contracts() -> list[dict[str, Any]]:
    pyproject = tomllib.loads(Path("pyproject.toml").read_text())
    contracts: list[dict[str, Any]] = pyproject["tool"]["importlinter"]["contracts"]
    return contracts


def _folder(module: str) -> str:
    return module.split(".")[1] if "." in module else module


def _folders() -> Iterator[Path]:
    return SOURCE.glob("*/__init__.py")


def _modules() -> Iterator[Path]:
    return iter(sorted(SOURCE.rglob("*.py")))


def _reached(name: str, imports: Imports) -> set[str]:
    found: set[str] = set()
    waiting = [name]
    while waiting:
        new = imports.get(waiting.pop(), set()) - found
        found |= new
        waiting += new
    return found


if __name__ == "__main__":
    main()
