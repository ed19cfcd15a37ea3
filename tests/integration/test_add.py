"""`grue add` and `grue remove`: a bundle, a registry on loopback and a description, as a user runs them."""

import errno
import functools
import gzip
import hashlib
import io
import json
import os
import pty
import resource
import subprocess
import sys
import threading
import zipfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio.lowlevel
import httpx
import promises
import pytest
from commands import command, environment, grue, grue_unread, python
from typer.testing import CliRunner

from grue.cli.add import Adding, _downloaded, _fetch, _fetched, remove_server
from grue.cli.app import app
from grue.config.server_descriptions import OfferedBundle
from grue.errors import MCPConfigError
from grue.hosts.servers import think
from grue.sandbox import places
from grue.sandbox.box import Sandbox
from grue.sandbox.launch import missing_for
from grue.testing.leftovers import assert_nothing_left

OTHER = {"command": "other", "args": ["ü", "--x"], "env": {"K": "${K}"}}
REGISTRY_META = "io.modelcontextprotocol.registry/official"


def description(**package: Any) -> dict[str, Any]:
    written = {"registryType": "npm", "identifier": "weather", "version": "1.0.0", **package}
    return {"name": "io.github.me/weather", "version": "1.0.0", "description": "Rain", "packages": [written]}


def bundle(folder: Path, **changes: Any) -> Path:
    program = {"command": sys.executable, "args": ["${__dirname}/think.py"]}
    manifest = {"name": "Mind", "version": "1.0.0", "server": {"type": "python", "mcp_config": program}}
    path = folder / "mind.mcpb"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("manifest.json", json.dumps({**manifest, **changes}))
        archive.write(str(think.__file__), "think.py")
    return path


def servers(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "mcp_config.json").read_text())["mcpServers"]
    return found


