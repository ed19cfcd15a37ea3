"""The wheel alone: built as a release is, installed into a fresh environment, used from an empty folder.

uv and pip take what grue depends on from the package indexes that they are set up for.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from doc_blocks import DOCS

ROOT = DOCS.parent
pytest.importorskip("build", reason="build is not installed: pip install build uv")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

_LIMIT_S = 280
INSTALLS = re.compile(r"^(pip install|pipx run|uvx) .*grue.*$", re.MULTILINE)


class Installed(NamedTuple):
    """An environment with the wheel in it.

    Attributes:
        programs: The folder of its commands.
    """

    wheel: Path
    source: Path
    programs: Path


def run(
    folder: Path, command: Sequence[str | Path], programs: Path, *, text: str = "", status: int = 0
) -> str:
    """Run a command without the environment of the checkout, and return what it printed.

    pip takes 0 for what `--no-compile` says: most of what it would compile is never imported here.
    """
    kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "UV_", "SSL_"))}
    for name in ("HOME", "LANG", "TMPDIR"):
        if name in os.environ:
            kept[name] = os.environ[name]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**kept, "PATH": f"{programs}:/usr/bin:/bin", "NO_COLOR": "1", "PIP_NO_COMPILE": "0"},
        input=text,
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    assert done.returncode == status, f"{shlex.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    here = Path(sys.executable).parent
    folder = tmp_path_factory.mktemp("built")
    # It builds the wheel from the source distribution, and so shows that this holds what it takes.
    run(folder, [sys.executable, "-m", "build", "--installer", "uv", "--outdir", folder, ROOT], here)
    (wheel,) = folder.glob("*.whl")
    (source,) = folder.glob("*.tar.gz")
    fresh = tmp_path_factory.mktemp("fresh")
    venv.create(fresh)
    install = ["pip", "install", "--quiet", "--python", fresh, "--constraint", ROOT / "constraints.txt"]
    run(fresh, [here / "uv", *install, f"{wheel}[mcp,yaml]", "pytest"], here)
    return Installed(wheel, source, fresh / "bin")


def test_every_command_works_from_an_empty_folder(installed: Installed, tmp_path: Path) -> None:
    def grue(*words: str, text: str = "") -> str:
        return run(tmp_path, [installed.programs / "grue", *words], installed.programs, text=text)

    assert "grue play --offline" in grue()
    assert "3 turns" in grue("play", "--offline", "--turns", "3", "--quiet")
    assert "finished: the task is done" in grue("run", "--offline")
    assert "The tool says" in grue("chat", "--offline", "--quiet", text="think about lamps\n")
    assert "MCP 2025-11-25, 1 tool" in grue("doctor", "--no-network")
    assert "agent.py" in grue("init", "bot")
    bot = tmp_path / "bot"
    python = installed.programs / "python"
    assert "2 passed" in run(bot, [python, "-m", "pytest", "-q"], installed.programs)
    mock = {"mock": {"command": str(installed.programs / "grue"), "args": ["mock-server", "--stdio"]}}
    (bot / "mcp_config.json").write_text(json.dumps({"mcpServers": mock}), encoding="utf-8")
    assert "mock.echo" in run(bot, [installed.programs / "grue", "tools"], installed.programs)
    sweep = 'work = "zork"\n[settings]\noffline = true\nmcp = false\nturns = 2\n[grid]\nseed = [1, 2]\n'
    (tmp_path / "sweep.toml").write_text(sweep, encoding="utf-8")
    assert "2 episodes" in grue("fleet", "run", "sweep.toml", "--workers", "1")


@pytest.mark.parametrize("page", ["README.md", "docs/start.md"])
def test_the_first_example_of_a_page_runs(installed: Installed, tmp_path: Path, page: str) -> None:
    """Those that need neither a model nor a server; with a name of a file, as somebody would paste it."""
    text = (ROOT / page).read_text(encoding="utf-8")
    (example, *_) = [
        block
        for block in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        if "ScriptedLlmServer" in block
    ]
    (tmp_path / "first.py").write_text(example, encoding="utf-8")
    said = run(tmp_path, [installed.programs / "python", "first.py"], installed.programs)
    assert "12 eggs" in said
    assert "pantry.stock" in run(tmp_path, [installed.programs / "grue", "trace", "show"], installed.programs)


def test_the_lines_that_install_grue_work_with_the_wheel(installed: Installed, tmp_path: Path) -> None:
    """As the quick start has them, with the wheel's path where they say `grue`.

    The tests' pip installs into the new environment, which would take five seconds to get one of its own.
    """
    here = Path(sys.executable).parent
    lines = [found[0] for found in INSTALLS.finditer((DOCS / "start.md").read_text(encoding="utf-8"))]
    assert {line.split()[0] for line in lines} == {"pip", "pipx", "uvx"}
    for number, line in enumerate(lines):
        command = line.partition("  #")[0]
        for name in ("pipx", "uvx"):
            if command.startswith(name) and shutil.which(name, path=str(here)) is None:
                pytest.fail(f"{name} is not installed: pip install pipx uv")
        words = [
            re.sub(r"^(\./)?grue\[(\w+(,\w+)*)\]$", rf"{installed.wheel}[\2]", word)
            for word in shlex.split(command)
        ]
        assert any(str(installed.wheel) in word for word in words), command
        folder = tmp_path / str(number)
        folder.mkdir()
        if words[0] == "pip":
            venv.create(folder / "venv")
            run(folder, [sys.executable, "-m", "pip", "--python", folder / "venv", *words[1:]], here)
            assert "grue 0" in run(folder, [folder / "venv" / "bin" / "grue", "--version"], here)
        else:
            assert "0 of 100 points" in run(folder, [here / words[0], *words[1:], "--turns", "2"], here)


def test_the_oldest_versions_that_it_asks_for_are_enough(installed: Installed, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = [*project["dependencies"], *project["optional-dependencies"]["mcp"]]
    install = ["pip", "install", "--quiet", "--resolution", "lowest-direct", "--python", tmp_path / "venv"]
    run(tmp_path, [Path(sys.executable).parent / "uv", *install, installed.wheel, *asked], installed.programs)
    programs = tmp_path / "venv" / "bin"
    assert "0 of 100 points" in run(
        tmp_path, [programs / "grue", "play", "--offline", "--turns", "1"], programs
    )
    answer = "import msgspec, grue; grue.AnswerSpec.of(msgspec.defstruct('Answer', [('yes', bool)]))"
    run(tmp_path, [programs / "python", "-c", answer], programs)


def test_the_source_distribution_has_no_path_of_this_machine(installed: Installed) -> None:
    listed = run(installed.source.parent, ["tar", "-tzf", installed.source], installed.programs)
    assert str(ROOT) not in listed
    packed = run(
        installed.source.parent,
        ["tar", "-xzOf", installed.source, "--wildcards", "*/PKG-INFO"],
        installed.programs,
    )
    assert str(ROOT) not in packed
