"""Try grue with each newer Python that this machine has: install it, import it, play three turns.

    python tools/try_pythons.py              3.12, 3.13 and 3.14, as far as they are found on PATH or in pyenv

Prints a line for each. Exits with 1 if one fails, with 0 also if none is found.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = ("3.12", "3.13", "3.14")
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
PLAY = ("play", "--offline", "--no-mcp", "--turns", "3", "--quiet")


def find(version: str) -> str | None:
    """Return an interpreter of this version that runs, or `None`."""
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [*sorted(versions.glob(f"{version}.*/bin/python")), shutil.which(f"python{version}")]
    for candidate in filter(None, candidates):
        # A shim of pyenv exists for versions that are not active, and fails.
        asked = subprocess.run([candidate, "-c", "import venv"], capture_output=True, check=False)
        if asked.returncode == 0:
            return str(candidate)
    return None


def try_it(python: str, wheel: Path) -> str | None:
    """Return what went wrong with this interpreter, or `None`."""
    with tempfile.TemporaryDirectory() as folder:
        own, constraints = f"{folder}/venv/bin/python", str(ROOT / "constraints.txt")
        steps = [
            [python, "-m", "venv", "--without-pip", f"{folder}/venv"],
            [*PIP, "--python", own, "install", "--no-compile", "--constraint", constraints, str(wheel)],
            [own, "-W", "error", "-c", "import grue; grue.Runner, grue.TurnRequest"],
            [own, "-m", "grue", *PLAY],
        ]
        for step in steps:
            done = subprocess.run(step, cwd=folder, capture_output=True, text=True, timeout=180, check=False)
            if done.returncode:
                return f"{' '.join(step[1:6])}: {(done.stderr or done.stdout).strip()[-2000:]}"
    return None


def main() -> int:
    """Try all versions."""
    failed = False
    folder = tempfile.mkdtemp()
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = Path(folder).glob("*.whl")
    for version in VERSIONS:
        python = find(version)
        if python is None:
            print(f"Python {version}: not on this machine")
            continue
        began = time.monotonic()
        problem = try_it(python, wheel)
        failed |= problem is not None
        print(f"Python {version}: {problem or f'plays, {time.monotonic() - began:.0f} s'}", flush=True)
    shutil.rmtree(folder)
    return failed


if __name__ == "__main__":
    sys.exit(main())
