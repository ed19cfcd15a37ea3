"""Import a module's public names on first use. The names are listed only in the stub beside the module.

A stub has a line `from grue.a.module import Name as Name` for each name. No other line of a stub may begin
with `from`.
"""

import sys


def lazy_names(module: str, file: str) -> tuple[object, object, list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` for a module, given its `__name__` and its `__file__`."""
    with open(f"{file}i", encoding="utf-8") as stub:  # noqa: PTH123 - importing pathlib would take longer than the rest
        lines = [line.split() for line in stub if line.startswith("from ")]
    homes = {words[3]: words[1] for words in lines}

    def find(name: str) -> object:
        # Imported here to keep `import grue` short: grue cannot handle a Ctrl-C while it is imported.
        import importlib

        if name not in homes:
            elsewhere = _public_home(name) if name[:1].isupper() else None
            where = f"; it is in {elsewhere}: from {elsewhere} import {name}" if elsewhere else ""
            text = f"module {module!r} has no attribute {name!r}{where}"
            # In `from grue import X` raise an ImportError, because Python would replace an AttributeError by
            # an ImportError without our hint. Elsewhere `hasattr` needs an AttributeError.
            importing = sys._getframe(1).f_code.co_name == "_handle_fromlist"  # noqa: SLF001 - the only way to tell
            raise ImportError(text, name=module) if importing and elsewhere else AttributeError(text)
        try:
            home = importlib.import_module(homes[name])
        except AttributeError as error:  # else Python would say that grue has no such name
            raise ImportError(f"cannot import {homes[name]}: {error}", name=module) from error
        value = getattr(home, name, None) or importlib.import_module(f"{home.__name__}.{name}")
        setattr(sys.modules[module], name, value)
        return value

    return find, lambda: sorted(homes), sorted(homes)


def _public_home(name: str) -> str | None:
    import importlib

    for home in ("grue", "grue.errors", "grue.messages", "grue.hosting"):
        module = importlib.import_module(home)
        defined = getattr(vars(module).get(name), "__module__", None) == home
        if name in getattr(module, "__all__", (name,) if defined else ()):
            return home
    return None
