"""What a user sees when something is missing or wrong: a sentence or two, a status, never a traceback."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import bodies, faulty, grue, server_pids, write_servers

from grue.cli.app import app
from grue.errors import GameError
from grue.hosts.zork.games.house import HouseGame
from grue.testing.llm_server import ScriptedLlmServer, error_reply, text_reply

WITHOUT_MCP = """
import importlib.metadata as metadata, sys
real = metadata.version
def version(name):
    if name == "mcp":
        raise metadata.PackageNotFoundError(name)
    return real(name)
metadata.version = version
from pathlib import Path
glob = Path.glob
Path.glob = lambda self, *how: (path for path in glob(self, *how) if not path.name.startswith("mcp-"))
sys.modules["mcp"] = None
"""

WITHOUT_INTERPRETERS = """
import importlib.util, shutil, os
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *args: None if name == "fernz" else find_spec(name, *args)
from pathlib import Path
shutil.which = lambda *args, **kwargs: None
real_is_file, real_access = Path.is_file, os.access
Path.is_file = lambda self, **k: False if self.name == "dfrotz" else real_is_file(self, **k)
os.access = lambda path, *a, **k: False if str(path).endswith("dfrotz") else real_access(path, *a, **k)
"""

ANSWER = json.dumps({"thinking": "why not", "action": "north", "new_objective": None})


@pytest.fixture
def llm() -> Iterator[str]:
    """An endpoint that answers `north` to everything."""
    with ScriptedLlmServer(lambda _request: text_reply(ANSWER)) as server:
        yield server.base_url


def says(played: object, status: int, *texts: str) -> None:
    returncode, stderr = played.returncode, played.stderr  # type: ignore[attr-defined]
    assert "Traceback" not in stderr
    assert returncode == status, stderr
    for text in texts:
        assert text in stderr
    assert len(stderr.strip().splitlines()) <= 12, "a sentence or two, and the facts"


@pytest.mark.slow
def test_the_bundled_server_is_named_with_the_way_to_have_none(tmp_path: Path) -> None:
    played = grue("play", "--offline", "--turns", "1", cwd=tmp_path)
    says(
        played, 0, "no MCP servers are configured, so the bundled server, 'mind', is used. For none: --no-mcp"
    )
    assert "For none" not in grue("play", "--offline", "--turns", "1", "--no-mcp", cwd=tmp_path).stderr
    (tmp_path / "mcp_config.json").write_text('{"mcpServers": {"todo": {"command": "no-such-program"}}}')
    told = grue("play", "--offline", "--turns", "1", cwd=tmp_path)
    says(
        told, 0, "mcp_config.json is not used without --mcp-config, or enabled = true, so the bundled server"
    )


@pytest.mark.slow
def test_r14_4_without_mcp_the_install_command_is_named(tmp_path: Path) -> None:
    played = grue("play", "--offline", "--turns", "1", cwd=tmp_path, before=WITHOUT_MCP)
    says(played, 2, "pip install 'mcp>=2.3,<3'")


@pytest.mark.slow
def test_without_mcp_a_game_without_tools_is_played(tmp_path: Path) -> None:
    played = grue("play", "--offline", "--turns", "1", "--no-mcp", cwd=tmp_path, before=WITHOUT_MCP)
    assert played.returncode == 0, played.stderr


@pytest.mark.slow
def test_without_an_interpreter_the_install_commands_are_named(tmp_path: Path) -> None:
    story = tmp_path / "story.z3"
    story.write_bytes(bytes([3]) + bytes(2000))
    played = grue("play", "--offline", "--game", str(story), cwd=tmp_path, before=WITHOUT_INTERPRETERS)
    says(played, 2, "apt-get install frotz", "pip install 'fernz>=0.0.4,<0.1'")


@pytest.mark.parametrize("game", ["chess", "missing.z3", "notes.txt"])
@pytest.mark.slow
def test_a_game_that_is_none_is_named(tmp_path: Path, game: str) -> None:
    says(grue("play", "--offline", "--game", game, cwd=tmp_path), 2, game)


def test_r2_3_a_broken_mcp_config_names_file_line_and_column(tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text('{\n  "mcpServers": {,}\n}')
    played = grue("play", "--offline", "--mcp-config", "mcp.json", cwd=tmp_path)
    says(played, 2, "MCP initialization failed: ", "mcp.json", "line 2, column 18")


def test_r2_2_a_missing_mcp_config_says_what_to_do(tmp_path: Path) -> None:
    played = grue("play", "--offline", "--mcp-config", "nowhere.json", cwd=tmp_path)
    says(played, 2, "The file of MCP servers nowhere.json was not found", "grue init")
    assert list(tmp_path.iterdir()) == [], "nothing was started, and nothing is left"


@pytest.mark.slow
def test_a_start_that_fails_leaves_no_run_folder(tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text('{"mcpServers": {"a": {"command": "x", "env": {"K": "${NOT_SET}"}}}}')
    says(grue("play", "--offline", "--mcp-config", "mcp.json", cwd=tmp_path), 2, "NOT_SET")
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.slow
def test_an_unknown_key_in_the_mcp_table_suggests_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.zorkgpt.mcp]\nmax_tool_iteration = 3\n")
    played = grue("play", "--offline", cwd=tmp_path)
    says(played, 2, "max_tool_iteration", "max_tool_iterations")


@pytest.mark.slow
def test_a_run_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    played = grue("play", "--offline", "--run-dir", "file/run", cwd=tmp_path)
    says(played, 1, "Cannot create the run folder file/run")


def test_r12_5_a_model_that_cannot_call_tools_is_refused_before_a_spawn(tmp_path: Path) -> None:
    played = grue("play", "--offline", "--model", "o1-mini", "--run-dir", "run", cwd=tmp_path)
    says(played, 1, "Model 'o1-mini' does not support tool calling.", "mcp.enabled = false")
    assert bodies(tmp_path / "run", "OpenSession") == []


def test_a_missing_key_is_told_before_anything_starts(tmp_path: Path) -> None:
    says(grue("play", cwd=tmp_path), 2, "OPENROUTER_API_KEY", "--offline")


@pytest.mark.parametrize("status", [401, 402, 403, 404])
@pytest.mark.slow
def test_an_endpoint_that_refuses_ends_the_episode(tmp_path: Path, status: int) -> None:
    refusal = error_reply(status, "not today", code=status)
    with ScriptedLlmServer([refusal] * 3) as server:
        played = grue(
            *("play", "--base-url", server.base_url, "--model", "m", "--run-dir", "run"), cwd=tmp_path
        )
    says(played, 1, str(status), "not today")
    assert bodies(tmp_path / "run", "EpisodeEnded")[0]["reason"] == "failed"


@pytest.mark.slow
def test_an_endpoint_that_nobody_serves_ends_the_episode_in_its_first_turn(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/v1"
        played = grue("play", "--base-url", url, "--model", "m", "--run-dir", "run", cwd=tmp_path)
    says(played, 1, "cannot connect", "Is the server running?")
    assert "\\n" not in played.stdout + played.stderr
    read = grue("trace", "show", "run", "--kind", "EpisodeEnded", cwd=tmp_path)
    assert "failed Is the server running?" in read.stdout
    assert "of turn 1." in grue("trace", "show", "run", "--turn", "9", cwd=tmp_path).stderr
    (ended,) = bodies(tmp_path / "run", "EpisodeEnded")
    assert (ended["reason"], ended["turns"]) == ("failed", 1)
    assert len(bodies(tmp_path / "run", "CompletionRetried")) == 1


@pytest.mark.slow
def test_an_episode_of_nothing_but_fallbacks_has_failed(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.zorkgpt.retry]\nmax_retries = 0\n")
    failure = error_reply(500, "out of order", code=500)
    with ScriptedLlmServer([failure] * 2) as server:
        played = grue(
            *("play", "--base-url", server.base_url, "--model", "m", "--run-dir", "run", "--turns", "2"),
            cwd=tmp_path,
        )
    assert played.returncode == 1
    (ended,) = bodies(tmp_path / "run", "EpisodeEnded")
    assert ended["reason"] == "fallbacks"
    assert ended["detail"].startswith("2 turns in a row fell back to 'look': ")
    assert "\\n" not in played.stdout


@pytest.mark.slow
def test_an_endpoint_that_only_fails_is_not_played_on_silently(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.zorkgpt.retry]\nmax_retries = 0\n")
    failure = error_reply(500, "out of order", code=500)
    with ScriptedLlmServer([failure] * 9) as server:
        played = grue(
            *("play", "--base-url", server.base_url, "--model", "m", "--run-dir", "run"), cwd=tmp_path
        )
    assert played.returncode == 1
    assert "fallbacks: " in played.stdout
    ended = bodies(tmp_path / "run", "EpisodeEnded")[0]
    assert ended["turns"] == 3
    assert "out of order" in ended["detail"]


def test_r6_1_a_command_that_does_not_exist(tmp_path: Path, llm: str) -> None:
    config = write_servers(tmp_path / "mcp.json", ghost={"command": "no-such-server-4711", "args": ["--x"]})
    played = grue("play", "--base-url", llm, "--model", "m", "--mcp-config", str(config), cwd=tmp_path)
    says(
        played,
        1,
        "Failed to start MCP server 'ghost': ",
        "Command: no-such-server-4711 --x",
        "Install no-such-server-4711",
    )


@pytest.mark.slow
def test_r6_1_a_server_that_exits_at_once_shows_its_last_words(tmp_path: Path, llm: str) -> None:
    entry = faulty("--exit-at", "start", "--exit-status", "3", "--stderr", "no config: set FOO")
    config = write_servers(tmp_path / "mcp.json", broken=entry)
    played = grue("play", "--base-url", llm, "--model", "m", "--mcp-config", str(config), cwd=tmp_path)
    says(
        played, 1, "Failed to start MCP server 'broken': ", "exit status 3", "no config: set FOO", "Command: "
    )


@pytest.mark.slow
def test_r6_1_a_server_that_never_answers_is_given_its_start_up_time(tmp_path: Path, llm: str) -> None:
    write_servers(tmp_path / "mcp_config.json", mute=faulty("--silent-at", "initialize"))
    (tmp_path / "pyproject.toml").write_text(
        "[tool.zorkgpt.mcp]\nenabled = true\nserver_startup_timeout_seconds = 0.5\n"
    )
    played = grue("play", "--base-url", llm, "--model", "m", cwd=tmp_path)
    says(played, 1, "Failed to start MCP server 'mute': ", "within 0.5 s")


@pytest.mark.slow
def test_r6_1_a_node_server_that_fails_is_told_what_to_check(tmp_path: Path, llm: str) -> None:
    config = write_servers(
        tmp_path / "mcp.json", thoughtbox={"command": "npx", "args": ["-y", "--no-such-flag"]}
    )
    played = grue(
        *("play", "--base-url", llm, "--model", "m", "--mcp-config", str(config)),
        cwd=tmp_path,
        PATH="/nowhere",
    )
    says(played, 1, "Check that Node.js is installed and the package is available.")


FAILS_FROM_TURN_2 = """
import os, sys
from pathlib import Path
count = Path(os.environ["SPAWNS"])
spawned = int(count.read_text() or 0) + 1
count.write_text(str(spawned))
if spawned in [int(n) for n in os.environ["FAILING"].split(",")]:
    sys.exit("spawn %d fails" % spawned)
