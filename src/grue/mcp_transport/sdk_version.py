"""Check for the MCP SDK without importing it, which is slow."""

import functools
import importlib.metadata
import re

from grue.errors import MissingDependencyError


@functools.cache
def require_mcp() -> None:
    """Check that the MCP SDK is installed and new enough, without importing it.

    Raises:
        MissingDependencyError: It is not. The text has the command that installs it.

    Source: R14.4
    """
    try:
        version = importlib.metadata.version("mcp")
    except importlib.metadata.PackageNotFoundError:
        raise MissingDependencyError(
            "MCP servers need the package mcp, which is not installed. Install it: pip install 'grue[mcp]'"
        ) from None
    if tuple(int(number) for number in re.findall(r"\d+", version)[:2]) < (2, 3):
        raise MissingDependencyError(
            f"mcp {version} is installed, grue needs 2.3 or later. Upgrade it: pip install -U 'mcp>=2.3,<3'"
        )
