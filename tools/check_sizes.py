"""Check the sizes of functions and modules under src/grue and tests.

    python tools/check_sizes.py              print each breach; exit 1 if there is one
    python tools/check_sizes.py --longest    print the six longest functions and modules as well

The limits are in LIMITS. Exceptions are in tools/size_exceptions.txt, each with its reason. An exception
that is no longer needed is a breach too.
"""

import argparse
import ast
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

TREES = ("src/grue", "tests")
EXCEPTIONS = "tools/size_exceptions.txt"
MODULE = "<module>"
LONGEST = 6

# (is it a module?, rule) -> (limit, words for a size over the limit)
LIMITS = {
    (True, "lines"): (1200, "{} lines"),
    (False, "lines"): (80, "{} lines"),
    (False, "nesting"): (4, "nesting {}"),
}

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
NESTING = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.TryStar, ast.Match)
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


class Size(NamedTuple):
    """One measure of one function or module."""

    path: str
    line: int
    name: str
    rule: str
    amount: int

    @property
    def key(self) -> str:
        """The name of this measure in tools/size_exceptions.txt."""
        return f"{self.path}::{self.name}::{self.rule}"

    @property
    def limit(self) -> int:
        """The largest amount that is allowed."""
        return LIMITS[self.name == MODULE, self.rule][0]

    def __str__(self) -> str:
        wording = LIMITS[self.name == MODULE, self.rule][1].format(self.amount)
        return f"{self.path}:{self.line} {self.name}: {wording} (limit {self.limit})"


def measure(path: str, source: str) -> Iterator[Size]:
    """Yield every measure of the module with this source. `path` is for messages.

    Raises:
        SyntaxError: The source is not Python.
    """
    yield Size(path, 1, MODULE, "lines", len(source.splitlines()))
    for name, node in functions(ast.parse(source, path)):
        yield Size(path, node.lineno, name, "lines", function_lines(node))
        yield Size(path, node.lineno, name, "nesting", nesting(node))


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, FunctionNode]]:
    """Yield each function below `tree`: its qualified name, its node."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, FunctionNode):
            yield prefix + node.name, node
        inner = f"{prefix}{node.name}." if isinstance(node, FunctionNode | ast.ClassDef) else prefix
        yield from functions(node, inner)


def function_lines(node: FunctionNode) -> int:
    """Count the lines from `def` to the end, decorators and docstring left out."""
    docstring = 0 if ast.get_docstring(node) is None else _height(node.body[0])
    return _height(node) - docstring


def _height(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def nesting(node: ast.AST) -> int:
    """Return the depth of nested compound statements in a function.

    An `elif` is no deeper than its `if`, and a `match` with its cases is one level; functions and classes
    inside are measured by themselves.
    """
    deepest = 0
    for child in ast.iter_child_nodes(node):
        if isinstance(child, SCOPES):
            continue
        own = isinstance(child, NESTING) and not _is_elif(node, child)
        deepest = max(deepest, nesting(child) + own)
    return deepest


def _is_elif(parent: ast.AST, child: ast.AST) -> bool:
    # `elif` and `else: if` have the same syntax tree; only the column differs.
    return (
        isinstance(parent, ast.If)
        and isinstance(child, ast.If)
        and child in parent.orelse
        and child.col_offset == parent.col_offset
    )


def breaches(sizes: Iterable[Size], allowed: Iterable[str]) -> Iterator[str]:
    """Yield the sizes over their limit that are not in `allowed`, then the wrong lines of `allowed`."""
    excused: dict[str, int] = {}
    for number, line in enumerate(allowed, 1):
        entry, _, reason = (part.strip() for part in line.partition("#"))
        if not entry:
            continue
        if not reason:
            yield f"{EXCEPTIONS}:{number} {entry}: no reason given"
        if entry in excused:
            yield f"{EXCEPTIONS}:{number} {entry}: already on line {excused[entry]}"
        excused.setdefault(entry, number)
    over = [size for size in sizes if size.amount > size.limit]
    yield from (str(size) for size in over if size.key not in excused)
    needed = {size.key for size in over}
    for entry, number in excused.items():
        if entry not in needed:
            yield f"{EXCEPTIONS}:{number} {entry}: no longer needed"


def longest(sizes: Iterable[Size]) -> Iterator[str]:
    """Yield the longest functions, then the longest modules, a line each."""
    by_length = sorted((size for size in sizes if size.rule == "lines"), key=lambda size: -size.amount)
    for kind, is_module in (("functions", False), ("modules", True)):
        yield f"longest {kind}:"
        chosen = [size for size in by_length if (size.name == MODULE) is is_module][:LONGEST]
        yield from (f"{size.amount:6}  {size.path}:{size.line} {size.name}" for size in chosen)


def _read_sizes(root: Path) -> Iterator[Size]:
    for tree in TREES:
        for file in sorted((root / tree).rglob("*.py")):
            yield from measure(file.relative_to(root).as_posix(), file.read_text(encoding="utf-8"))


def main(arguments: list[str]) -> int:
    """Check the checkout at --root; return 0 if all is within limits, 1 if not, 2 on unreadable files."""
    parser = argparse.ArgumentParser(description="Check the sizes of functions and modules.")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1], help="the checkout")
    parser.add_argument("--longest", action="store_true", help="show the longest functions and modules")
    options = parser.parse_args(arguments)
    try:
        sizes = list(_read_sizes(options.root))
    except SyntaxError as error:
        print(f"{error.filename}:{error.lineno} cannot be parsed: {error.msg}")
        return 2
    if not sizes:
        print(f"no Python files under {' or '.join(TREES)} in {options.root}")
        return 2
    if options.longest:
        print(*longest(sizes), sep="\n")
    listed = options.root / EXCEPTIONS
    allowed = listed.read_text(encoding="utf-8").splitlines() if listed.is_file() else []
    found = list(breaches(sizes, allowed))
    for breach in found:
        print(breach)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
