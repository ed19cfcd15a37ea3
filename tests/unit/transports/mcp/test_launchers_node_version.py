"""R14: a Node that is too old for the server is named, with what to install; asked only after a failure."""

import json
import os
import shlex
import threading
from pathlib import Path
from typing import Any

import boxes
import pytest
from case_tables import each_case
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from promises import GUARD_S

from grue.runtime.processes.process_group import ProcessRegistry
from grue.sandbox.box import Sandbox
from grue.testing import faulty_server
from grue.testing.leftovers import assert_nothing_left
from grue.tool_sessions.failures import ServerFailed
from grue.tool_sessions.server_specs import StdioServer
from grue.transports.mcp import launchers
from grue.transports.mcp.client import McpClient
from grue.transports.mcp.launchers import node_too_old, oldest_allowed

pytestmark = pytest.mark.anyio


def program(folder: Path, name: str, script: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


USUAL_S = launchers.ASK_AFTER_TIMEOUT_S


@pytest.fixture(autouse=True)
def _node_has_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give Node the time that it takes to say its version on a busy machine."""
    for name in ("ASK_S", "ASK_AFTER_TIMEOUT_S"):
        monkeypatch.setattr(launchers, name, GUARD_S)


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A folder for the PATH: a node of version 20 that notes when it is asked, and an npx that fails."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program(
        folder, "node", f'echo asked >> {tmp_path}/asked; [ "$1" = --version ] && echo v20.19.2 || exit 1'
    )
    program(folder, "npx", "exit 1")
    return folder


def package(folder: Path, name: str, engines: object) -> None:
    place = folder / "node_modules" / name
    place.mkdir(parents=True)
    (place / "package.json").write_text(json.dumps({"name": name, "engines": engines}))


def npx(tools: Path, *args: str, **more: Any) -> StdioServer:
    env = {"PATH": f"{tools}:/usr/bin:/bin", "HOME": str(tools.parent), "npm_config_cache": ""}
    return StdioServer(
        name="s", command=str(tools / "npx"), args=args, env=env, cwd=str(tools.parent), **more
    )


async def advice(server: StdioServer) -> str | None:
    return await node_too_old(server, ProcessRegistry(), limit_s=GUARD_S)


@each_case(
    "wanted, oldest",
    [
        (">=22", (22, 0, 0)),
        (">= 18.17.1", (18, 17, 1)),
        ("^20.10", (20, 10, 0)),
        ("~20.10.3", (20, 10, 3)),
        ("22.x", (22, 0, 0)),
        ("v18", (18, 0, 0)),
        (">=18 <21", (18, 0, 0)),
        ("^18.18.0 || ^20.9.0 || >=21.1.0", (18, 18, 0)),
        ("18 - 20", (18, 0, 0)),
        ("16.4 - 18 || 20", (16, 4, 0)),
        ("*", None),
        ("<21", None),
        ("", None),
        (">=22 || *", None),
        ("lts/*", None),
        (">=" + "9" * 5000, (0, 0, 0)),  # more digits than Python converts
    ],
)
def test_the_oldest_version_of_a_range(wanted: str, oldest: tuple[int, int, int] | None) -> None:
    assert oldest_allowed(wanted) == oldest


@given(st.text())
def test_any_text_is_a_range_of_some_kind(wanted: str) -> None:
    oldest_allowed(wanted)


@pytest.mark.parametrize(
    "args",
    [
        ("-y", "@scope/server@1.2.3", "/data"),
        ("--yes", "--package=@scope/server", "server"),
        ("-p", "@scope/server@latest", "server"),
    ],
)
async def test_a_package_of_the_project_that_wants_more_is_named(tools: Path, args: tuple[str, ...]) -> None:
    package(tools.parent, "@scope/server", {"node": ">=22.1"})
    with assert_nothing_left():
        found = await advice(npx(tools, *args))
    assert found == (
        "@scope/server needs Node.js >=22.1, and 20.19.2 is installed."
        " Install Node.js 22 or later (https://nodejs.org/), or put it first on the PATH."
    )


async def test_a_package_that_npx_has_fetched_and_a_script_are_found(tools: Path) -> None:
    fetched = tools.parent / ".npm" / "_npx" / "0123abcd"
    package(fetched, "server", {"node": ">=22"})
    assert "server needs Node.js >=22" in str(await advice(npx(tools, "server")))
    script = fetched / "node_modules" / "server" / "dist" / "index.js"
    by_node = StdioServer(name="s", command=str(tools / "node"), args=("--no-warnings", str(script)))
    assert "needs Node.js >=22" in str(await advice(by_node))


@boxes.needs_boxes
async def test_a_node_that_a_server_with_a_sandbox_has_brought_is_asked_in_the_sandbox(tools: Path) -> None:
    package(tools.parent, "server", {"node": ">=22"})
    script = tools.parent / "node_modules" / "server" / "index.js"
    own = StdioServer(name="s", command=str(tools / "node"), args=(str(script),))
    assert "needs Node.js >=22" in str(await advice(replace(own, sandbox=Sandbox())))
    assert not (tools.parent / "asked").exists()
    assert "needs Node.js >=22" in str(await advice(own))
    assert (tools.parent / "asked").exists()


async def test_a_pipe_in_place_of_a_packages_description_is_not_waited_for(tools: Path) -> None:
    package(tools.parent, "server", {})
    description = tools.parent / "node_modules" / "server" / "package.json"
    description.unlink()
    os.mkfifo(description)
    pipe = os.open(description, os.O_RDWR)
    os.write(pipe, b'{"engines": {"node": ">=22"}}')
    closing = threading.Timer(1, os.close, (pipe,))
    closing.start()
    assert await advice(npx(tools, "server")) is None
    closing.join()


async def test_thoughtbox_is_known_without_its_package(tools: Path) -> None:
    found = await advice(npx(tools, "-y", "@kastalien-research/thoughtbox"))
    assert str(found).startswith(
        "@kastalien-research/thoughtbox needs Node.js >=22, and 20.19.2 is installed."
    )


@pytest.mark.parametrize(
    "engines", [{"node": ">=18"}, {"node": "^18 || ^20"}, {}, [], "x", {"node": 22}, {"node": "*"}]
)
async def test_a_node_that_is_new_enough_is_no_reason(tools: Path, engines: object) -> None:
    package(tools.parent, "server", engines)
    assert await advice(npx(tools, "server")) is None


async def test_a_script_that_is_a_loop_of_links_belongs_to_no_package(tools: Path) -> None:
    package(tools.parent, "server", {"node": ">=22"})
    (tools / "loop.js").symlink_to("loop.js")
    server = StdioServer(command="node", args=("loop.js",), cwd=str(tools))
    assert await advice(server) is None


@pytest.mark.parametrize("script", ["sleep 600", "echo nonsense", "exit 1", "cat /dev/zero"])
async def test_a_node_that_does_not_say_its_version_is_no_reason(tools: Path, script: str) -> None:
    package(tools.parent, "server", {"node": ">=22"})
    program(tools, "node", script)
    with assert_nothing_left():
        assert await node_too_old(npx(tools, "server"), ProcessRegistry()) is None


async def test_r14_5_the_failure_names_both_versions_and_a_success_pays_nothing(tools: Path) -> None:
    package(tools.parent, "server", {"node": ">=22"})
    with pytest.raises(ServerFailed) as caught:
        async with McpClient(npx(tools, "-y", "server"), ProcessRegistry()) as client:
            await client.open(60)
    assert caught.value.failure.remedy.startswith("server needs Node.js >=22, and 20.19.2 is installed.")
    asked = tools.parent / "asked"
    asked.unlink()
    program(tools, "npx", f"exec {shlex.join(faulty_server.argv())}")
    async with McpClient(npx(tools, "-y", "server"), ProcessRegistry()) as client:
        await client.open(60)
    assert not asked.exists()


async def test_what_a_package_says_of_node_cannot_control_the_terminal(tools: Path) -> None:
    package(tools.parent, "server", {"node": ">=22 \x1b]0;owned\x07\x1b[2J\x9b2J\r"})
    with pytest.raises(ServerFailed, match=r"server needs Node\.js >=22") as caught:
        async with McpClient(npx(tools, "-y", "server"), ProcessRegistry()) as client:
            await client.open(60)
    assert caught.value.failure.remedy.isprintable()


@pytest.mark.parametrize(
    ("behaviour", "cause"),
    [
        ("exec sleep 600", "no answer to initialize within 0.5 s"),
        ("while read -r line; do echo noise; done", "no answer to initialize within 0.5 s"),
        (
            'read -r line; echo \'{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"old"}}\'; cat',
            "failed",
        ),
        ("exit 3", "ended during initialize"),
    ],
    ids=["hangs", "talks nonsense", "refuses", "exits"],
)
async def test_r14_1_a_node_that_is_too_old_is_named_however_the_start_fails(
    tools: Path, behaviour: str, cause: str
) -> None:
    program(tools, "npx", behaviour)
    with assert_nothing_left(), pytest.raises(ServerFailed, match=cause) as caught:
        async with McpClient(npx(tools, "-y", "@kastalien-research/thoughtbox"), ProcessRegistry()) as client:
            await client.open(0.5 if "no answer" in cause else GUARD_S)
    remedy = caught.value.failure.remedy
    assert remedy.startswith("@kastalien-research/thoughtbox needs Node.js >=22, and 20.19.2 is installed.")
    assert ("raise startup_timeout_s in" in remedy) is ("no answer" in cause)


async def test_a_node_that_hangs_too_adds_little_to_the_start_up_limit(
    tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tools, "npx", "exec sleep 600")
    asked: list[float] = []

    async def ask(server: StdioServer, registry: ProcessRegistry, *, limit_s: float) -> None:
        asked.append(limit_s)

    monkeypatch.setattr(launchers, "node_too_old", ask)
    monkeypatch.setattr(launchers, "ASK_AFTER_TIMEOUT_S", 0.4)
    with pytest.raises(ServerFailed, match="no answer to initialize") as caught:
        async with McpClient(npx(tools, "server"), ProcessRegistry()) as client:
            await client.open(0.2)
    assert asked == [0.4]
    assert USUAL_S < 0.5
    assert caught.value.failure.remedy == (
        "Check that Node.js is installed and the package is available."
        " If it only needs longer, raise startup_timeout_s in the ServerOptions of this server."
    )
