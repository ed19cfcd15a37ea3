"""Try grue against MCP servers and model endpoints that others wrote, and write docs/compatibility.md.

    python tools/compat                        everything; packages are installed into build/compat
    python tools/compat --only time --only git some of them; the others' last results stay in the page
    python tools/compat --folder /tmp/compat   install there

It needs the npm registry and PyPI. Each part is tried in a process of its own with a time limit, in folders
that are removed afterwards, and one after the other. What a part did is kept as JSON beside the packages, so
that the page can be written from all of them. `parts.py` has the list.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
from installing import InstallationError
from page import page
from parts import ENDPOINTS, SERVERS, Endpoint, Server
from try_endpoint import try_endpoint
from try_server import try_server

from grue.errors import MCPError

LONGEST_S = 1200.0
PAGE = Path("docs/compatibility.md")
_PARTS: dict[str, Server | Endpoint] = {part.name: part for part in (*SERVERS, *ENDPOINTS)}


def main() -> int:
    """Try what the command line says, and write the page."""
    options = _options()
    if options.row:
        print(json.dumps(_row(_PARTS[options.row], options.folder)))
        return 0
    rows = options.folder / "rows"
    rows.mkdir(parents=True, exist_ok=True)
    for name in options.only or _PARTS:
        tried = {} if options.page_only else _in_a_process(name, options.folder)
        if tried:
            (rows / f"{name}.json").write_text(json.dumps(tried))
            print(json.dumps(tried), flush=True)
    known = [json.loads(path.read_text()) for name in _PARTS if (path := rows / f"{name}.json").exists()]
    PAGE.write_text(page(known))
    return 0


def _in_a_process(name: str, folder: Path) -> dict[str, Any]:
    """Try one part in a process, and return its row; if it hangs or crashes, a row that says so."""
    load = round(os.getloadavg()[0], 1)
    row = {"name": name, "tried": f"{datetime.now(UTC):%Y-%m-%d}", "load": load, "cores": os.cpu_count()}
    command = [sys.executable, __file__, "--row", name, "--folder", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        said, _ = process.communicate(timeout=LONGEST_S)
    except subprocess.TimeoutExpired:
        _kill(process.pid)
        process.communicate()
        return {**_known(name), **row, "failed": f"not done after {LONGEST_S:g} s"}
    if process.returncode:
        return {**_known(name), **row, "failed": f"the trial ended with status {process.returncode}"}
    return {**json.loads(said.splitlines()[-1]), **row}


def _kill(pid: int) -> None:
    """Kill a trial that hangs, and the programs that it has started: they are in groups of their own."""
    with suppress(psutil.NoSuchProcess):
        trial = psutil.Process(pid)
        for process in (trial, *trial.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                process.kill()


def _known(name: str) -> dict[str, Any]:
    part = _PARTS[name]
    known = {"kind": type(part).__name__, "registry": part.registry, "package": part.package}
    return {**known, "requires": part.requires} if isinstance(part, Server) and part.requires else known


def _row(part: Server | Endpoint, folder: Path) -> dict[str, Any]:
    known = _known(part.name)
    with tempfile.TemporaryDirectory(prefix="grue-compat-", ignore_cleanup_errors=True) as work:
        try:
            if isinstance(part, Server):
                return {**known, **try_server(part, folder, Path(work))}
            return {**known, **try_endpoint(part, folder, Path(work))}
        except (InstallationError, MCPError) as error:
            return {**known, "failed": " ".join(str(error).split())[:160]}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--folder", type=Path, default=Path("build/compat"), help="where packages are installed"
    )
    parser.add_argument("--only", action="append", help="a part's name; may be repeated")
    parser.add_argument("--page-only", action="store_true", help="write the page from the last results")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.folder = options.folder.absolute()
    return options


if __name__ == "__main__":
    sys.exit(main())
