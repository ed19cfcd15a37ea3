# ruff: noqa: E501 - tables
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import boxes
import commands
import pytest
from msgspec.structs import replace

from grue import LlmSettings, Runner, StdioServer, TurnRequest
from grue.sandbox.box import Sandbox, sandbox_of
from grue.sandbox.learning import Watch, watching
from grue.sandbox.places import places_of
from grue.testing.llm_server import ScriptedLlmServer, text_reply, tool_calls_reply

pytestmark = boxes.needs_hosts

ISOLATED = (sys.executable, "-P", "-c")
"""Without `-P`, Python lists the working directory, and a folder that is listed is proposed as a whole."""

PROGRAM = """
import os, socket, subprocess, sys, tempfile, urllib.request
print(open(sys.argv[1]).read(), end="", flush=True)
for name in ("a", "b"):
    with open("out/" + name, "w") as file: file.write(name)
os.rename("out/a", "out/c"); os.remove("out/c")
tempfile.mkdtemp()
os.path.exists("/etc/shadow")
subprocess.run(["cat", sys.argv[2]], check=True)
try: socket.create_connection(("127.0.0.1", int(sys.argv[3])), 60).close(); print("connected")
except OSError as error: print(error)
"""

READER = """
import json, sys
TOOL = {"name": "read", "description": "Read a file.", "inputSchema": {"type": "object", "properties": {"path": {"type": "string"}}}}
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked: continue
    if asked["method"] == "initialize":
        result = {"protocolVersion": asked["params"]["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": {"name": "r", "version": "1"}}
    elif asked["method"] == "tools/list": result = {"tools": [TOOL]}
    elif asked["method"] == "tools/call":
        with open(asked["params"]["arguments"]["path"]) as file: result = {"content": [{"type": "text", "text": file.read()}]}
    else:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "error": {"code": -32601, "message": "no"}}), flush=True)
        continue
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""


@pytest.mark.slow
def test_the_box_that_was_learned_suffices_and_is_narrow(tmp_path: Path) -> None:
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
        out = str(tmp_path / "out")
        assert watch.reasons(cwd=str(tmp_path)) == {out: f"{out}/a"}
        assert boxes.run(learned, *ISOLATED, PROGRAM, *arguments, cwd=tmp_path) == free
    assert "PermissionError" in boxes.python(learned, f"open({str(tmp_path / 'in' / 'other')!r})").stderr


def test_a_call_that_no_box_can_allow_opens_nothing(tmp_path: Path) -> None:
    code = """
import socket
with socket.socket(type=socket.SOCK_DGRAM) as s: s.connect(("127.0.0.1", 53))
with socket.socket() as s: s.connect_ex(("127.0.0.1", 0))
for absent in ("absent", chr(0) + "absent"):
    with socket.socket(socket.AF_UNIX) as s: s.connect_ex(absent)
try: open("")
except FileNotFoundError as error: print(error.errno)"""
    watch = Watch()
    assert boxes.run(watching(watch), *ISOLATED, code, cwd=tmp_path).stdout == "2\n"
    assert watch.proposal(cwd=str(tmp_path)) == Sandbox()


@pytest.mark.skipif(sys.version_info < (3, 11, 4), reason="before Python 3.11.4, vfork holds the GIL")
def test_processes_still_start_by_vfork_after_a_program_was_watched() -> None:
    boxes.python(watching(Watch()), "")
    assert subprocess._USE_VFORK  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_program_that_looks_up_hosts_itself_needs_the_whole_network(tmp_path: Path) -> None:
    ask = 'import socket\nwith socket.socket(type=socket.SOCK_DGRAM) as s: s.connect(("127.0.0.1", 53))\n'
    connect = "with socket.socket() as s: s.setblocking(False); s.connect_ex(('203.0.113.1', 9))\n"
    for code, network in ((ask + connect, True), (f"import socket\n{connect}", ("203.0.113.1:9",))):
        watch = Watch()
        boxes.run(watching(watch), *ISOLATED, code, cwd=tmp_path)
        assert watch.proposal(cwd=str(tmp_path)).network == network


def test_a_unix_socket_that_exists_is_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = "import socket\nwith socket.socket(socket.AF_UNIX) as s: s.connect_ex('s')"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("s")
        watch = Watch()
        boxes.run(watching(watch), *ISOLATED, code, cwd=tmp_path)
    assert watch.proposal(cwd=str(tmp_path)).unix_sockets


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
    assert watch.left_out() == (str(tmp_path / "home"),)


def test_packages_are_named_whole_and_the_home_that_the_program_was_told_never(tmp_path: Path) -> None:
    home, package = tmp_path / "home", tmp_path / "app" / "node_modules" / "one"
    (home / "cache").mkdir(parents=True)
    package.mkdir(parents=True)
    (package / "index.js").touch()
    (home / "settings").touch()
    code = """
