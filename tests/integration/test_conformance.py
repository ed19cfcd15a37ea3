"""The official conformance suite: clients are tested with the session actor, servers with the mock server."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import conformance_client
import pytest
from commands import forked
from real_servers import installed

from grue.testing.leftovers import assert_nothing_left

pytestmark = pytest.mark.slow

pytest.importorskip("mcp", reason="MCP servers need the extra: pip install 'grue[mcp]'")

from grue.testing.mock_features import reference_server  # noqa: E402

SUITE = "@modelcontextprotocol/conformance"
NEXT_SUITE = "conformance-next"
"""The name under which the suite's newest prerelease is installed."""

SUITE_S = 240.0
"""The time limit of one run of the suite. It only catches a hang: a busy machine is ten times slower."""

CLIENT_LIMIT_MS = 200_000
"""How long the suite waits for the client, likewise."""

AUTHORIZATION = (
    *(f"metadata-{kind}" for kind in ("default", "var1", "var2", "var3")),
    "basic-cimd",
    "scope-from-www-authenticate",
    "scope-from-scopes-supported",
    "scope-omitted-when-undefined",
    "scope-step-up",
    "scope-retry-limit",
    *(f"token-endpoint-auth-{method}" for method in ("basic", "post", "none")),
    "pre-registration",
    "2025-03-26-oauth-endpoint-fallback",
    "resource-mismatch",
    "offline-access-scope",
    "offline-access-not-supported",
    "client-credentials-jwt",
    "client-credentials-basic",
    "cross-app-access-complete-flow",
)
"""The scenarios `auth/*` that pass. One is left out, and `NOT_PASSED` says why."""

NOT_PASSED = {
    "2025-03-26-oauth-metadata-backcompat": "the SDK refuses metadata whose issuer is not the expected one"
    " (RFC 8414), and the scenario serves such metadata",
}

NEXT = (
    "auth/authorization-server-migration",
    *(f"auth/iss-{kind}" for kind in ("supported", "not-advertised", "supported-missing")),
    *(f"auth/iss-{kind}" for kind in ("wrong-issuer", "unexpected", "normalized")),
    "auth/metadata-issuer-mismatch",
    "auth/enterprise-managed-authorization",
    "sep-2322-client-request-state",
    "http-custom-headers",
    "http-invalid-tool-headers",
    "json-schema-ref-no-deref",
    "json-schema-2020-12-preservation",
    *(f"sep-2640-client-{kind}" for kind in ("no-prefetch", "verify-digest", "verify-size")),
    "sep-2640-client-verify-frontmatter",
)
"""The scenarios that the suite's newest prerelease has in addition, and that pass."""

NEXT_NOT_PASSED = {
    "request-metadata": "grue tries the handshake first, which has no metadata, so that servers of older"
    " revisions answer at once",
    "http-standard-headers": "likewise: it wants the headers of 2026-07-28 with the handshake",
    "auth/dpop": "the SDK has no proof of possession (RFC 9449)",
    "auth/dpop-nonce": "the SDK has no proof of possession (RFC 9449)",
    "auth/wif-jwt-bearer": "the SDK sends an assertion by this grant for cross-app access only, not one of a"
    " workload",
}

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
VERY_LATE = {"client-sse-retry-timing": "FAILURE"}
"""A busy machine may do this, too, so it is tried again. A client that ignores `retry` does it each time."""


@pytest.fixture(scope="module")
def suite() -> list[str]:
    """The command line of the suite, on the Node that is installed beside it; skips where it is absent."""
    modules = installed("GRUE_CONFORMANCE", f"{SUITE} and node@22")
    node, script = modules / ".bin" / "node", modules / SUITE / "dist" / "index.js"
    assert script.is_file(), f"{SUITE} is not installed in {modules}"
    assert shutil.which(node), f"node@22 is not installed in {modules}"
    return [str(node), str(script)]


@pytest.fixture(scope="module")
def next_suite(suite: list[str]) -> list[str]:
    """The command line of the suite's newest prerelease, which is installed beside it."""
    script = installed("GRUE_CONFORMANCE", NEXT_SUITE) / NEXT_SUITE / "dist" / "index.js"
    if not script.is_file() and not os.environ.get("CI"):
        pytest.skip(f"install it as .ci/run does: {NEXT_SUITE}@npm:{SUITE}@0.2.0-alpha.12")
    return [suite[0], str(script)]


@pytest.mark.parametrize("scenario", CHECKS)
def test_the_session_conforms(suite: list[str], scenario: str, tmp_path: Path) -> None:
    client = shlex.join([sys.executable, str(conformance_client.__file__)])
    for attempt in "abcde":
        (tmp_path / attempt).mkdir()
        with assert_nothing_left():
            done, judged = run_client(suite, client, scenario, tmp_path / attempt)
        short = {name: status for name, status in judged.items() if status not in ("SUCCESS", "INFO")}
        if short != VERY_LATE:
            break
    assert judged.keys() >= CHECKS[scenario], done.stdout
    assert short in ({}, LATE), done.stdout
    assert done.returncode == 0 or (short == LATE and "CLIENT EXITED" not in done.stdout), done.stdout


@pytest.mark.parametrize("scenario", AUTHORIZATION)
def test_the_authorization_conforms(suite: list[str], scenario: str, tmp_path: Path) -> None:
    client = shlex.join(forked(str(conformance_client.__file__)))
    done, judged = run_client(suite, client, f"auth/{scenario}", tmp_path)
    assert "SUCCESS" in judged.values(), done.stdout
    assert "FAILURE" not in judged.values(), done.stdout


def test_every_client_scenario_is_run_or_has_a_reason(suite: list[str]) -> None:
    assert client_scenarios(suite) == {*CHECKS, *(f"auth/{name}" for name in (*AUTHORIZATION, *NOT_PASSED))}


@pytest.mark.parametrize("scenario", NEXT)
def test_the_next_suites_scenarios_conform(next_suite: list[str], scenario: str, tmp_path: Path) -> None:
    client = shlex.join(forked(str(conformance_client.__file__)))
    done, judged = run_client(next_suite, client, scenario, tmp_path)
    assert "SUCCESS" in judged.values(), done.stdout
    assert "FAILURE" not in judged.values(), done.stdout


def test_every_scenario_of_the_next_suite_is_run_or_has_a_reason(next_suite: list[str]) -> None:
    renamed = "auth/cross-app-access-complete-flow"  # to enterprise-managed-authorization
    old = {*CHECKS, *(f"auth/{name}" for name in (*AUTHORIZATION, *NOT_PASSED))} - {renamed}
    assert client_scenarios(next_suite) == {*old, *NEXT, *NEXT_NOT_PASSED}


def client_scenarios(suite: list[str]) -> set[str]:
    listed = subprocess.run(
        [*suite, "list", "--client"], capture_output=True, text=True, timeout=SUITE_S, check=True
    ).stdout
    return {line.split()[1] for line in listed.splitlines() if line.startswith("  - ")}


def run_client(
    suite: list[str], client: str, scenario: str, folder: Path
) -> tuple[subprocess.CompletedProcess[str], dict[str, str]]:
    """Run a client scenario; return the suite's process and the status of each check."""
    options = ["--scenario", scenario, "--timeout", str(CLIENT_LIMIT_MS), "--output-dir", str(folder)]
    done = subprocess.run(
        [*suite, "client", "--command", client, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SUITE_S,
        check=False,
    )
    (checks,) = folder.rglob("checks.json")
    return done, {check["id"]: check["status"] for check in json.loads(checks.read_text())}


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
            timeout=SUITE_S,
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
