# ruff: noqa: E501 - tables
import json
import os
import subprocess
import sys
from pathlib import Path

import boxes
import commands
import pytest

from grue.sandbox.box import Sandbox, sandbox_of
from grue.sandbox.learning import Watch, watching
from grue.sandbox.places import places_of

pytestmark = boxes.needs_hosts

ISOLATED = (sys.executable, "-P", "-c")
"""Without `-P`, Python lists the working directory, and a folder that is listed is proposed as a whole."""

PROGRAM = """
import os, socket, subprocess, sys, tempfile, urllib.request
print(open(sys.argv[1]).read(), end="")
for name in ("a", "b"):
    with open("out/" + name, "w") as file: file.write(name)
os.rename("out/a", "out/c"); os.remove("out/c")
tempfile.mkdtemp()
os.path.exists("/etc/shadow")
subprocess.run(["cat", sys.argv[2]], check=True)
try: socket.create_connection(("127.0.0.1", int(sys.argv[3])), 60).close(); print("connected")
except OSError as error: print(error)
"""


def test_the_box_that_was_learned_suffices_and_is_narrow(tmp_path: Path) -> None:
    import socket

    (tmp_path / "out").mkdir()
    (tmp_path / "in").mkdir()
    for name in ("one", "two", "other"):
        (tmp_path / "in" / name).write_text(f"{name}\n")
    watch = Watch()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        arguments = (str(tmp_path / "in" / "one"), str(tmp_path / "in" / "two"), port)
        free = boxes.run(watching(watch), *ISOLATED, PROGRAM, *arguments, cwd=tmp_path)
        assert free.stdout == "one\ntwo\nconnected\n", free
        learned = watch.proposal(cwd=str(tmp_path))
        assert learned == Sandbox(
            read=(str(tmp_path / "in" / "one"), str(tmp_path / "in" / "two")),
            write=(str(tmp_path / "out"),),
            network=(f"127.0.0.1:{port}",),
        )
        assert boxes.run(learned, *ISOLATED, PROGRAM, *arguments, cwd=tmp_path) == free
    assert "PermissionError" in boxes.python(learned, f"open({str(tmp_path / 'in' / 'other')!r})").stderr


def test_many_files_become_their_folder_and_a_home_folder_never(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for place in ("home", "data"):
        (tmp_path / place).mkdir()
        for number in range(9):
            (tmp_path / place / str(number)).touch()
    watch = Watch()
    code = "import sys, os\nfor place in sys.argv[1:]:\n for name in os.listdir(place): open(f'{place}/{name}').close()"
    boxes.python(watching(watch), code, str(tmp_path / "home"), str(tmp_path / "data"), cwd=tmp_path)
    read = watch.proposal(cwd=str(tmp_path)).read
    assert str(tmp_path / "data") in read
    assert "~/3" in read
    assert "~" not in read


def test_a_watched_host_is_named_as_the_program_named_it() -> None:
    watch = Watch()
    code = (
        "import urllib.request\ntry: urllib.request.urlopen('http://nowhere.invalid/x')\nexcept OSError: pass"
    )
    boxes.python(watching(watch), code)
    assert watch.proposal(cwd="/").network == ("nowhere.invalid:80",)


def configuration(folder: Path, **entry: object) -> Path:
    spec = __import__("importlib.util").util.find_spec("grue.hosts.servers.think")
    path = folder / "mcp_config.json"
    server = {"command": sys.executable, "args": ["-I", "-S", spec.origin], **entry}
    path.write_text(json.dumps({"mcpServers": {"mind": server}}))
    return path


def test_the_commands_show_try_and_learn(tmp_path: Path) -> None:
    path = configuration(tmp_path, sandbox="files")
    shown = commands.grue("sandbox", "show", "mind", "--mcp-config", str(path), cwd=tmp_path)
    assert shown.returncode == 0, shown
    assert f"writes {tmp_path}" in shown.stdout
    assert "network: none" in shown.stdout
    tried = commands.grue(
        "sandbox", "try", "files", "--", "sh", "-c", "cat /etc/shadow; exit 7", cwd=tmp_path
    )
    assert tried.returncode == 7, tried
    assert "ermission denied" in tried.stderr
    calls = 'think {"thought": "x", "thoughtNumber": 1, "totalThoughts": 1, "nextThoughtNeeded": false}\nabsent {}\n'
    learn = commands.command("sandbox", "learn", str(path), "mind")
    learned = subprocess.run(
        learn,
        cwd=tmp_path,
        env=commands.environment(),
        input=calls,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert learned.returncode == 1, learned
    assert "2 calls, 1 failed" in learned.stderr
    assert sandbox_of(json.loads(learned.stdout)["sandbox"]) == Sandbox()
    unknown = commands.grue("sandbox", "try", "absent", "--mcp-config", str(path), "--", "true", cwd=tmp_path)
    assert "no preset and no server 'absent'" in unknown.stderr


def test_the_bundled_server_runs_in_pure_where_the_machine_can(tmp_path: Path) -> None:
    from grue.hosts.zork.bundled import bundled_server

    server = bundled_server()
    assert server.sandbox == Sandbox()
    found = places_of(
        Sandbox(),
        program=server.command,
        args=server.args,
        cwd="/",
        env=dict(os.environ),
        scratch=str(tmp_path),
    )
    assert found.written == ()
