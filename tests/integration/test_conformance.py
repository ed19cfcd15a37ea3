"""The official conformance suite: clients are tested with the session actor, servers with the mock server."""

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import conformance_client
import pytest
from real_servers import DEADLINE_S, installed

from grue.testing.leftovers import assert_nothing_left

pytestmark = pytest.mark.slow

pytest.importorskip("mcp", reason="MCP servers need the extra: pip install 'grue[mcp]'")

from grue.testing.mock_features import reference_server  # noqa: E402

SUITE = "@modelcontextprotocol/conformance"
CLIENT_LIMIT_MS = 20_000
CHECKS = {
    "initialize": {"mcp-client-initialization"},
    "tools_call": {"tool-add-numbers"},
    "elicitation-sep1034-client-defaults": {
        f"client-elicitation-sep1034-{kind}-default"
        for kind in ("string", "integer", "number", "enum", "boolean")
    },
    "sse-retry": {
        "client-sse-graceful-reconnect",
        "client-sse-retry-timing",
        "client-sse-last-event-id",
    },
}
"""What each scenario judges; a suite that judges nothing passes, too."""

LATE = {"client-sse-retry-timing": "WARNING"}
"""Reconnecting up to half a second late is acceptable by the suite's own words; a busy machine does."""


@pytest.fixture(scope="module")
def suite() -> list[str]:
    """The command line of the suite, on the Node that is installed beside it; skips where it is absent."""
    modules = installed("GRUE_CONFORMANCE", f"{SUITE} and node@22")
    node, script = modules / ".bin" / "node", modules / SUITE / "dist" / "index.js"
    assert script.is_file(), f"{SUITE} is not installed in {modules}"
    assert shutil.which(node), f"node@22 is not installed in {modules}"
    return [str(node), str(script)]


@pytest.mark.parametrize("scenario", CHECKS)
def test_the_session_conforms(suite: list[str], scenario: str, tmp_path: Path) -> None:
    client = shlex.join([sys.executable, str(conformance_client.__file__)])
    options = ["--scenario", scenario, "--timeout", str(CLIENT_LIMIT_MS), "--output-dir", str(tmp_path)]
    with assert_nothing_left():
        done = subprocess.run(
            [*suite, "client", "--command", client, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
    (checks,) = tmp_path.glob("*/checks.json")
    judged = {check["id"]: check["status"] for check in json.loads(checks.read_text())}
    short = {name: status for name, status in judged.items() if status not in ("SUCCESS", "INFO")}
    assert judged.keys() >= CHECKS[scenario], done.stdout
    assert short in ({}, LATE), done.stdout
    assert done.returncode == 0 or (short == LATE and "CLIENT EXITED" not in done.stdout), done.stdout


SERVER_SCENARIOS = 32
UNJUDGED = {"server-sse-polling"}
"""The suite's own checks of it are warnings or remarks, whatever a server does."""


def test_the_mock_server_conforms(suite: list[str], tmp_path: Path) -> None:
    with reference_server().serve_http() as url:
        done = subprocess.run(
            [*suite, "server", "--url", url, "--suite", "all", "--output-dir", str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=DEADLINE_S * 3,
            check=False,
        )
    scenarios = {path.parent.name: json.loads(path.read_text()) for path in tmp_path.glob("*/checks.json")}
    assert len(scenarios) == SERVER_SCENARIOS, done.stdout
    for name, checks in scenarios.items():
        judged = [check for check in checks if check["status"] != "INFO"]
        assert judged or any(each in name for each in UNJUDGED), f"{name} judges nothing"
        failed = [check for check in judged if check["status"] == "FAILURE"]
        assert not failed, f"{name}: {failed}"
    assert done.returncode == 0, done.stdout
