"""Refuse a fleet that its own workers would start again.

A worker imports the program that started it, and so does the driver, if the program defines the work. If it
starts its fleet at the top of the file, without `if __name__ == "__main__"`, each import would start it once
more.
"""

import ast
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from grue.errors import FleetError

WORK_MODULE = "_grue_work_"  # the prefix of the name under which a work's file is imported as a module
_IMPORTED_AGAIN = ("__mp_main__", WORK_MODULE)
# Names by which a program may find out that a worker imports it.
_TELLING_APART = frozenset(
    {"__name__", "parent_process", "current_process", "environ", "getenv", "getpid", "getppid"}
)


def refuse_to_start_again(*, imports_main: bool) -> None:
    """Raise `FleetError` if the program would start its fleet again when workers or the driver import it."""
    main: Any = sys.modules["__main__"]
    for frame in _running_modules(inspect.currentframe()):
        file = frame.f_globals.get("__file__")
        if file is None:
            continue
        again = str(frame.f_globals.get("__name__", "")).startswith(_IMPORTED_AGAIN)
        imported = imports_main and frame.f_globals is vars(main) and not _is_left_out(main)
        if again or (imported and not _is_guarded(Path(file), frame.f_lineno)):
            raise FleetError(
                f"{file}, line {frame.f_lineno}: the program starts its fleet whenever it is imported, and"
                " each worker imports it. Put this line, and what it needs, under"
                ' `if __name__ == "__main__":`.'
            )


def _running_modules(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield the frames of the stack in which the top-level code of a module is running."""
    while frame is not None:
        if frame.f_code.co_name == "<module>":
            yield frame
        frame = frame.f_back


def _is_left_out(main: Any) -> bool:
    """Return whether the main program is a package's `__main__.py`, which workers do not import."""
    spec = getattr(main, "__spec__", None)
    return spec is not None and str(spec.name).endswith("__main__")


def _is_guarded(path: Path, line: int) -> bool:
    """Return whether an earlier `if` on a name in `_TELLING_APART` may keep `line` from running again."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return True
    before = (statement for statement in tree.body if statement.lineno <= line)
    tests = (node.test for statement in before for node in ast.walk(statement) if isinstance(node, ast.If))
    names = (getattr(node, "id", getattr(node, "attr", "")) for test in tests for node in ast.walk(test))
    return not _TELLING_APART.isdisjoint(names)
