"""Print the public names of grue, a line each: `python tools/public_api.py > tests/unit/public_api.txt`.

The names are those of `__all__` in each public module, or its top-level names without an underscore. Decision
024 says which modules are public.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src" / "grue"

PUBLIC = (
    "",
    "actions",
    "connections",
    "errors",
    "facts",
    "messages",
    "models",
    "past",
    "sessions",
    "settings",
    "skills",
    "approvals",
    "tool_rules",
    "traces",
    "turn_request",
    "vocabulary",
)
"""The public modules below `grue`; the empty name is `grue` itself."""


def public_names(module: str) -> list[str]:
    """Return the public names of a module, sorted."""
    path = SOURCE / f"{module}.py"
    if not path.is_file():
        path = SOURCE / module / "__init__.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    defined = list(_defined(tree))
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(_named(target, "__all__") for target in node.targets):
            return sorted(ast.literal_eval(node.value))
    return sorted(name for name in defined if not name.startswith("_"))


def _defined(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.Assign(targets=targets):
                for target in targets:
                    names = target.elts if isinstance(target, ast.Tuple) else [target]
                    yield from (each.id for each in names if isinstance(each, ast.Name))


def _named(target: ast.expr, name: str) -> bool:
    return isinstance(target, ast.Name) and target.id == name


def public_api() -> list[str]:
    """Return every public name with its module, one line each."""
    return [
        f"{'.'.join(filter(None, ('grue', module)))} {name}"
        for module in PUBLIC
        for name in public_names(module)
    ]


if __name__ == "__main__":
    print("\n".join(public_api()))
