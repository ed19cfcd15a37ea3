"""Public names that are imported on first use. They are listed once: in the stub beside the module.

Type checkers and editors read the stub by themselves. A line of it is `from grue.a.module import Name as
Name`.
"""

import sys


def lazy_names(module: str, file: str) -> tuple[object, object, list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` for a module whose stub lists its names.

    Args:
        module: The module's `__name__`.
        file: Its `__file__`; the stub has the same name and ends in `.pyi`.
    """
    with open(f"{file}i", encoding="utf-8") as stub:  # noqa: PTH123 - pathlib takes longer than all the rest
        lines = [line.split() for line in stub if line.startswith("from ")]
    homes = {words[3]: words[1] for words in lines}

    def find(name: str) -> object:
        # Here, because a Ctrl-C during `import grue` cannot be handled: each import widens the gap.
        import importlib

        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        home = importlib.import_module(homes[name])
        value = getattr(home, name, None) or importlib.import_module(f"{home.__name__}.{name}")
        setattr(sys.modules[module], name, value)
        return value

    return find, lambda: sorted(homes), sorted(homes)
