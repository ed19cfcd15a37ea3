"""The code in the documents: blocks run as pasted, blocks of a file are that file's code, commands exist."""

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import environment, python
from doc_blocks import ASKS, DOCS, THINK, Block, blocks, given, project_file, shell_lines
from doc_servers import Reader
from obliging_llm import oblige
from typer.main import get_command
from typer.testing import CliRunner

from grue import LlmSettings, Runner, TurnRequest
from grue.cli.app import app
from grue.config.mcp_servers import MCPConfig
from grue.config.wiring import from_configuration
from grue.fleet import read_sweep
from grue.fleet.scoring import read_scoring
from grue.hosting import read_servers
from grue.hosts.agent_loop import reset_mcp_client
from grue.hosts.skill_agent.configuration import load_config
from grue.testing.llm_server import ScriptedLlmServer

PYTHON = list(blocks("python"))
FILES = [block for block in PYTHON if re.fullmatch(r"[\w/.]+\.py", block.mark)]
PROGRAMS = [block for block in PYTHON if block.is_program]
RUN = [
    block for block in PYTHON if not block.mark or (block.mark.startswith("run") and block not in PROGRAMS)
]
TESTS = [block for block in RUN if block.is_test]
BY_PAGE: dict[Path, list[Block]] = defaultdict(list)
for _block in RUN:
    if not _block.is_test:
        BY_PAGE[_block.page].append(_block)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with ScriptedLlmServer(oblige) as server:
        yield server.base_url