import os
open(os.environ["FILE"]).close(); open(os.path.expanduser("~/settings")).close()
os.makedirs(os.path.expanduser("~/cache"), exist_ok=True); os.mkdir(os.path.expanduser("~/made"))
open(os.path.expanduser("~/cache/x"), "w").close()"""
    watch = Watch()
    told = {"HOME": str(home), "FILE": str(package / "index.js")}  # an argument would be its own file
    boxes.python(watching(watch), code, cwd=tmp_path, env=told)
    learned = watch.proposal(cwd="/")
    assert learned.read == (str(tmp_path / "app" / "node_modules"), str(home / "settings"))
    assert learned.write == (str(home / "cache"),)


@pytest.mark.slow
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


@pytest.mark.slow
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
    think = 'think {"thought": "x", "thoughtNumber": 1, "totalThoughts": 1, "nextThoughtNeeded": false}'
    calls = f"{think}\nmind.{think}\nabsent {{}}\n"
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
    assert "3 calls, 1 failed" in learned.stderr
    assert sandbox_of(json.loads(learned.stdout)["sandbox"]) == Sandbox()
    cut = subprocess.run(
        learn,
        cwd=tmp_path,
        env=commands.environment(),
        input=f"{calls}think {{bad\n",
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "grue: Line 4: write TOOL and a JSON object, as" in cut.stderr
    assert (cut.returncode, cut.stdout) == (2, learned.stdout), "what was learned before is printed"
    unknown = commands.grue("sandbox", "try", "absent", "--mcp-config", str(path), "--", "true", cwd=tmp_path)
    assert "no preset and no server 'absent'" in unknown.stderr
    (tmp_path / "garbage").write_bytes(b"\x01\x02")
    (tmp_path / "garbage").chmod(0o755)
    garbage = commands.grue("sandbox", "try", "files", "--", "./garbage", cwd=tmp_path)
    assert garbage.returncode == 2
    assert "garbage cannot be started: Exec format error." in garbage.stderr


@pytest.mark.slow
def test_the_command_names_the_file_for_which_it_opens_a_folder(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    path = configuration(tmp_path)
    entry = json.loads(path.read_text())["mcpServers"]["mind"]
    code = f"import runpy\nopen('out/a', 'w').close()\nrunpy.run_path({entry['args'][-1]!r}, run_name='__main__')"
    configuration(tmp_path, args=["-P", "-c", code], cwd=str(tmp_path))
    learned = subprocess.run(
        commands.command("sandbox", "learn", str(path), "mind"),
        cwd=tmp_path,
        env=commands.environment(),
        input="",
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    out = tmp_path / "out"
    assert json.loads(learned.stdout)["sandbox"]["write"] == [str(out)]
    assert f"The server may write in all of {out} because it changed {out}/a.\n" in learned.stderr


@pytest.mark.slow
@pytest.mark.parametrize("call", ['think {"a":' + "[" * 5000, 'think {"a": "\udcff"}'], ids=["deep", "bytes"])
def test_a_call_that_cannot_be_read_is_an_error_in_one_line(call: str, tmp_path: Path) -> None:
    learned = subprocess.run(
        commands.command("sandbox", "learn", str(configuration(tmp_path)), "mind"),
        cwd=tmp_path,
        env=commands.environment(LC_ALL="C"),
        input=f"{call}\n".encode(errors="surrogateescape"),
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert learned.returncode == 2, learned
    assert learned.stderr.startswith(b"grue: "), learned
    assert learned.stderr.count(b"\n") == 1


@pytest.mark.slow
def test_what_is_tried_runs_within_the_limits_of_its_box_from_its_first_instruction(tmp_path: Path) -> None:
    path = configuration(tmp_path, sandbox={"open_files": 32})
    limits = ("sandbox", "try", "mind", "--mcp-config", str(path), "--", "sh", "-c", "ulimit -n; kill -9 $$")
    tried = commands.grue(*limits, cwd=tmp_path)
    assert (tried.stdout, tried.returncode) == ("32\n", 128 + 9), tried


@pytest.mark.slow
def test_what_is_tried_in_a_servers_box_may_read_what_the_server_may(tmp_path: Path) -> None:
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    for folder in (project, elsewhere):
        folder.mkdir()
        (folder / "notes").write_text("read\n")
    (project / "server.py").touch()
    path = configuration(tmp_path, args=[str(project / "server.py")], cwd=str(project), sandbox="pure")
    for folder, text in ((project, "read\n"), (elsewhere, "")):
        words = ("sandbox", "try", "mind", "--mcp-config", str(path), "--", "cat", str(folder / "notes"))
        assert commands.grue(*words, cwd=tmp_path).stdout == text


@pytest.mark.slow
def test_a_ctrl_c_ends_what_is_tried_and_leaves_no_scratch_folder(tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    tried = subprocess.Popen(
        commands.command("sandbox", "try", "pure", "--", "sh", "-c", "echo up; exec sleep 1000"),
        cwd=tmp_path,
        env=commands.environment(TMPDIR=str(tmp_path / "scratch")),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert tried.stdout is not None
    with tried.stdout:
        assert tried.stdout.readline() == "up\n"
        assert len([*(tmp_path / "scratch").iterdir()]) == 1
        os.killpg(tried.pid, signal.SIGINT)
        assert tried.wait(commands.DEADLINE_S) == 130
        assert tried.stdout.read() == "", "the program is gone, and has closed its output"
    assert [*(tmp_path / "scratch").iterdir()] == []


@pytest.mark.slow
def test_the_calls_of_a_trace_are_made_again_while_the_server_is_watched(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    for name in ("asked", "other", "elsewhere"):
        (work / name).write_text(name)
    program = tmp_path / "server" / "reader.py"
    program.parent.mkdir()
    program.write_text(READER)
    path = tmp_path / "mcp_config.json"
    entry = {"command": sys.executable, "args": ["-P", str(program)], "cwd": str(tmp_path)}
    path.write_text(json.dumps({"mcpServers": {"reader": entry, "another": entry}}))
    trace = tmp_path / "turn.jsonl"
    calls = tool_calls_reply(
        ("reader.read", {"path": str(work / "asked")}), ("another.read", {"path": str(work / "elsewhere")})
    )
    free = StdioServer(name="reader", command=sys.executable, args=("-P", str(program)))
    servers = {"reader": free, "another": replace(free, name="another")}
    with ScriptedLlmServer([calls, text_reply("done")]) as llm:
        settings = LlmSettings(base_url=llm.base_url, model="m")
        with Runner(llm=settings, servers=servers, trace=trace) as runner:
            runner.run_turn(TurnRequest(system="s", user="u"))
    learned = commands.grue("sandbox", "learn", str(path), "reader", "--trace", str(trace), cwd=tmp_path)
    assert learned.returncode == 0, learned
    assert "read: answered" in learned.stderr
    assert "1 call, 0 failed" in learned.stderr
    box = sandbox_of(json.loads(learned.stdout)["sandbox"])
    assert box is not None
    assert str(work / "asked") in [str(tmp_path / each) for each in box.read]
    assert not {"elsewhere", "other", "work"} & {Path(each).name for each in box.read}
    absent = commands.grue("sandbox", "learn", str(path), "reader", "--trace", "no.jsonl", cwd=tmp_path)
    assert absent.returncode != 0
    assert "no.jsonl" in absent.stderr
    path.write_text(json.dumps({"mcpServers": {"reader": {**entry, "sandbox": "pure"}}}))
    refused = commands.grue("call", "reader.read", "--arg", f"path={work / 'asked'}", cwd=tmp_path)
    assert refused.returncode == 1, refused
    assert "refused it something: grue sandbox learn mcp_config.json reader\n" in refused.stderr
    not_sent = commands.grue("call", "reader.read", '{"path": 5}', cwd=tmp_path)
    assert not_sent.returncode == 1, not_sent
    assert "sandbox" not in not_sent.stderr


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
