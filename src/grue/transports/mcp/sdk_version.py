"""Check for the MCP SDK without importing it, which is slow."""

import contextlib
import functools
import re
import sys
from importlib.machinery import PathFinder
from pathlib import Path

from grue.errors import MissingDependencyError


@functools.cache
def require_mcp() -> None:
    """Raise `MissingDependencyError` unless the MCP SDK is installed and new enough, without importing it.

    Source: R14.4
    """
    found = PathFinder.find_spec("mcp")
    if found is not None and found.submodule_search_locations is None:
        raise MissingDependencyError(f"{found.origin} hides the package mcp. Give the file another name.")
    version = _version_by_folder() or _version_by_metadata()
    if not version:
        raise MissingDependencyError(
            "MCP servers need the package mcp, which is not installed. Install it: pip install 'mcp>=2.3,<3'"
        )
    if tuple(int(number) for number in re.findall(r"\d+", version)[:2]) < (2, 3):
        raise MissingDependencyError(
            f"mcp {version} is installed, grue needs 2.3 or later. Upgrade it: pip install -U 'mcp>=2.3,<3'"
        )


def _version_by_folder() -> str:
    """Return the version in the metadata folder's name; empty if none. `importlib.metadata` is slow."""
    for place in sys.path:
        with contextlib.suppress(OSError):  # this user may not read the folder
            for folder in Path(place).glob("mcp-*.dist-info"):
                return folder.name.removeprefix("mcp-").removesuffix(".dist-info")
    return ""


def _version_by_metadata() -> str:
    import importlib.metadata

    try:
        return importlib.metadata.version("mcp")
    except importlib.metadata.PackageNotFoundError:
        return ""
