"""Find out whether npx's cache of a server's package is incomplete, as after an installation that was killed.

npx installs the packages of a command in a folder of its own, named for a hash of their names. If it is
killed meanwhile, the folder stays as it is, and later starts fail with errors that do not name it. It is
looked at only after a server did not start.
"""

import hashlib
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePath

from grue.tool_sessions.server_specs import StdioServer

_HASH_DIGITS = 16
_NAMING = ("-p", "--package")
_LAST_WRITTEN = ".package-lock.json"
"""npm writes this file into `node_modules` when everything else is in place."""


def npx_cache_broken(server: StdioServer) -> str | None:
    """Return advice that names the broken cache folder, or `None` if there is none.

    Args:
        server: A server that has ended while it was started. While npx still runs, the folder may be
            incomplete because npx is filling it.
    """
    if PurePath(server.command).name != "npx":
        return None
    packages = list(_packages(server.args))
    folder = npx_folder(server, packages)
    if not packages or not folder.is_dir() or _is_complete(folder):
        return None
    shown = shlex.quote(str(folder))
    return (
        f"npx's cache of {', '.join(packages)} is not complete, as after an installation that was killed:"
        f" {folder}. Remove the folder and try again: rm -r {shown}"
    )


def npx_folder(server: StdioServer, packages: Iterable[str]) -> Path:
    """Return the folder into which npx installs these packages for a server."""
    return _cache(server) / "_npx" / _hash(packages)


def _is_complete(folder: Path) -> bool:
    return (folder / "node_modules" / _LAST_WRITTEN).is_file() and not (folder / "concurrency.lock").exists()


def _packages(args: tuple[str, ...]) -> Iterator[str]:
    """Yield the packages that npx installs: each `--package`, or else its first argument."""
    rest = iter(args)
    named = False
    for arg in rest:
        flag, equals, value = arg.partition("=")
        if flag in _NAMING:
            named = True
            yield value if equals else next(rest, "")
        elif not arg.startswith("-"):
            if not named:
                yield arg
            return


def _hash(packages: Iterable[str]) -> str:
    return hashlib.sha512("\n".join(sorted(packages)).encode()).hexdigest()[:_HASH_DIGITS]


def _cache(server: StdioServer) -> Path:
    environment = server.environment()
    named = environment.get("npm_config_cache")
    return Path(named) if named else Path(environment.get("HOME", "~")).expanduser() / ".npm"