@pytest.fixture
def _folder(tmp_path: Path, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder as a reader's: with the bundled server configured, and the files that the pages speak of."""
    monkeypatch.chdir(tmp_path)
    mind = {"command": THINK[0], "args": [THINK[1]]}
    Path("mcp_config.json").write_text(json.dumps({"mcpServers": {"mind": mind}}), encoding="utf-8")
    (tmp_path / "leaf.jpg").write_bytes(b"\xff\xd8\xff\xe0" + bytes(100))
    agent = {"task": "Say hello.", "model": {"name": "m", "base_url": endpoint}}
    (tmp_path / "agent.yaml").write_text(json.dumps(agent), encoding="utf-8")
    llm = LlmSettings(base_url=endpoint, model="m")
    with Runner(llm=llm, trace=tmp_path / "traces" / "timeout-in-the-cellar.jsonl") as runner:
        runner.run_turn(TurnRequest(user="Hello."))


@pytest.mark.slow
@pytest.mark.made_up_trace
@pytest.mark.usefixtures("_folder")
@pytest.mark.parametrize("page", BY_PAGE, ids=lambda page: page.stem)
def test_the_blocks_of_a_page_run_as_pasted(page: Path, endpoint: str) -> None:
    """Only the endpoint and the servers of npm are other ones. A block sees the names of those before it."""
    names: dict[str, Any] = {"__name__": "__main__"}
    have = given(endpoint)
    with Reader(have["llm"]) as reader:
        reader.callback(reset_mcp_client)
        for block in BY_PAGE[page]:
            Path("pyproject.toml").write_text(project_file(endpoint, ASKS in block.wanted), encoding="utf-8")
            wanted = have | reader.names(block.wanted)
            names |= {name: wanted[name] for name in block.wanted if name != ASKS}
            try:
                exec(compile(block.at(endpoint, reader.mcp_url), block.name, "exec"), names)
            except Exception as error:
                error.add_note(f"in {block.name}")
                raise


@pytest.mark.slow
@pytest.mark.made_up_trace
@pytest.mark.parametrize("block", PROGRAMS, ids=lambda block: block.name)
def test_a_block_that_is_a_program_runs_from_a_file(block: Block, tmp_path: Path, endpoint: str) -> None:
    (tmp_path / "program.py").write_text(block.at(endpoint), encoding="utf-8")
    done = python("program.py", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5" in done.stdout, "five repetitions have a score"


@pytest.mark.slow
def test_the_tests_of_the_pages_pass_as_pasted(tmp_path: Path) -> None:
    for number, block in enumerate(TESTS):
        (tmp_path / f"test_block_{number}.py").write_text(block.code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        env={**environment(), "PYTHONPATH": str(DOCS / "examples")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("block", FILES, ids=lambda block: block.name)
def test_a_block_of_a_file_is_that_files_code(block: Block) -> None:
    path = DOCS / "examples" / block.mark
    if path.suffix == ".py" and path.exists():
        assert block.code.strip() in path.read_text(encoding="utf-8")
    else:
        assert block.mark == "server.py", f"there is no docs/examples/{block.mark}"


def test_every_mark_says_something() -> None:
    others = [block for block in PYTHON if block not in (*RUN, *FILES, *PROGRAMS)]
    assert all(re.fullmatch(r"not run: \S.{10,}", block.mark) for block in others), others
    for block in others:
        for named in re.findall(r"tests/[\w/]+\.py", block.mark):
            assert (DOCS.parent / named).exists(), f"{block.name}: {named}"


TABLES = [block for language in ("toml", "yaml", "json") for block in blocks(language)]


@pytest.mark.parametrize("block", TABLES, ids=lambda block: block.name)
def test_every_configuration_of_the_pages_is_accepted(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in re.findall(r"\$\{(\w+)\}", block.code):
        monkeypatch.setenv(variable, "https://example.com/")
    code = block.code if block.code.startswith("{") or block.language != "json" else f"{{{block.code}}}"
    file = tmp_path / f"pyproject.{block.language}"
    file.write_text(code, encoding="utf-8")
    match block.language:
        case "json":
            read = json.loads(code)
            file.write_text(json.dumps({"mcpServers": read.get("mcpServers", read)}), encoding="utf-8")
            assert read_servers(file)
        case "yaml":
            pytest.importorskip("yaml", reason="agent.yaml needs the extra: pip install 'grue[yaml]'")
            assert load_config(file)
        case _:
            read = tomllib.loads(code)
            if "tool" in read:
                assert from_configuration(file).llm
            elif "work" in read:
                assert read_sweep(file)
            elif "scorer" in read:
                (tmp_path / "my_scorers.py").write_text("def length(finished): return 0\n", encoding="utf-8")
                monkeypatch.syspath_prepend(tmp_path)
                assert read_scoring(str(file))
            else:
                assert read.keys() == {"project"}, "there is a reader for each kind"


@pytest.mark.slow
def test_every_command_of_the_pages_exists() -> None:
    """Each is read as the command line would read it; `test_docs_commands.py` runs most of them."""
    lines = list(shell_lines())
    assert len(lines) > 50
    makefile = (DOCS.parent / "Makefile").read_text()
    extras = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for page, line in lines:
        command, *words = shlex.split(re.split(r" [|<>]+ |\s*&& | \.\.\.$", line)[0], comments=True)
        if command == "grue":
            _read_as_a_command(page, words)
        elif command == "make":
            for target in (word for word in words if "=" not in word):
                assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{page}: {line}"
        else:
            for wanted in re.findall(r"grue\[([\w,]+)\]", line):
                assert set(wanted.split(",")) <= extras.keys(), f"{page}: {line}"


def _read_as_a_command(page: str, words: list[str]) -> None:
    command: Any = get_command(app)
    name = "grue"
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        assert words[0] in command.commands, f"{page}: there is no `{name} {words[0]}`"
        command, name, words = command.commands[words[0]], f"{name} {words[0]}", words[1:]
    known = {
        option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)
    }
    known |= {"--help", "-h", "--install-completion", "--show-completion"}
    unknown = {word.split("=")[0] for word in words if re.match(r"--?[a-z]", word)} - known
    assert not unknown, f"{page}: `{name}` has no {unknown}"


@pytest.mark.slow
def test_the_quick_start_works_command_by_command(
    tmp_path: Path, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only pip, and the endpoint in agent.py, are left out."""
    monkeypatch.setenv("GRUE_API_KEY", "k-0123456789abcdef")  # without a key, init may find a local model
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("webbrowser.open", lambda _: True)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    page = (DOCS / "start.md").read_text(encoding="utf-8")
    (server,) = (block.code for block in blocks("python") if block.mark == "server.py")
    (config,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    commands = [
        line
        for block in blocks("")
        if block.page.name == "start.md"
        for line in block.code.splitlines()
        if not line.startswith(("pip", "uvx", "export"))
    ]
    assert len(commands) > 7
    for line in commands:
        words = shlex.split(line)
        if words[0] == "cd":
            monkeypatch.chdir(words[1])
        elif words[0] == "grue":
            ran = CliRunner().invoke(app, words[1:])
            assert ran.exit_code == 0, f"{line}: {ran.output}"
        else:
            done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
            assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
            # What the page says to do next.
            Path("server.py").write_text(server, encoding="utf-8")
            Path("mcp_config.json").write_text(config, encoding="utf-8")
            agent = Path("agent.py").read_text(encoding="utf-8")
            url = "https://openrouter.ai/api/v1"
            Path("agent.py").write_text(agent.replace(url, endpoint), encoding="utf-8")
    assert [*MCPConfig.from_file("mcp_config.json").mcpServers] == ["mind", "pantry"]
