"""Servers over HTTP in processes of their own, for tests."""

import contextlib
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from commands import forked

_REAL = Path(__file__).parent / "http_mcp_server.py"


@contextlib.contextmanager
def real_http_server(*flags: str) -> Iterator[str]:
    """Run `http_mcp_server.py` with `flags`; yield its URL."""
    path = "sse" if "sse" in flags else "mcp"
    with subprocess.Popen(
        forked(str(_REAL), *flags), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        try:
            assert server.stdout is not None, "as asked for"
            yield f"http://127.0.0.1:{int(server.stdout.readline())}/{path}"
        finally:
            server.send_signal(signal.SIGUSR1)  # kills the server, not only the client of the fork server
