"""The Makefile's set-up, where it fails and where it is tried again."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WITHOUT_ENSUREPIP = """#!/bin/sh
[ "$1" = -m ] || exec "$REAL_PYTHON" "$@"
[ -e installed ] && exec "$REAL_PYTHON" "$@" --without-pip
mkdir -p "$3/bin" && echo half made > "$3/bin/python"
exit 1
"""


FAKE_PYTHON = """#!/bin/sh
echo "python $*" >> "$SAID"
case "$*" in
  *"config get"*) echo "$PIPS_INDEX" ;;
  *" uv") exit "$NO_UV" ;;
esac
"""
FAKE_UV = """#!/bin/sh
echo "uv $*" >> "$SAID"
exit "$UV_FAILS"
"""
PIP = "python -m pip --disable-pip-version-check"
WANTED = "--quiet --constraint constraints.txt --editable .[mcp,yaml]"


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed: apt-get install make")
@pytest.mark.parametrize(
    ("there", "index", "fails", "said"),
    [
        (True, "", 0, [f"uv pip install --python .venv/bin/python {WANTED}"]),
        (
            True,
            "https://own.example/simple",
            0,
            [f"uv pip install --python .venv/bin/python --default-index https://own.example/simple {WANTED}"],
        ),
        (True, "", 2, [f"uv pip install --python .venv/bin/python {WANTED}", f"{PIP} install {WANTED}"]),
        (False, "", 0, [f"{PIP} install --quiet --constraint constraints.txt uv", f"{PIP} install {WANTED}"]),
    ],
    ids=["uv", "uv, with pip's index", "uv fails", "no uv"],
)
def test_uv_installs_and_where_it_cannot_pip_does(
    there: bool, index: str, fails: int, said: list[str], tmp_path: Path
) -> None:
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name, text in {"python": FAKE_PYTHON, **({"uv": FAKE_UV} if there else {})}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    for name in ("pyproject.toml", "constraints.txt", "src/grue/runtime/version.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    env = {"PATH": os.environ["PATH"], "SAID": str(tmp_path / "said"), "PIPS_INDEX": index}
    env |= {"NO_UV": "1", "UV_FAILS": str(fails)}
    make = ["make", "-f", ROOT / "Makefile", ".venv/.play"]
    subprocess.run(make, cwd=tmp_path, env=env, capture_output=True, check=True)
    lines = (tmp_path / "said").read_text().splitlines()
    assert [line for line in lines if "config get" not in line] == said
    assert (tmp_path / ".venv" / ".play").exists()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed: apt-get install make")
def test_an_environment_that_could_not_be_made_is_made_at_the_next_try(tmp_path: Path) -> None:
    """Debian's Python has no ensurepip without python3-venv: venv fails when half of the work is done.

    At the next try, pip is left out of the environment, since it takes six seconds to install. That make
    installs with an environment's own pip is shown by tools/bare_machine.py.
    """
    project = tmp_path / "a project"
    project.mkdir()
    shutil.copy(ROOT / "Makefile", project)
    python = project / "python3.11"
    python.write_text(WITHOUT_ENSUREPIP)
    python.chmod(0o755)

    def make() -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            ["make", f"PYTHON={python}", ".venv/bin/python"],
            cwd=project,
            env={**os.environ, "REAL_PYTHON": sys._base_executable},  # type: ignore[attr-defined]
            capture_output=True,
            text=True,
            check=False,
        )

    failed = make()
    assert failed.returncode == 2
    assert f"apt-get install python3.{sys.version_info.minor}-venv. Then run make again." in failed.stdout
    assert not (project / ".venv").exists()
    (project / "installed").touch()
    assert make().returncode == 0
    made = [project / ".venv/bin/python", "-c", "import sys; print(sys.prefix)"]
    assert subprocess.run(made, capture_output=True, text=True, check=True).stdout == f"{project}/.venv\n"


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed: apt-get install make")
@pytest.mark.slow
def test_in_a_path_with_a_colon_the_advice_is_another_path(tmp_path: Path) -> None:
    """venv refuses such a path."""
    project = tmp_path / "a:b"
    project.mkdir()
    shutil.copy(ROOT / "Makefile", project)
    make = ["make", f"PYTHON={sys.executable}", ".venv/bin/python"]
    failed = subprocess.run(make, cwd=project, capture_output=True, text=True, check=False)
    assert "contains the PATH separator" in failed.stderr
    assert ". Move this folder to a path without a colon. Then run make again.\n" in failed.stdout
