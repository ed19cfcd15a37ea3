"""Fixtures of every test that connects real parts."""

import pytest

from grue.loading import load


@pytest.fixture(scope="session", autouse=True)
def _slow_imports() -> None:
    """Import the libraries that a first turn needs, before any time limit of a test begins.

    The MCP SDK takes more than a second of CPU to import, on a busy machine ten seconds. The first test of a
    worker that had a time limit would pay for it.
    """
    for module in ("llm_transport.one_connection", "mcp_transport.sdk", "mcp_transport.sdk_http"):
        load(f"grue.{module}")
