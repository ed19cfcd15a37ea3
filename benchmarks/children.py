"""The child processes of the benchmarks: workers, and the server of chat completions."""

import json
import os
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

HERE = Path(__file__).parent
ENDS_S = 1.0
"""How long a worker may go on with its turn after the benchmark was interrupted or has failed."""

MCP_SERVER = (sys.executable, "-I", "-S", str(HERE / "servers" / "plain_server.py"))


class Worker:
    """A child process that answers each line on its standard input with a line of JSON.

    It has its own process group, so that a Ctrl-C in the terminal reaches only the benchmark. The benchmark
    ends the worker by closing its standard input.
    """

    def __init__(self, script: str, *args: str, python: Path | str = sys.executable) -> None:
        command = (str(python), str(HERE / script), *args)
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, env=environment(), text=True, process_group=0
        )

    def ask(self, line: str = "") -> dict[str, Any]:
        """Send the worker a line, and return its answer.

        Raises:
            RuntimeError: The worker has ended; its error is on standard error.
        """
        self.tell(line)
        return self.answer()

    def tell(self, line: str) -> None:
        """Send the worker a line, and do not wait for the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Wait for the answer to the line sent by `tell`, and return it.

        Raises:
            RuntimeError: As `ask`.
        """
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"a worker ended with status {self._process.wait()}")
        reported: dict[str, Any] = json.loads(answer)
        return reported

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        try:
            self._process.communicate(timeout=None if exc_info[0] is None else ENDS_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()


class ChatServer:
    """The running server of scripted chat completions."""

    def __init__(self, port: int, certificate: Path | None = None) -> None:
        self._root = f"http{'s' if certificate else ''}://127.0.0.1:{port}"
        self.base_url = f"{self._root}/v1"
        handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
        if certificate:
            trusting = ssl.create_default_context(cafile=str(certificate))
            handlers.append(urllib.request.HTTPSHandler(context=trusting))
        self._opener = urllib.request.build_opener(*handlers)

    def received(self) -> Mapping[str, Any]:
        """Return the `requests` and `bytes` since the last call, and when the first request came."""
        counted: dict[str, Any] = self._get("sent")
        return counted

    def last(self) -> object:
        """Return the last message of the last request."""
        return self._get("last")["message"]

    def _get(self, path: str) -> Any:
        with self._opener.open(f"{self._root}/{path}") as reply:
            return json.load(reply)


@contextmanager
def chat_server(*, delay_ms: float = 0.0, certificate: Path | None = None) -> Iterator[ChatServer]:
    """Run the chat server in a process of its own.

    Args:
        delay_ms: Milliseconds from each request to its reply.
        certificate: A file with a key and its certificate: serve over HTTPS.
    """
    command = [sys.executable, str(HERE / "servers" / "chat_server.py"), "--delay-ms", str(delay_ms)]
    if certificate:
        command += ["--certificate", str(certificate)]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, env=environment(), text=True, process_group=0
    ) as process:
        assert process.stdout is not None
        try:
            yield ChatServer(int(process.stdout.readline()), certificate)
        finally:
            process.communicate()


def environment() -> dict[str, str]:
    """Return the environment without HTTP proxies, because all requests stay on this machine.

    Python may write bytecode, as on a user's machine. Otherwise each first turn would compile changed
    modules.
    """
    kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    return kept | {"PYTHONDONTWRITEBYTECODE": ""}
