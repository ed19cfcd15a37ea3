"""How long a process takes before its first turn: `import grue`, and the command `grue`."""

import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from pathlib import Path

from children import environment
from measuring import Bar, Effort, Section, figure, interleave

HEAVY = ("mcp", "langfuse", "httpx", "pydantic")
LOADED = f"import grue, sys; print(sum(name in sys.modules for name in {HEAVY!r}))"


def import_section(effort: Effort) -> Section:
    """Measure `import grue` (limits: 60 ms, and no package of `HEAVY` is imported)."""
    bare = (sys.executable, "-I", "-c", "pass")
    package = (sys.executable, "-I", "-c", "import grue")
    names = (sys.executable, "-I", "-c", "from grue import Runner, TurnRequest, StdioServer")
    samples = interleave(
        effort.within(effort.starts),
        {
            "bare": lambda: _wall_ms(bare),
            "grue": lambda: _wall_ms(package),
            "names": lambda: _wall_ms(names),
        },
    )
    over = [with_it - without for with_it, without in zip(samples["grue"], samples["bare"], strict=True)]
    loaded = subprocess.check_output((sys.executable, "-I", "-c", LOADED), text=True)
    return Section(
        "import",
        "import grue",
        "Measured: wall time of whole interpreters, start to exit; the import is the difference of each "
        "pair. Public names are imported when they are first used: Runner brings anyio and msgspec.",
        [
            figure("bare interpreter", "ms", samples["bare"]),
            figure("import grue, over that", "ms", over),
            figure("from grue import Runner, ... (whole)", "ms", samples["names"]),
        ],
        [
            Bar("time of `import grue`", figure("", "ms", over).median, 60, "ms"),
            Bar(f"packages that `import grue` loads, of {', '.join(HEAVY)}", int(loaded), 0, "loaded"),
        ],
    )


def version_section(effort: Effort) -> Section:
    """Measure `grue --version` (limit: 120 ms)."""
    command = (str(Path(sysconfig.get_path("scripts")) / "grue"), "--version")
    samples = [_wall_ms(command) for _ in effort.within(effort.starts)]
    shown = figure("grue --version", "ms", samples)
    return Section(
        "version",
        "grue --version",
        "Measured: wall time of the installed command, start to exit.",
        [shown],
        [Bar("time of the command `grue --version`", shown.median, 120, "ms")],
    )


def _wall_ms(command: Sequence[str]) -> float:
    begun = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment(), process_group=0)
    return (time.perf_counter() - begun) * 1e3
