"""What npx and uvx start in the end: found where it is, and never where it is not."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from grue.tool_sessions.server_specs import StdioServer
from grue.transports.mcp.launchers import direct_command, launcher_of, missing_npx_package, npx_folder


def program(path: Path, mode: int = 0o755) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(mode)
    return path


def npx(home: Path, *args: str) -> StdioServer:
    return StdioServer(name="s", command="npx", args=args, env={"HOME": str(home)}, cwd=str(home / "project"))


def install(modules: Path, package: str, bins: Any, *programs: str) -> list[Path]:
    folder = modules / package
    folder.mkdir(parents=True)
    (folder / "package.json").write_text(json.dumps({"version": "1.2.3", "bin": bins}))
    return [program(modules / ".bin" / name) for name in programs]


@pytest.mark.parametrize(
    ("args", "package", "bins", "wanted", "rest"),
    [
        (("-y", "thinker"), "thinker", "cli.js", "thinker", ()),
        (("--yes", "thinker", "--deep", "2"), "thinker", {"think": "a"}, "think", ("--deep", "2")),
        (("-y", "@org/t"), "@org/t", {"think": "a", "thinker": "a"}, "think", ()),
        (("@org/thinker@1.2",), "@org/thinker", {"thinker": "a", "other": "b"}, "thinker", ()),
        (
            ("-y", "--package=@org/t", "--", "run-it", "x"),
            "@org/t",
            {"a": "a", "run-it": "b"},
            "run-it",
            ("x",),
        ),
        (("-p", "@org/t", "run-it"), "@org/t", {"run-it": "b"}, "run-it", ()),
    ],
)
def test_npx_starts_the_packages_own_program(
    tmp_path: Path, args: tuple[str, ...], package: str, bins: Any, wanted: str, rest: tuple[str, ...]
) -> None:
    server = npx(tmp_path, *args)
    asked = next(arg.removeprefix("--package=") for arg in args if package in arg)
    names = [package.rpartition("/")[2]] if isinstance(bins, str) else list(bins)
    install(npx_folder(server, (asked,)) / "node_modules", package, bins, *names)
    found = direct_command(server)
    assert found is not None
    assert found.server.command == str(npx_folder(server, (asked,)) / "node_modules" / ".bin" / wanted)
    assert found.server.args == rest
    assert found.server.env == server.env
    assert found.note == "It stays at version 1.2.3, until npx's cache is cleared."


def test_npx_prefers_what_a_project_has_installed(tmp_path: Path) -> None:
    server = npx(tmp_path, "-y", "thinker")
    install(npx_folder(server, ("thinker",)) / "node_modules", "thinker", "cli.js", "thinker")
    (own,) = install(tmp_path / "node_modules", "thinker", "cli.js", "thinker")
    found = direct_command(server)
    assert found is not None
    assert (found.server.command, found.note) == (str(own), "It stays at version 1.2.3.")


@pytest.mark.parametrize(
    "args",
    [("-c", "thinker"), ("-y",), (), ("--registry", "x", "thinker"), ("-p", "thinker"), ("-p=", "thinker")],
)
def test_npx_with_other_options_is_left_alone(tmp_path: Path, args: tuple[str, ...]) -> None:
    install(tmp_path / "node_modules", "thinker", "cli.js", "thinker")
    assert direct_command(npx(tmp_path, *args)) is None


@pytest.mark.parametrize(
    "manifest", ["", "[]", "{", '{"bin": {"../../x": "a"}}', '{"bin": {"a": "a", "b": "b"}}']
)
def test_npx_with_a_manifest_that_names_no_program_is_left_alone(tmp_path: Path, manifest: str) -> None:
    program(tmp_path / "node_modules" / ".bin" / "thinker")
    (tmp_path / "node_modules" / "thinker").mkdir()
    (tmp_path / "node_modules" / "thinker" / "package.json").write_text(manifest)
    assert direct_command(npx(tmp_path, "thinker")) is None


def test_a_program_that_is_not_there_is_not_named(tmp_path: Path) -> None:
    server = npx(tmp_path, "-y", "thinker")
    (own,) = install(tmp_path / "node_modules", "thinker", "cli.js", "thinker")
    own.chmod(0o644)
    assert direct_command(server) is None
    own.unlink()
    assert direct_command(server) is None


@pytest.mark.parametrize("flag", ["--no-install", "--no", "--yes=false"])
def test_a_package_that_npx_must_not_install_is_missing_until_it_is_somewhere(
    tmp_path: Path, flag: str
) -> None:
    server = npx(tmp_path, flag, "@org/thinker", "--deep")
    (tmp_path / ".npmrc").write_text(f"fund=false\nprefix = {tmp_path}/global\n")
    for modules in (
        tmp_path / "node_modules",
        npx_folder(server, ("@org/thinker",)) / "node_modules",
        tmp_path / "global" / "lib" / "node_modules",
    ):
        assert missing_npx_package(server) == "@org/thinker"
        install(modules, "@org/thinker", "cli.js")
        assert missing_npx_package(server) is None
        (modules / "@org" / "thinker" / "package.json").unlink()


def test_in_a_folder_that_was_deleted_nothing_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    server = replace(npx(tmp_path, "--no-install", "absent-thinker"), cwd=None)
    assert missing_npx_package(server) is None
    assert direct_command(server) is None


def test_a_program_of_the_name_is_enough_for_npx(tmp_path: Path) -> None:
    assert missing_npx_package(npx(tmp_path, "--no-install", "think-it")) == "think-it"
    program(tmp_path / "node_modules" / ".bin" / "think-it")
    assert missing_npx_package(npx(tmp_path, "--no-install", "think-it")) is None
    on_path = replace(npx(tmp_path, "--no", "think-that"), env={"PATH": str(tmp_path)})
    program(tmp_path / "think-that")
    assert missing_npx_package(on_path) is None


@pytest.mark.parametrize(
    "args",
    [
        ("-y", "absent-thinker"),  # it is downloaded
        ("absent-thinker", "--no-install"),  # the option is the server's
        ("--no-install", "--registry", "x", "absent-thinker"),
        ("--no-install", "./folder"),
        ("--no-install", "github:org/thinker"),
        ("--no-install",),
    ],
)
def test_nothing_is_missing_where_npx_decides(tmp_path: Path, args: tuple[str, ...]) -> None:
    assert missing_npx_package(npx(tmp_path, *args)) is None


def uv(home: Path, command: str, *args: str, **env: str) -> StdioServer:
    path = {"HOME": str(home), "PATH": str(home / "bin"), **env}
    return StdioServer(name="s", command=command, args=args, env=path, inherit_env="none")


def test_uvx_has_the_tools_own_program_if_it_is_installed(tmp_path: Path) -> None:
    own = program(tmp_path / ".local" / "share" / "uv" / "tools" / "thinker" / "bin" / "thinker")
    for server in (
        uv(tmp_path, "uvx", "thinker", "-v"),
        uv(tmp_path, "/usr/bin/uv", "tool", "run", "-q", "thinker", "-v"),
    ):
        found = direct_command(server)
        assert found is not None
        assert (found.server.command, found.server.args) == (str(own), ("-v",))
        assert found.note == "It stays at its version until: uv tool upgrade thinker"
    elsewhere = program(tmp_path / "tools" / "thinker" / "bin" / "thinker")
    found = direct_command(uv(tmp_path, "uvx", "thinker", UV_TOOL_DIR=str(tmp_path / "tools")))
    assert found is not None
    assert found.server.command == str(elsewhere)


def test_uvx_without_it_can_be_kept_from_the_network(tmp_path: Path) -> None:
    assert direct_command(uv(tmp_path, "uvx", "thinker")) is None, "there is no uv"
    path = program(tmp_path / "bin" / "uv")
    found = direct_command(uv(tmp_path, "uvx", "thinker", "-v"))
    assert found is not None
    assert (found.server.command, found.server.args) == (
        str(path),
        ("tool", "run", "--offline", "thinker", "-v"),
    )
    assert direct_command(uv(tmp_path, "uvx", "--offline", "thinker")) is None


@pytest.mark.parametrize(
    "args", [(), ("--from", "a", "b"), ("thinker@1.2",), ("../thinker",), ("--with", "x", "t")]
)
def test_uvx_that_asks_for_something_else_is_left_alone(tmp_path: Path, args: tuple[str, ...]) -> None:
    program(tmp_path / "bin" / "uv")
    assert direct_command(uv(tmp_path, "uvx", *args)) is None


def test_other_commands_have_no_launcher(tmp_path: Path) -> None:
    assert launcher_of(uv(tmp_path, "uv", "run", "thinker")) is None
    assert direct_command(uv(tmp_path, "python", "-m", "thinker")) is None