@contextmanager
def registry(answers: dict[str, tuple[int, bytes]]) -> Iterator[tuple[str, list[str]]]:
    asked: list[str] = []

    class Registry(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            status, body = answers.get(self.path, (404, b"{}"))
            self.send_response(status)
            if status == 302:
                self.send_header("Location", body.decode() or "/elsewhere")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.slow
def test_a_bundle_is_added_started_in_its_box_approved_and_removed(tmp_path: Path) -> None:
    path = bundle(tmp_path)
    (tmp_path / "mcp_config.json").write_text(json.dumps({"mcpServers": {}, "inputs": [1.5]}, indent=4))
    with assert_nothing_left():
        added = grue("add", str(path), "--yes", cwd=tmp_path)
    assert added.returncode == 0, added.stderr
    assert "signed   no\n" in added.stdout
    entry = servers(tmp_path)["Mind"]
    assert entry["args"] == ["${workspaceFolder}/mcp_bundles/Mind/think.py"]
    assert entry["inherit_env"] == "safe"
    boxed = {"preset": "pure", "read": ["${workspaceFolder}/mcp_bundles/Mind"]}
    assert entry.get("sandbox") == (None if missing_for(Sandbox()) else boxed)
    assert "+ Mind.think" in added.stdout
    assert "Mind" in json.loads((tmp_path / "mcp_tools.lock").read_text())["servers"]
    assert json.loads((tmp_path / "mcp_config.json").read_text())["inputs"] == [1.5]
    assert '\n    "mcpServers"' in (tmp_path / "mcp_config.json").read_text()
    again = grue("add", str(path), "--yes", cwd=tmp_path)
    assert again.returncode == 2
    assert "has a server 'Mind' already" in again.stderr
    removed = grue("remove", "Mind", cwd=tmp_path)
    assert removed.returncode == 0, removed.stderr
    assert servers(tmp_path) == {}
    assert not (tmp_path / "mcp_bundles" / "Mind").exists()
    assert json.loads((tmp_path / "mcp_tools.lock").read_text())["servers"] == {}


@pytest.mark.slow
def test_a_server_is_approved_and_removed_although_nobody_reads_the_output(tmp_path: Path) -> None:
    """As with `grue add --yes | head -1`."""
    assert grue_unread("add", str(bundle(tmp_path)), "--yes", cwd=tmp_path) == (0, "")
    lock = tmp_path / "mcp_tools.lock"
    assert [*json.loads(lock.read_text())["servers"]] == ["Mind"]
    lock.unlink()
    assert grue_unread("tools", "--lock", cwd=tmp_path) == (0, "")
    assert [*json.loads(lock.read_text())["servers"]] == ["Mind"]
    assert grue_unread("remove", "Mind", cwd=tmp_path) == (0, "")
    assert (json.loads(lock.read_text())["servers"], servers(tmp_path)) == ({}, {})
    assert not (tmp_path / "mcp_bundles" / "Mind").exists()


def test_nothing_is_written_before_somebody_agrees(tmp_path: Path) -> None:
    path = bundle(tmp_path)
    refused = grue("add", str(path), cwd=tmp_path)
    assert refused.returncode == 2
    assert "runs     " in refused.stdout
    assert "Nothing was written. To go on without being asked, add --yes." in refused.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["mind.mcpb"]


@pytest.mark.slow
def test_a_bundle_that_is_refused_leaves_nothing(tmp_path: Path) -> None:
    path = bundle(tmp_path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("../../evil", "x")
    refused = grue("add", str(path), "--yes", cwd=tmp_path)
    assert refused.returncode == 2
    assert "has a file with the name '../../evil'" in refused.stderr
    wrong = grue("add", str(bundle(tmp_path)), "--sha256", "0" * 64, "--yes", cwd=tmp_path)
    assert "not the file that was promised" in wrong.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["mind.mcpb"]


_CONSENT = b"[y/N]: "


def refused_at_a_terminal(*args: str, cwd: Path, typed: bytes, **extra: str) -> str:
    """Run `grue ARGS` at a terminal, in which `typed` is typed at once, and `n` when it asks for a consent.

    Return what the terminal shows.
    """
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        command(*args),
        cwd=cwd,
        env=environment(**extra, COLUMNS="200"),
        stdin=follower,
        stdout=follower,
        stderr=follower,
        start_new_session=True,
    )
    os.close(follower)
    os.write(leader, typed)
    shown = b""
    try:
        while piece := os.read(leader, 4096):
            asked = shown.count(_CONSENT)
            shown += piece
            if shown.count(_CONSENT) > asked:
                os.write(leader, b"n\n")
    except OSError:
        pass
    finally:
        os.close(leader)
    assert process.wait() == 2
    return shown.decode()


@pytest.mark.slow
def test_enter_takes_the_default_as_it_is(tmp_path: Path) -> None:
    args = [
        "${__dirname}/think.py",
        "${user_config.folder}",
        "${user_config.owner}",
        "${user_config.folders}",
    ]
    options = {
        "folder": {"type": "directory", "default": "${HOME}/Documents"},
        "owner": {"type": "string", "default": "John Doe"},
        "folders": {"type": "directory", "multiple": True, "default": ["${HOME}/a b", "${HOME}/c"]},
    }
    program = {"type": "python", "mcp_config": {"command": sys.executable, "args": args}}
    bundle(tmp_path, server=program, user_config=options)
    text = refused_at_a_terminal("add", "mind.mcpb", cwd=tmp_path, typed=b"\n\n\n")
    entry = json.loads(text[text.index("{\r\n") : text.rindex("}") + 1])["Mind"]
    values = ["${userHome}/Documents", "John Doe", "${userHome}/a b", "${userHome}/c"]
    assert entry["args"] == ["${workspaceFolder}/mcp_bundles/Mind/think.py", *values]


@pytest.mark.slow
def test_a_typed_quote_that_is_not_closed_is_a_sentence(tmp_path: Path) -> None:
    text = refused_at_a_terminal("add", "npm:weather", cwd=tmp_path, typed=b"John's\n")
    assert "grue: John's cannot be split as in a shell: No closing quotation." in text


@pytest.mark.slow
def test_a_terminal_shows_what_would_run_escaped_and_asks(tmp_path: Path) -> None:
    arguments = [
        {"type": "positional", "valueHint": "folder", "isRequired": True, "description": "It\x1b]0;evil\x07"}
    ]
    written = description(
        packageArguments=arguments, environmentVariables=[{"name": "A_KEY", "isSecret": True}]
    )
    (tmp_path / "server.json").write_text(json.dumps({**written, "description": "\x1b[2JRain"}))
    text = refused_at_a_terminal(
        "add", "server.json", cwd=tmp_path, typed=b"data\ny\ny\n", A_KEY="hunter2hunter2"
    )
    assert "\\u001b[2JRain" in text
    assert "\x1b]0;" not in text
    assert "runs     npx -y weather@1.0.0 data" in text
    assert "gets     your variable A_KEY" in text
    assert "hunter2" not in text
    assert "Nothing was written." in text
    assert not (tmp_path / "mcp_config.json").exists()


@pytest.mark.slow
def test_keys_that_are_not_set_wait_and_what_is_there_stays(tmp_path: Path) -> None:
    key = {"name": "WEATHER_KEY", "isSecret": True, "isRequired": True}
    (tmp_path / "server.json").write_text(json.dumps(description(environmentVariables=[key])))
    (tmp_path / "mcp_config.json").write_text(json.dumps({"mcpServers": {"other": OTHER}}))
    (tmp_path / "mcp_config.json").chmod(0o600)
    added = grue("add", "server.json", "--yes", cwd=tmp_path)
    assert added.returncode == 0, added.stderr
    assert "set      WEATHER_KEY in the environment" in added.stdout
    assert servers(tmp_path)["other"] == OTHER
    assert servers(tmp_path)["weather"]["env"]["WEATHER_KEY"] == "${WEATHER_KEY}"
    assert (tmp_path / "mcp_config.json").stat().st_mode & 0o777 == 0o600
    misspelt = grue("add", "server.json", "--name", "w", "--set", "WEATHER_KEY=x", "--yes", cwd=tmp_path)
    assert "asks for no value 'WEATHER_KEY'" in misspelt.stderr


@pytest.mark.slow
def test_a_lock_is_not_made_for_one_server_of_several(tmp_path: Path) -> None:
    (tmp_path / "mcp_config.json").write_text(json.dumps({"mcpServers": {"other": OTHER}}))
    added = grue("add", str(bundle(tmp_path)), "--yes", cwd=tmp_path, K="k")
    assert added.returncode == 0, added.stderr
    assert "To approve the tools of all" in added.stdout
    assert not (tmp_path / "mcp_tools.lock").exists()


@pytest.mark.slow
def test_a_registry_is_asked_for_the_server_that_was_named(tmp_path: Path) -> None:
    remote = {"type": "streamable-http", "url": "http://127.0.0.1:9/mcp"}
    found = {"name": "io.github.me/weather", "version": "2", "remotes": [remote]}
    at = "/v0.1/servers/io.github.me%2Fweather/versions/"
    deleted = json.dumps({"server": found, "_meta": {REGISTRY_META: {"status": "deleted"}}}).encode()
    answers = {
        at + "latest": (200, json.dumps({"server": found, "_meta": {}}).encode()),
        at + "1": (200, deleted),
        at + "3": (302, b""),
        at + "4": (200, b"x" * (1 << 21)),
        at + "5": (200, b"\xff"),
        at + "7": (200, json.dumps({"server": found}).encode()),
        "/v0.1/servers/a.b%2Fother/versions/latest": (200, json.dumps(found).encode()),
    }
    with registry(answers) as (url, asked):
        (tmp_path / "pyproject.toml").write_text(f'[tool.grue.mcp]\nregistry = "{url}"\n')
        added = grue("add", "io.github.me/weather", "--yes", cwd=tmp_path)
        assert servers(tmp_path) == {"weather": {"type": "streamable-http", "url": "http://127.0.0.1:9/mcp"}}
        assert added.returncode == 1  # nothing listens there
        assert "The entry is written, but the server did not start" in added.stderr
        for name, problem in [
            ("io.github.me/weather@1", "has deleted this server"),
            ("io.github.me/weather@3", "answered with status 302"),
            ("io.github.me/weather@4", "longer than 1 MiB"),
            ("io.github.me/weather@5", "is not JSON"),
            ("io.github.me/weather@6", "knows no such server"),
            ("io.github.me/weather@7", "answered with another version than '7'"),
            ("a.b/other", "answered with another server"),
        ]:
            refused = grue("add", name, "--name", "x", "--yes", cwd=tmp_path)
            assert problem in refused.stderr
            assert refused.returncode == 2
    assert [each for each in asked if "elsewhere" in each] == []
    assert servers(tmp_path).keys() == {"weather"}


@pytest.mark.slow
def test_no_registry_is_asked_unless_one_is_named(tmp_path: Path) -> None:
    refused = grue("add", "io.github.me/weather", "--yes", cwd=tmp_path)
    assert "Name one: --registry URL" in refused.stderr
    assert "There is no file 'weather'" in grue("add", "weather", cwd=tmp_path).stderr


@pytest.mark.slow
def test_a_bundle_that_a_registry_names_is_downloaded_if_its_digest_holds(tmp_path: Path) -> None:
    away, home = tmp_path / "away", tmp_path / "home"
    away.mkdir()
    home.mkdir()
    signed = bundle(away).read_bytes() + b"MCPB_SIG_V1" + bytes(40) + b"MCPB_SIG_END"
    digest = hashlib.sha256(signed).hexdigest()
    answers: dict[str, tuple[int, bytes]] = {
        "/mind.mcpb": (302, b"/stored"),
        "/stored": (200, signed),
        "/round": (302, b"/round"),
    }
    latest = "/v0.1/servers/io.github.me%2Fweather/versions/latest"
    with registry(answers) as (url, asked):

        def add(package: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
            offered = description(registryType="mcpb", **package)
            answers[latest] = 200, json.dumps(offered).encode()
            asked.clear()
            return grue("add", "io.github.me/weather", "--registry", url, *options, cwd=home)

        promised = {"identifier": f"{url}/mind.mcpb", "fileSha256": digest}
        unasked = add(promised)
        assert f"download {url}/mind.mcpb" in unasked.stdout
        assert "Nothing was downloaded. To go on without being asked, add --yes." in unasked.stderr
        assert len(asked) == 1
        for package, problem in [
            ({"identifier": f"{url}/mind.mcpb"}, "has no digest of its bundle (fileSha256)"),
            ({**promised, "fileSha256": "0" * 64}, f"not the file that was promised: its sha256 is {digest}"),
            ({**promised, "identifier": f"{url}/none"}, "knows no such server (404)"),
            ({**promised, "identifier": f"{url}/round"}, "answered with status 302"),
        ]:
            refused = add(package, "--yes")
            assert refused.returncode == 2
            assert problem in refused.stderr
            assert [*home.iterdir()] == []
        assert len(asked) == 7, "the description, and then an address and five redirects"
        with assert_nothing_left():
            added = add(promised, "--yes")
    assert added.returncode == 0, added.stderr
    assert f"sha256   {digest}, as promised\nsigned   yes, which grue does not check\n" in added.stdout
    assert "+ weather.think" in added.stdout
    assert servers(home)["weather"]["args"] == ["${workspaceFolder}/mcp_bundles/weather/think.py"]
    assert (home / "mcp_bundles" / "weather" / "think.py").is_file()


@pytest.mark.parametrize("name", ["../evil", "a/b", "a.b", "mcp"])
def test_a_name_is_checked_before_a_folder_gets_it(tmp_path: Path, name: str) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    refused = grue("add", str(bundle(inner)), "--name", name, "--yes", cwd=inner)
    assert refused.returncode == 2
    assert [each.name for each in inner.iterdir()] == ["mind.mcpb"]


@pytest.mark.skipif(bool(missing_for(Sandbox())), reason="needs a machine that enforces sandboxes")
@pytest.mark.parametrize("place", ["${workspaceFolder}/work", "${userHome}/work"])
def test_what_the_sandbox_opens_because_of_an_argument_is_shown(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "app.py").touch()
    arguments = [{"type": "named", "name": "--run", "value": f"{place}/app.py"}]
    (tmp_path / "server.json").write_text(json.dumps(description(packageArguments=arguments)))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(places, "real_once", str)  # the home folder is looked up once only
    refused = CliRunner().invoke(
        app, ["add", str(tmp_path / "server.json"), "--mcp-config", str(tmp_path / "mcp_config.json")]
    )
    assert "Nothing was written" in refused.output
    assert f"reads {tmp_path}/work/app.py, {tmp_path}/work, as an argument names it" in refused.output


@pytest.mark.slow
def test_remove_takes_no_folder_that_is_not_of_the_server(tmp_path: Path) -> None:
    (tmp_path / "keep").mkdir()
    (tmp_path / "mcp_bundles").mkdir()
    (tmp_path / "mcp_bundles" / "linked").symlink_to(tmp_path / "keep")
    entries = {"linked": OTHER, "../keep": OTHER}
    (tmp_path / "mcp_config.json").write_text(json.dumps({"mcpServers": entries}))
    assert grue("remove", "../keep", cwd=tmp_path).returncode == 0
    assert grue("remove", "linked", cwd=tmp_path).returncode == 0
    assert (tmp_path / "keep").is_dir()
    assert servers(tmp_path) == {}
    for name in ("", "..", "."):
        (tmp_path / "mcp_config.json").write_text(json.dumps({"mcpServers": {name: OTHER}}))
        assert grue("remove", name, cwd=tmp_path).returncode == 0
        assert (tmp_path / "mcp_bundles" / "linked").is_symlink()
    assert servers(tmp_path) == {}
    assert "There is no MCP server 'x'" in grue("remove", "x", cwd=tmp_path).stderr


@pytest.mark.slow
def test_remove_takes_packages_that_the_server_has_nested_deeply(tmp_path: Path) -> None:
    (tmp_path / "mcp_config.json").write_text(json.dumps({"mcpServers": {"deep": OTHER}}))
    (tmp_path / "mcp_packages" / "deep").mkdir(parents=True)
    code = "import os\nfor _ in range(3000): os.mkdir('d'); os.chdir('d')"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path / "mcp_packages" / "deep")
    removed = grue("remove", "deep", cwd=tmp_path)
    assert removed.returncode == 0, removed.stderr
    assert not (tmp_path / "mcp_packages" / "deep").exists()


@pytest.mark.slow
def test_remove_says_what_it_cannot_remove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mcp_config.json"
    path.write_text(json.dumps({"mcpServers": {"kept": OTHER}}))
    (tmp_path / "mcp_packages" / "kept").mkdir(parents=True)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "rmdir", refuse)
    with pytest.raises(MCPConfigError, match=r"Cannot remove .*kept: Operation not permitted"):
        remove_server("kept", path)


