"""Many turns in one process, good servers and faulty ones: nothing grows. The long run is in benchmarks/."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).resolve().parents[2] / "benchmarks" / "soak.py"
SUPPORT = Path(__file__).resolve().parents[1] / "support"

pytest.importorskip("mcp", reason="MCP servers need the extra: pip install 'grue[mcp]'")
pytestmark = pytest.mark.slow

LEAKING = """
import runpy, os, subprocess, sys, threading, time
sys.path.insert(0, {support!r})
import fault_turns
real = fault_turns.drive_turn
def leaking(fault):
    {leak}
    return real(fault)
fault_turns.drive_turn = leaking
sys.argv[1:] = ["--turns", "4", "--warm-up", "2"]
runpy.run_path({soak!r}, run_name="__main__")
"""


def soak(*command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=90, check=False)


def test_p9_150_turns_of_all_kinds_leave_nothing() -> None:
    # Rows 25 to 50 of the matrix have the longest messages; the allocator keeps 5 MB after the first of them.
    run = soak(str(SOAK), "--turns", "150", "--warm-up", "100")
    assert run.returncode == 0, run.stdout + run.stderr
    counts = re.findall(r"(\d+) turns +(\d+) descriptors +(\d+) threads +(\d+) processes", run.stdout)
    assert [count[0] for count in counts] == ["100", "150"]
    assert counts[1][3] == "0"


LEAKS = {
    "descriptors": "os.dup(0)",
    "threads": "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
    "processes": "subprocess.Popen(['sleep', '9'], stdout=-3, stderr=-3)",
}


def test_what_grows_is_told() -> None:
    leaking = LEAKING.format(support=str(SUPPORT), leak="; ".join(LEAKS.values()), soak=str(SOAK))
    run = soak("-W", "ignore", "-c", leaking)
    assert run.returncode == 1, run.stdout
    assert re.findall(r"(\w+) grew from", run.stderr) == [*LEAKS]
