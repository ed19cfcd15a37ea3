"""Install a package into a folder of its own, and find its programs and its version there."""

import json
import re
import subprocess
import sys
from pathlib import Path

from parts import Endpoint, Server

INSTALL_S = 400.0


class InstallationError(Exception):
    """The registry or the installer failed; the text is its last line."""


def home_of(folder: Path, part: Server | Endpoint) -> Path:
    """Return the folder of a part's package."""
    return folder / part.registry.lower() / re.sub(r"[/@\[\]=]", "_", part.package)


def install(folder: Path, part: Server | Endpoint) -> None:
    """Install a part's package, unless it is there. Scripts of npm packages are not run."""
    home = home_of(folder, part)
    if part.registry == "grue" or program_of(folder, part).exists():
        return
    home.mkdir(parents=True, exist_ok=True)
    if part.registry == "npm":
        _run(
            ["npm", "install", "--no-fund", "--no-audit", "--ignore-scripts", "--prefix", home, part.package]
        )
        return
    _run([sys.executable, "-m", "venv", home])
    no_deps = ["--no-deps"] if isinstance(part, Endpoint) and part.no_deps else []
    packages = [part.package, *part.requires]
    _run([home / "bin" / "python", "-m", "pip", "--quiet", "install", *no_deps, *packages])


def _run(command: list[str | Path]) -> None:
    try:
        ran = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=INSTALL_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise InstallationError(f"the installation takes longer than {INSTALL_S:g} s") from error
    if ran.returncode:
        lines = (ran.stderr or ran.stdout).strip().splitlines() or [f"exit status {ran.returncode}"]
        raise InstallationError(lines[-1])


def program_of(folder: Path, part: Server | Endpoint) -> Path:
    """Return the path of a part's program."""
    home = home_of(folder, part)
    if part.registry == "PyPI":
        return home / "bin" / part.program
    inside = "" if "/" in part.program else ".bin"
    return home / "node_modules" / inside / part.program


def version_of(folder: Path, part: Server | Endpoint) -> str:
    """Return the installed version."""
    home = home_of(folder, part)
    if part.registry == "npm":
        return str(json.loads((home / "node_modules" / part.package / "package.json").read_text())["version"])
    name = re.split(r"[\[=]", part.package)[0]
    asking = f"from importlib.metadata import version; print(version({name!r}))"
    asked = subprocess.run(
        [home / "bin" / "python", "-c", asking], capture_output=True, text=True, timeout=60, check=False
    )
    return asked.stdout.strip()
