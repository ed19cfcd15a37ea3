"""Print the public names of grue, a line each: `python tools/public_api.py > tests/unit/public_api.txt`.

The names come from the stub of each public module; without a stub, from its `__all__`; without that, they are
its top-level names without an underscore. Decision 024 says which modules are public.
"""

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src" / "grue"

PUBLIC = ("", "errors", "hosting", "messages")
"""The public modules below `grue`; the empty name is `grue` itself."""


def public_names(module: str) -> list[str]:
    """Return the public names of a module, sorted, without those that `grue` itself exports."""
    path = SOURCE / f"{module or '__init__'}.py"
    stub = path.with_suffix(".pyi")
    if stub.exists():
        lines = stub.read_text(encoding="utf-8").splitlines()
        return sorted(line.split()[-1] for line in lines if line.startswith("from "))
    theirs = (SOURCE / "__init__.pyi").read_text(encoding="utf-8")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return sorted(
        name
        for name in _listed(tree.body) or _defined(tree.body)
        if not name.startswith("_") and f"from grue.{module} import {name} " not in theirs
    )


def _listed(nodes: Iterable[ast.stmt]) -> list[str]:
    """Return the names in `__all__`; an empty list if there is no `__all__`."""
    for node in nodes:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return []


def _defined(nodes: Iterable[ast.stmt]) -> Iterator[str]:
    for node in nodes:
        match node:
            case ast.If(body=inner):
                yield from _defined(inner)
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.Assign(targets=targets):
                for target in targets:
                    names = target.elts if isinstance(target, ast.Tuple) else [target]
                    yield from (each.id for each in names if isinstance(each, ast.Name))


def public_api() -> list[str]:
    """Return every public name with its module, one line each."""
    return [
        f"{'.'.join(filter(None, ('grue', module)))} {name}"
        for module in PUBLIC
        for name in public_names(module)
    ]


if __name__ == "__main__":
    print("\n".join(public_api()))
