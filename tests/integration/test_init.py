"""`grue init`: what it writes works at once, nothing is overwritten, and no secret is copied."""

import json
import os
import pty
import runpy
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

import promises
import pytest
from commands import command, environment, grue, grue_unread
from rows import first_of

from grue.cli import init
from grue.sandbox.box import Sandbox
from grue.sandbox.launch import missing_for

SECRET = "ghp_" + "a1b2c3d4e5" * 3
OTHER = {
    "mcpServers": {
        "github": {"command": "npx", "args": ["-y", "server-github"], "env": {"GITHUB_TOKEN": SECRET}},
        "mind": {"command": "other"},
    }
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    cursor = tmp_path / "home" / ".cursor" / "mcp.json"
    cursor.parent.mkdir(parents=True)
    cursor.write_text(json.dumps(OTHER))
    return tmp_path / "home"


def written(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir() if path.is_file()}


@pytest.mark.slow
def test_what_it_writes_passes_at_once(tmp_path: Path, home: Path) -> None:
    made = grue("init", "bot", cwd=tmp_path, HOME=str(home))
    assert made.returncode == 0, made.stderr
    found = "found    servers of Cursor: github, mind. What to add for them: grue init bot --from "
    assert found in made.stdout
    files = written(tmp_path / "bot")
    assert files.keys() == {"agent.py", "test_agent.py", "mcp_config.json"}
    servers = json.loads(files["mcp_config.json"])["mcpServers"]
    assert servers.keys() == {"mind"}
    assert servers["mind"].get("sandbox") == (None if missing_for(Sandbox()) else "pure")
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", "-n", "0"],
        cwd=tmp_path / "bot",
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "2 passed" in tested.stdout, tested.stdout + tested.stderr
    listed = grue("tools", cwd=tmp_path / "bot")
    assert "mind.think" in listed.stdout, listed.stderr
    linted = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--select", "E,F,I,B", "--line-length", "110", "."],
        cwd=tmp_path / "bot",
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert linted.returncode == 0, linted.stdout


def test_a_user_without_a_home_folder_gets_a_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    init.start_project(tmp_path / "bot", ())
    assert written(tmp_path / "bot").keys() == {"agent.py", "test_agent.py", "mcp_config.json"}


def test_the_commands_take_a_folder_whose_name_begins_with_a_dash(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(home))
    init.start_project(Path("-bot"), ())
    said = capsys.readouterr().out
    assert "grue init ./-bot --from " in said
    assert "  cd ./-bot\n" in said


@pytest.mark.slow
@pytest.mark.parametrize("way", first_of(["v/bin/grue", "ABSOLUTE"]))
def test_the_commands_to_go_on_with_work_from_the_new_folder(tmp_path: Path, home: Path, way: str) -> None:
    """Also if grue is not on the PATH, and was called by a path from the folder above."""
    program = tmp_path / "v" / "bin" / "grue"
    program.parent.mkdir(parents=True)
    # As pip writes it where the path of the Python holds a space: the first line cannot name it.
    start = f"#!/bin/sh\n'''exec' \"{sys.executable}\" \"$0\" \"$@\"\n' '''\n"
    program.write_text(start + "from grue.cli.main import main\nmain()\n")
    program.chmod(0o755)
    env = environment(HOME=str(home), PATH="/usr/bin:/bin")
    called = way.replace("ABSOLUTE", str(program))
    made = subprocess.run(
        [called, "init", "my bot"], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
    )
    next_ones = [
        line.partition(" # ")[0].strip() for line in made.stdout.partition("Next:\n")[2].splitlines()
    ]
    assert next_ones[0] == "cd 'my bot'"
    test, doctor, tools, ask = next_ones[-4:]
    marked = [line.index(" # ") for line in made.stdout.splitlines() if " # " in line]
    assert len(marked) >= 4
    assert len(set(marked)) == 1, "the comments stand below each other"
    assert tools.removesuffix("tools") == doctor.removesuffix("doctor")
    assert ask.partition(" ")[0] == test.partition(" ")[0]
    for line in (f"{doctor} --help", f"{test} --version"):
        subprocess.run(["sh", "-c", line], cwd=tmp_path / "my bot", env=env, check=True, capture_output=True)


class Ollama(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b'{"object": "list", "data": [{"id": "qwen3:8b"}]}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_it_finds_out_which_model_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a key it is what listens where Ollama does, if something does. It asks nobody."""
    for name in ("GRUE_API_KEY", "OPENROUTER_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with HTTPServer(("127.0.0.1", 0), Ollama) as server:
        local = f"http://127.0.0.1:{server.server_port}/v1"
        monkeypatch.setattr(init, "_LOCAL", local)
        monkeypatch.setattr(init, "_LOCAL_S", promises.GUARD_S)
        serving = threading.Thread(target=server.handle_request)
        serving.start()
        assert init._found_model() == (local, "qwen3:8b")
        serving.join()
        monkeypatch.setenv("OPENROUTER_API_KEY", "k-0123456789abcdef")
        assert init._found_model() == init._DEFAULT, "a key says which one is meant"
    monkeypatch.delenv("OPENROUTER_API_KEY")
    assert init._found_model() == init._DEFAULT, "nothing listens any more"


@pytest.mark.slow
def test_servers_of_another_host_come_without_their_secrets(tmp_path: Path, home: Path) -> None:
    made = grue("init", "--from", str(home / ".cursor" / "mcp.json"), cwd=tmp_path, HOME=str(home))
    assert made.returncode == 0, made.stderr
    servers = json.loads((tmp_path / "mcp_config.json").read_text())["mcpServers"]
    assert servers["github"]["env"] == {"GITHUB_TOKEN": "${GITHUB_TOKEN}"}
    assert servers["mind"]["args"] == ["-m", "grue.hosts.servers.think"]
    assert "set      GITHUB_TOKEN in the environment, for the server github" in made.stdout
    assert "the name is taken" in made.stderr
    assert SECRET not in made.stdout + made.stderr + "".join(written(tmp_path).values())


def test_the_written_test_needs_no_key_of_a_copied_server(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = {"github": OTHER["mcpServers"]["github"], "web": {"url": "${env:WEB_URL}/mcp"}}
    (home / ".cursor" / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    init.start_project(tmp_path / "bot", [home / ".cursor" / "mcp.json"])
    monkeypatch.delenv("GITHUB_TOKEN", raising=False)
    config = tmp_path / "bot" / "mcp_config.json"
    monkeypatch.setitem(sys.modules, "agent", SimpleNamespace(CONFIG=config, Answer=None, ask=None))
    assert "${GITHUB_TOKEN}" in config.read_text()
    runpy.run_path(str(tmp_path / "bot" / "test_agent.py"))["test_the_configuration_of_servers_is_valid"](
        monkeypatch
    )


@pytest.mark.slow
def test_nothing_is_overwritten(tmp_path: Path, home: Path) -> None:
    for name in ("agent.py", "test_agent.py", "mcp_config.json"):
        (tmp_path / name).write_text("mine")
    made = grue("init", "--from", str(home / ".cursor" / "mcp.json"), cwd=tmp_path, HOME=str(home))
    assert made.returncode == 0, made.stderr
    assert set(written(tmp_path).values()) == {"mine"}
    assert made.stdout.count("which was there already") == 3
    assert '"GITHUB_TOKEN": "${GITHUB_TOKEN}"' in made.stdout, "the servers are shown, to be added by hand"
    assert "set      GITHUB_TOKEN in the environment, for the server github" in made.stdout


@pytest.mark.slow
def test_all_files_are_written_although_nobody_reads_the_output(tmp_path: Path) -> None:
    """As with `grue init | head -1`."""
    assert grue_unread("init", "new", cwd=tmp_path, HOME=str(tmp_path)) == (0, "")
    assert written(tmp_path / "new").keys() == {"agent.py", "test_agent.py", "mcp_config.json"}


@pytest.mark.slow
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, home: Path) -> None:
    for source, problem in (("absent.json", "Cannot read absent.json"), ("home", "Cannot read 'home'")):
        made = grue("init", "--from", source, cwd=tmp_path, HOME=str(home))
        assert (made.returncode, problem in made.stderr) == (2, True), made.stderr
    assert not (tmp_path / "agent.py").exists()


@pytest.mark.parametrize(("answer", "copied"), [("y", True), ("n", False)])
@pytest.mark.slow
def test_at_a_terminal_it_asks(tmp_path: Path, home: Path, answer: str, copied: bool) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command("init"),
        cwd=tmp_path,
        env=environment(HOME=str(home)),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    ) as asking:
        os.close(theirs)
        os.write(ours, f"{answer}\n".encode())
        printed = b""
        try:
            while chunk := os.read(ours, 4096):
                printed += chunk
        except OSError:
            pass  # the program has closed the terminal
        assert asking.wait(60) == 0, printed
    os.close(ours)
    assert b"Cursor has the servers github, mind. Copy them, without secrets?" in printed
    servers = json.loads((tmp_path / "mcp_config.json").read_text())["mcpServers"]
    assert ("github" in servers) is copied


@pytest.mark.slow
def test_a_shell_completes_commands_and_options(tmp_path: Path) -> None:
    def completed(words: str) -> list[str]:
        variables = {
            "_GRUE_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(words.count(" ")),
        }
        done = subprocess.run(
            [Path(sys.executable).with_name("grue")],
            cwd=tmp_path,
            env=environment(**variables),
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
        return done.stdout.split()

    assert "tools" in completed("grue to")
    assert "--interpreter" in completed("grue play --in")


def test_the_model_is_told_no_docstring_as_if_it_were_the_answer(tmp_path: Path) -> None:
    """A small model repeats a description of the schema as its answer."""
    from grue.cli.init import AGENT
    from grue.engine.answers import spec_of

    names: dict[str, object] = {"__name__": "agent", "__file__": str(tmp_path / "agent.py")}
    exec(compile(AGENT, "agent.py", "exec"), names)
    schema = spec_of(names["Answer"]).schema
    assert schema is not None
    assert "description" not in schema.schema
