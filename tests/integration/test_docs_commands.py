"""The shell commands of the documents: each is run as pasted, or has a reason why it is not.

They share one folder, with a project file that names a scripted endpoint, a server and two equal episodes of
13 turns. A command may use what those before it have left there. The commands of `start.md` run in
`test_docs_blocks.py`.
"""

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import environment, forked
from doc_blocks import DOCS, THINK, commands, project_file
from obliging_llm import oblige

from grue.cli.run import EXAMPLE
from grue.testing.llm_server import LlmReply, LlmRequest, ScriptedLlmServer, text_reply

NOT_RUN = (
    (r"make |pip |podman ", "CI runs the targets that need no network, and installs the wheel"),
    (r"export |cd ", "sets up the reader's shell"),
    (r"python -m pytest|grue init|python agent.py|grue call pantry", "tests/integration/test_docs_blocks.py"),
    (r"python docs/examples/two_actors", "tests/integration/test_runtime_guide.py"),
    (r"python docs/examples/triage", "tests/integration/test_hosts_guide.py"),
    (r"grue call .* \.\.\.$", "a part of the arguments; tests/integration/test_docs_blocks.py"),
    (r"grue play .*--game zork1", "needs a story file; tests/integration/test_zmachine_game.py"),
    (r"grue play --langfuse", "needs an account; tests/integration/test_langfuse_export.py"),
    (r".*grue play --otel", "needs a collector; tests/integration/test_otel_export.py"),
    (r"grue (login|logout) ", "needs a server with OAuth; tests/integration/test_oauth.py"),
    (r"grue trace serve", "serves until Ctrl-C; tests/integration/test_trace_serve.py"),
    (
        r"grue trace to-test .*--tools",
        "needs functions of the reader's; tests/integration/test_trace_to_test.py",
    ),
    (r"grue fleet fork ", "needs turns that fit; tests/integration/test_fleet_fork.py"),
    (r".*runs/FORK", "needs a fork; tests/integration/test_fork.py"),
    (r"grue fork ", "asks the endpoint of the record; tests/integration/test_fork.py"),
    (r"grue run --resume", "needs a run that was interrupted; tests/integration/test_skill_agent.py"),
    (
        r"python sums\.py|grue fleet (compare|score|failures|report|export)|grue trace query .* runs/sums",
        "tests/integration/test_evaluating_guide.py",
    ),
    (r"grue fleet run \S+$|grue fleet table", "80 whole games; tests/integration/test_fleet.py"),
)
PRINTF = re.compile(r"printf '([^']*)' \| (.*)")
A_RUN = re.compile(r"runs/(?:RUN\b|\d{8}-\d{6}-\d+)")
OTHER = "20260101-000000-1"
GAME = "[tool.zorkgpt.episode]\nmax_turns_per_episode = 2\n"


REPLIES = {
    "text adventure": {"thinking": "Where am I?", "action": "look", "new_objective": None},
    "time sheets": {"actions": [{"type": "finish", "params": {"answer": "They are sorted."}}]},
}
"""Replies to the hosts of grue, each by words of its system prompt."""


def played(request: LlmRequest) -> LlmReply:
    """Reply as a model would that plays, or that carries out a task; to others, oblige."""
    said = str(request.messages[:1])
    return next(
        (text_reply(json.dumps(reply)) for words, reply in REPLIES.items() if words in said), oblige(request)
    )


@pytest.fixture
def endpoint() -> Iterator[str]:
    with ScriptedLlmServer(played) as server:
        yield server.base_url


@pytest.fixture
def project(tmp_path: Path, endpoint: str) -> Path:
    """The reader's folder: a checkout's examples, a configuration, and two equal episodes in `runs`."""
    (tmp_path / "pyproject.toml").write_text(project_file(endpoint, asks=False) + GAME, encoding="utf-8")
    mind = {"command": THINK[0], "args": [THINK[1]]}
    servers = {"mcpServers": {"mind": mind}}
    (tmp_path / "mcp_config.json").write_text(json.dumps(servers), encoding="utf-8")
    shutil.copytree(DOCS / "examples", tmp_path / "docs" / "examples")
    for name in ("skills", "workspace"):
        shutil.copytree(EXAMPLE.parent / name, tmp_path / name)
    agent = EXAMPLE.read_text(encoding="utf-8")
    own = re.sub(r"https://openrouter\S+", endpoint, agent)
    (tmp_path / "agent.yaml").write_text(own, encoding="utf-8")
    run(tmp_path, "grue play --offline --turns 13 --quiet")
    (one,) = (tmp_path / "runs").iterdir()
    shutil.copytree(one, tmp_path / "runs" / OTHER)
    return tmp_path


def run(folder: Path, line: str) -> None:
    """Run a command line as pasted, and see that it succeeds."""
    text, command = (found[1], found[2]) if (found := PRINTF.fullmatch(line)) else ("", line)
    program, *words = shlex.split(command)
    assert program == "grue", f"no rule for this command: {line}"
    done = subprocess.run(
        forked("grue", *words),
        cwd=folder,
        env=environment(BROWSER="true", OPENROUTER_API_KEY="a-key-of-the-reader"),
        # A chat in which nothing is said leaves no run to go on with.
        input=text.replace("\\n", "\n") or ("Hello.\n" if words[0] == "chat" else ""),
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    nothing_fits = done.returncode == 1 and "grue: No message of" in done.stderr
    assert done.returncode == 0 or nothing_fits, f"{line}: {done.returncode}\n{done.stdout}{done.stderr}"


@pytest.mark.slow
@pytest.mark.made_up_trace
def test_the_commands_of_the_pages_run_as_pasted(project: Path) -> None:
    one = max(each.name for each in (project / "runs").iterdir())
    latest = {"grue play": one}  # run folder by program
    ran: set[str] = set()
    for _, line in commands():
        if line in ran or any(re.match(pattern, line) for pattern, _ in NOT_RUN):
            continue
        ran.add(line)
        program = re.sub(r".*\| ", "", line)[: len("grue play")].strip()
        before = {each.name for each in (project / "runs").iterdir()}
        line = re.sub(r"\bOTHER\b", f"runs/{OTHER}", A_RUN.sub(f"runs/{latest.get(program)}", line))
        run(project, re.sub(r" RUN\b", f" runs/{one}", line))
        for made in {each.name for each in (project / "runs").iterdir() if each.is_dir()} - before:
            latest[program] = made
    assert len(ran) > 20


def test_each_reason_is_of_a_command_and_each_test_that_it_names_exists() -> None:
    lines = [line for _, line in commands()]
    for pattern, reason in NOT_RUN:
        assert any(re.match(pattern, line) for line in lines), pattern
        for named in re.findall(r"tests/[\w/]+\.py", reason):
            assert (DOCS.parent / named).exists(), named
