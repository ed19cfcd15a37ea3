"""Check for the MCP SDK without importing it, which is slow."""

import contextlib
import functools
import re
from importlib.machinery import PathFinder

from grue.errors import MissingDependencyError


@functools.cache
def require_mcp() -> None:
    """Raise `MissingDependencyError` unless the MCP SDK is installed and new enough, without importing it.

    Source: R14.4
    """
    from importlib import metadata  # imported here, because programs without MCP servers do not need it

    found = PathFinder.find_spec("mcp")
    if found is not None and found.submodule_search_locations is None:
        raise MissingDependencyError(f"{found.origin} hides the package mcp. Give the file another name.")
    version = ""
    with contextlib.suppress(metadata.PackageNotFoundError):
        version = metadata.version("mcp")
    if not version:
        raise MissingDependencyError(
            "MCP servers need the package mcp, which is not installed. Install it: pip install 'mcp>=2.3,<3'"
        )
    if tuple(int(number) for number in re.findall(r"\d+", version)[:2]) < (2, 3):
        raise MissingDependencyError(
            f"mcp {version} is installed, grue needs 2.3 or later. Upgrade it: pip install -U 'mcp>=2.3,<3'"
        )
