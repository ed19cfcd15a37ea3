"""A virtual environment for each peer, by plain pip, below `.venvs/`; the project's own is not touched.

python benchmarks/peers/install.py pydantic-ai langgraph    install these, and measure nothing
"""

import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from sides import VENVS, is_installed, requirements, stamp

AT_ONCE = 2


def install(peers: Sequence[str]) -> dict[str, str]:
    """Install the peers that are not there as pinned; return those that could not be, and why."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        errors = dict(zip(peers, pool.map(_install, peers), strict=True))
    return {peer: error for peer, error in errors.items() if error}


def _install(peer: str) -> str:
    if is_installed(peer):
        return ""
    venv = VENVS / peer
    print(f"installing {peer}", flush=True)
    pip = [str(venv / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    for command in (
        [sys.executable, "-m", "venv", str(venv)],
        [*pip, "--requirement", str(requirements(peer))],
    ):
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode:
            return (run.stderr.strip().splitlines() or [f"pip ended with status {run.returncode}"])[-1][:200]
    stamp(peer).write_text(requirements(peer).read_text())
    return ""


if __name__ == "__main__":
    for peer, why in install(sys.argv[1:]).items():
        print(f"{peer}: not installed: {why}")