@pytest.mark.slow
def test_a_bundle_whose_entry_cannot_be_written_leaves_no_folder(tmp_path: Path) -> None:
    entries = {f"s{number}": OTHER for number in range(500)}
    (tmp_path / "mcp_config.json").write_text(json.dumps({"mcpServers": entries}))
    most = (resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
    limited = f"import resource, grue.cli.main; resource.setrlimit(*{most!r}); grue.cli.main.main()"
    added = python("-c", limited, "add", str(bundle(tmp_path)), "--yes", cwd=tmp_path)
    assert "File too large" in added.stderr
    assert list((tmp_path / "mcp_bundles").iterdir()) == []
    assert grue("add", str(bundle(tmp_path)), "--yes", cwd=tmp_path).returncode == 0


@pytest.mark.slow
def test_another_entry_that_is_invalid_keeps_nobody_from_removing_a_server(tmp_path: Path) -> None:
    wrong = {"command": 3}
    (tmp_path / "mcp_config.json").write_text(json.dumps({"mcpServers": {"wrong": wrong, "a": OTHER}}))
    refused = grue("add", str(bundle(tmp_path)), "--yes", cwd=tmp_path)
    assert refused.returncode == 2
    assert "'wrong': command should be a string" in refused.stderr
    assert not (tmp_path / "mcp_bundles").exists()
    removed = grue("remove", "a", cwd=tmp_path)
    assert removed.returncode == 0, removed.stderr
    assert servers(tmp_path) == {"wrong": wrong}


@pytest.mark.slow
def test_a_damaged_lock_is_told_before_anything_is_changed(tmp_path: Path) -> None:
    before = json.dumps({"mcpServers": {"a": OTHER}})
    (tmp_path / "mcp_config.json").write_text(before)
    (tmp_path / "mcp_tools.lock").write_text("{")
    for words in (("remove", "a"), ("add", str(bundle(tmp_path)), "--yes")):
        refused = grue(*words, cwd=tmp_path)
        assert (refused.returncode, "mcp_tools.lock is not valid JSON" in refused.stderr) == (2, True)
        assert (
            "Restore it, or remove it and approve the tools again with: grue tools --lock." in refused.stderr
        )
        assert (tmp_path / "mcp_config.json").read_text() == before
    assert not (tmp_path / "mcp_bundles").exists()


@pytest.mark.slow
def test_a_package_gets_its_arguments_and_a_box_that_opens_them(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    shown = grue("add", "npm:@a/files@1.0", "--", "./docs", "--plain", cwd=tmp_path)
    folder = (tmp_path / "docs").absolute()
    assert f"runs     npx -y @a/files@1.0 {folder} --plain" in shown.stdout
    assert missing_for(Sandbox()) or f"reads {folder}" in shown.stdout
    bare = grue("add", "pypi:a-server", cwd=tmp_path)
    assert "runs     uvx a-server\n" in bare.stdout
    assert "UV_CACHE_DIR=${workspaceFolder}/mcp_packages/a-server/uv_cache_dir" in bare.stdout


@pytest.mark.slow
def test_a_program_of_ones_own_is_added_by_its_file_and_called_by_example(tmp_path: Path) -> None:
    (tmp_path / "my_mind.py").write_bytes(Path(str(think.__file__)).read_bytes())
    with assert_nothing_left():
        added = grue("add", "my_mind.py", "--yes", cwd=tmp_path)
    assert added.returncode == 0, added.stdout + added.stderr
    entry = servers(tmp_path)["my_mind"]
    assert entry["args"] == ["${workspaceFolder}/my_mind.py"]
    assert "its tools are called my_mind.TOOL; --name gives it another name" in added.stdout
    assert entry.keys() == {"command", "args"}, "it is the user's own, and needs what the user has"
    assert "sandbox  none: it is your own program." in added.stdout
    assert "my_mind.think" in added.stdout
    refused = grue("call", "my_mind.think", cwd=tmp_path)
    assert refused.returncode == 2
    assert "needs thought, thoughtNumber, totalThoughts, nextThoughtNeeded. It takes:" in refused.stderr
    assert "    thoughtNumber: integer, required" in refused.stderr
    example = refused.stderr.partition("For example: ")[2].strip()
    assert example.startswith("grue call my_mind.think --arg thought=TEXT --arg thoughtNumber=1 ")
    assert grue(*example.split()[1:], cwd=tmp_path).returncode == 0, "the example works as it is"


@pytest.mark.slow
def test_a_key_that_would_be_written_as_it_is_is_pointed_out_and_a_digest_without_a_bundle_refused(
    tmp_path: Path,
) -> None:
    (tmp_path / "own.py").touch()
    address = ("http://127.0.0.1:9/mcp?key=sk-ant-abcdefabcdef1234", "--use", "remote")
    for words in (("own.py", "--", "--api-key", "sk-ant-abcdefabcdef1234"), address):
        asked = grue("add", *words, cwd=tmp_path)
        assert "looks like a key, which the file would hold as it is: write" in asked.stdout
        assert "Nothing was written." in asked.stderr
    for words in (
        ("own.py", "--", "--api-key", "${MY_KEY}", "--port", "8000"),
        ("http://127.0.0.1:9/mcp", *address[1:]),
    ):
        assert "looks like a key" not in grue("add", *words, cwd=tmp_path).stdout
    named = grue("add", "mine", "own.py", "data.txt", cwd=tmp_path)
    assert named.stderr == "grue: There is no file mine. Did you mean: grue add own.py --name mine\n"
    refused = grue("add", "own.py", "--sha256", "00", cwd=tmp_path)
    assert refused.stderr == "grue: --sha256 is the digest of a bundle, and own.py is not one.\n"
    for option in (("--use", "npm"), ("--registry", "http://127.0.0.1:9")):
        refused = grue("add", "own.py", *option, cwd=tmp_path)
        assert (refused.returncode, "own.py is a program of yours: --use and" in refused.stderr) == (2, True)


@pytest.mark.slow
def test_an_argument_that_is_too_long_to_be_a_path_is_an_argument(tmp_path: Path) -> None:
    (tmp_path / "own.py").touch()
    for source in ("own.py", "npm:weather"):
        refused = grue("add", source, "--", f"/{'a' * 300}", cwd=tmp_path)
        assert "Nothing was written." in refused.stderr
        assert f'"/{"a" * 300}"' in refused.stdout


@pytest.mark.slow
def test_a_home_folder_that_nobody_has_is_a_sentence(tmp_path: Path) -> None:
    folder = {"type": "positional", "valueHint": "folder", "format": "filepath"}
    (tmp_path / "server.json").write_text(json.dumps(description(packageArguments=[folder])))
    refused = grue("add", "server.json", "--set", "folder=~nobody-at-all/x", cwd=tmp_path)
    assert refused.stderr == "grue: There is no home folder for '~nobody-at-all/x'.\n"


@pytest.mark.slow
def test_what_does_not_start_says_how_to_take_it_out(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("raise SystemExit('no weather today')\n")
    added = grue("add", "bad.py", "--yes", "--", "--city", "Oslo", cwd=tmp_path)
    assert added.returncode == 1
    assert "no weather today" in added.stderr
    assert servers(tmp_path)["bad"]["args"] == ["${workspaceFolder}/bad.py", "--city", "Oslo"]
    assert "To take it out again: grue remove bad" in added.stderr
    assert grue("remove", "bad", cwd=tmp_path).returncode == 0


@pytest.mark.slow
def test_an_address_and_a_command_are_told_how_to_be_added(tmp_path: Path) -> None:
    for source, says in (
        ("http://127.0.0.1:9/mcp", "grue add http://127.0.0.1:9/mcp --use remote --name NAME"),
        ("npx", "'npx' is a command. Write npm:PACKAGE in its place"),
        ("https://[::1/mcp", "'https://[::1/mcp' is not a URL: Invalid IPv6 URL."),
        ("absent.py", "There is no file 'absent.py'. Name a program of yours"),
    ):
        refused = grue("add", source, "--yes", cwd=tmp_path)
        assert refused.returncode == 2
        assert says in refused.stderr
    for source in ("http://127.0.0.1:9/mcp", "mind.mcpb", "server.json", "io.example/mind"):
        refused = grue("add", source, "--use", "remote", "--yes", "--", "./docs", cwd=tmp_path)
        assert (refused.returncode, "Arguments are for npm:" in refused.stderr) == (2, True)
    refused = grue("add", "http://a b/", "--use", "remote", "--yes", cwd=tmp_path)
    assert (refused.returncode, "its URL has a space" in refused.stderr) == (2, True)
    assert not list(tmp_path.iterdir())
    grue("add", "http://127.0.0.1:9/mcp", "--use", "remote", "--name", "far", "--yes", cwd=tmp_path)
    assert servers(tmp_path) == {"far": {"url": "http://127.0.0.1:9/mcp"}}


def test_a_proxy_that_cannot_be_used_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "foo://p:1080")
    monkeypatch.setenv("no_proxy", "")
    with pytest.raises(MCPConfigError, match="cannot be used: Unknown scheme"):
        _fetch("https://a.example/x", io.BytesIO(), most=5, within_s=promises.GUARD_S)


def test_a_redirect_from_this_machine_is_followed_through_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Machine(BaseHTTPRequestHandler):
        """A server that redirects, and a proxy."""

        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(302 if self.path == "/x" else 200)
            self.send_header("Location", "http://far.example/y")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Machine) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("no_proxy", "")
        url = f"http://127.0.0.1:{server.server_port}/x"
        try:
            _fetch(url, io.BytesIO(), most=5, within_s=promises.GUARD_S, redirects=1)
        finally:
            server.shutdown()
            thread.join()
    assert asked == ["/x", "http://far.example/y"]


def test_the_certificates_of_the_environment_hold_for_this_machine_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/absent.pem")
    with pytest.raises(MCPConfigError, match="proxies or certificates cannot be used"):
        _fetch("https://localhost:9/x", io.BytesIO(), most=5, within_s=promises.GUARD_S)


def test_a_download_follows_redirects_but_none_from_https_to_http(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        match request.url.path:
            case "/moved":
                return httpx.Response(302, headers={"Location": "https://b.example/here"})
            case "/plain":
                return httpx.Response(302, headers={"Location": "http://b.example/here"})
            case "/round":
                return httpx.Response(302, headers={"Location": "/round"})
        return httpx.Response(200, content=b"bundle")

    def fetched(path: str, most: int, redirects: int) -> bytes:
        into = io.BytesIO()
        _fetch(f"https://a.example/{path}", into, most=most, within_s=promises.GUARD_S, redirects=redirects)
        return into.getvalue()

    client = functools.partial(httpx.AsyncClient, transport=httpx.MockTransport(answer))
    monkeypatch.setattr(httpx, "AsyncClient", client)
    assert fetched("moved", 6, 1) == b"bundle"
    for path, most, redirects, words in (
        ("plain", 6, 5, "status 302"),
        ("moved", 6, 0, "status 302"),
        ("round", 6, 5, "status 302"),
        ("here", 5, 0, "longer than"),
    ):
        with pytest.raises(MCPConfigError, match=words):
            fetched(path, most, redirects)
    assert all(url.startswith("https:") for url in asked)


def test_an_answer_that_does_not_end_is_an_error_however_fast_it_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each piece is there at once, so only a limit for the whole ends the download."""
    monkeypatch.setattr("grue.cli.add._BUNDLE_S", 0.2)

    class Endless(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            for _ in range(2_000_000):
                await anyio.lowlevel.checkpoint()
                yield b"x"

    transport = httpx.MockTransport(lambda _: httpx.Response(200, stream=Endless()))
    monkeypatch.setattr(httpx, "AsyncClient", functools.partial(httpx.AsyncClient, transport=transport))
    nothing = dict.fromkeys(("arguments", "name", "kind", "sha256", "registry", "mcp_config"))
    adding = Adding(source="x", values=(), yes=True, **nothing)
    offered = OfferedBundle(name="x", url="https://a.example/x.mcpb", sha256="0" * 64, others=())
    with (
        pytest.raises(MCPConfigError, match=r"a\.example has not answered completely within 0\.2 s"),
        _downloaded(offered, adding),
    ):
        raise AssertionError("it was downloaded")


def test_a_compressed_answer_is_not_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few hundred bytes that were compressed several times could expand to gigabytes."""
    body = gzip.compress(gzip.compress(b"{}"))
    answer = httpx.Response(200, headers={"content-encoding": "gzip, gzip"}, stream=httpx.ByteStream(body))
    transport = httpx.MockTransport(lambda _: answer)
    monkeypatch.setattr(httpx, "AsyncClient", functools.partial(httpx.AsyncClient, transport=transport))
    with pytest.raises(MCPConfigError, match=r"a\.example has sent a compressed answer"):
        _fetched("https://a.example/server.json")


def test_nothing_is_downloaded_if_somebody_at_the_terminal_says_no(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grue.cli.add._at_a_terminal", lambda: True)
    monkeypatch.setattr("typer.confirm", lambda *_, **__: False)
    monkeypatch.setattr("grue.cli.add._fetch", lambda _, into, **__: into.write(b"bundle"))
    nothing = dict.fromkeys(("arguments", "name", "kind", "sha256", "registry", "mcp_config"))
    adding = Adding(source="x", values=(), yes=False, **nothing)
    offered = OfferedBundle(name="x", url="https://a.example/x.mcpb", sha256="0" * 64, others=())
    with (
        pytest.raises(MCPConfigError, match="Nothing was downloaded"),
        _downloaded(offered, adding),
    ):
        raise AssertionError("it was downloaded")