os.execv(sys.executable, [sys.executable, "-I", os.environ["SERVER"]])
"""


@pytest.mark.parametrize(
    ("failing", "spawns", "kinds"),
    [
        ("2", 6, ["answered"] * 5),
        ("2,3", 3, ["answered", "degraded", "degraded", "degraded", "degraded"]),
        ("2,4", 7, ["answered"] * 5),
    ],
    ids=["one failure", "two in one turn", "one in each of two turns"],
)
def test_p26_p27_r6_7_a_later_failure_retries_once_in_its_turn_then_disables(
    tmp_path: Path, llm: str, failing: str, spawns: int, kinds: list[str]
) -> None:
    import sys

    from grue.hosts.servers import think

    (tmp_path / "count").write_text("")
    entry = {
        "command": sys.executable,
        "args": ["-c", FAILS_FROM_TURN_2],
        "env": {"SPAWNS": str(tmp_path / "count"), "FAILING": failing, "SERVER": think.__file__},
    }
    config = write_servers(tmp_path / "mcp.json", flaky=entry)
    played = grue(
        *("play", "--base-url", llm, "--model", "m", "--mcp-config", str(config), "--turns", "5"),
        *("--run-dir", "run"),
        cwd=tmp_path,
    )
    assert played.returncode == 0, played.stderr
    run = tmp_path / "run"
    assert int((tmp_path / "count").read_text()) == spawns
    assert [body["kind"] for body in bodies(run, "Decided")] == kinds
    assert len(server_pids(run)) == kinds.count("answered")
    log = (run / "episode.log").read_text()
    assert log.count("MCP session connect failed, retrying") == len(failing.split(",")) - ("2,3" in failing)
    if "2,3" in failing:
        assert log.count("MCP retry failed, disabling MCP for episode") == 1
        events = (run / "events.jsonl").read_text()
        assert events.count('"mcp_disabled_fallback"') == 1
    else:
        assert "MCP session retry successful" in log


@pytest.mark.slow
def test_an_unreadable_trace_is_said_to_be_one(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    says(grue("trace", "show", "notes.txt", cwd=tmp_path), 1, "is not a grue trace")
    says(grue("trace", "show", "nowhere", cwd=tmp_path), 1, "nowhere")


def test_a_game_that_breaks_is_a_failure_and_no_wrong_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(self: HouseGame, command: str) -> None:
        raise GameError("The interpreter died.")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(HouseGame, "step", broken)
    with pytest.raises(SystemExit) as ended:
        app(["play", "--offline", "--no-mcp", "--quiet", "--run-dir", "run"])
    assert ended.value.code == 1
    assert "grue: The interpreter died." in capsys.readouterr().err
    assert json.loads((tmp_path / "run" / "result.json").read_bytes())["reason"] == "failed"
