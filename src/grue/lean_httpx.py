"""httpx without its command line. Import httpx from here: `from grue.lean_httpx import httpx`.

`import httpx` also imports that package's command line, with click, rich and pygments, which takes half of
the time. If that import fails, httpx does without it. Here it is made to fail while httpx is imported for the
first time in a process. Afterwards `httpx.main` is imported when it is first used, so nothing is missing.
httpx2, the successor of httpx, does the same by itself.
"""

import sys
from collections.abc import Callable
from typing import Any

_COMMAND_LINE = "httpx._main"


def _without_command_line() -> None:
    if "httpx" in sys.modules:
        return
    # An import fails if the name stands for `None` here. A thread that is importing httpx already is not
    # disturbed: it gets its own entry, or httpx as it is without a command line.
    sys.modules.setdefault(_COMMAND_LINE, None)  # type: ignore[arg-type]  # as the import system defines it
    try:
        import httpx
    finally:
        if sys.modules.get(_COMMAND_LINE) is None:
            sys.modules.pop(_COMMAND_LINE, None)
    names = vars(httpx)
    if "__getattr__" not in names and _COMMAND_LINE not in sys.modules:
        names["__getattr__"] = _on_demand(names.pop("main"))


def _on_demand(without_dependencies: Callable[[], None]) -> Callable[[str], Any]:
    """Return the module's `__getattr__`, which is called for the names that a module does not have."""

    def attribute(name: str) -> Any:
        if name != "main":
            raise AttributeError(f"module 'httpx' has no attribute {name!r}")
        try:
            from httpx._main import main
        except ImportError:
            return without_dependencies
        return main

    return attribute


_without_command_line()

import httpx as httpx  # noqa: E402 - after the above; re-exported
