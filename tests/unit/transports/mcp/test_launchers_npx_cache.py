"""A folder of npx's cache that a killed installation has left is named."""

from pathlib import Path

import pytest

from grue.tool_sessions.server_specs import StdioServer
from grue.transports.mcp.launchers import npx_cache_broken

EVERYTHING = "@modelcontextprotocol/server-everything@2026.8.31"
FOLDER = "_npx/a705c79b42eea4c8"
"""Where npm 11 puts this package; its name is a hash of the package's."""


def npx(cache: Path, *args: str) -> StdioServer:
    return StdioServer(name="s", command="/usr/bin/npx", args=args, env={"npm_config_cache": str(cache)})


def installed(cache: Path) -> Path:
    modules = cache / FOLDER / "node_modules"
    modules.mkdir(parents=True)
    (modules / ".package-lock.json").touch()
    return modules


@pytest.mark.parametrize(
    "args", [("-y", EVERYTHING, "stdio"), (f"--package={EVERYTHING}", "x"), ("-p", EVERYTHING, "-c", "x")]
)
def test_a_folder_that_is_not_complete_is_named(tmp_path: Path, args: tuple[str, ...]) -> None:
    server = npx(tmp_path, *args)
    assert npx_cache_broken(server) is None, "it was never installed"
    (tmp_path / FOLDER).mkdir(parents=True)
    said = npx_cache_broken(server)
    assert said is not None
    assert said.endswith(f"Remove the folder and try again: rm -r {tmp_path / FOLDER}")
    assert EVERYTHING in said


def test_a_complete_folder_is_not_blamed_unless_an_installation_left_its_lock(tmp_path: Path) -> None:
    modules = installed(tmp_path)
    assert npx_cache_broken(npx(tmp_path, "-y", EVERYTHING)) is None
    (modules.parent / "concurrency.lock").mkdir()
    assert npx_cache_broken(npx(tmp_path, "-y", EVERYTHING)) is not None


def test_other_commands_have_no_such_cache(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir(parents=True)
    env = {"npm_config_cache": str(tmp_path)}
    assert npx_cache_broken(StdioServer(name="s", command="node", args=(EVERYTHING,), env=env)) is None
    assert npx_cache_broken(npx(tmp_path, "-y")) is None
