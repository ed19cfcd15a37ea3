"""The processes that the benchmarks drive: workers that do as they are told, and the chat server."""

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

    It is in a process group of its own, so that a Ctrl-C in the terminal reaches the benchmark only, which
    ends it by closing its standard input.
    """

    def __init__(self, script: str, *args: str, python: Path | str = sys.executable) -> None:
        command = (str(python), str(HERE / script), *args)
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, env=environment(), text=True, process_group=0
        )

    def ask(self, line: str = "") -> dict[str, Any]:
        """Let it work once and return what it reports.

        Raises:
            RuntimeError: It ended instead; its own words are on standard error.
        """
        self.tell(line)
        return self.answer()

    def tell(self, line: str) -> None:
        """Let it work, beside others."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Return what it reports of the work that it was told.

        Raises:
            RuntimeError: As by `ask`.
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
    """The scripted chat completions server, running."""

    def __init__(self, port: int, certificate: Path | None = None) -> None:
        self._root = f"http{'s' if certificate else ''}://127.0.0.1:{port}"
        self.base_url = f"{self._root}/v1"
        handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
        if certificate:
            trusting = ssl.create_default_context(cafile=str(certificate))
            handlers.append(urllib.request.HTTPSHandler(context=trusting))
        self._opener = urllib.request.build_opener(*handlers)

    def received(self) -> Mapping[str, Any]:
        """Return the `requests` and their `bytes` since this was asked last, and when the first came in."""
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
        delay_ms: From each request to its reply.
        certificate: A key and its certificate, for HTTPS.
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
    """Return the environment without proxies, which stand between nobody and this machine itself.

    Python may write bytecode, as on a user's machine: otherwise a first turn would compile what has changed.
    """
    kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    return kept | {"PYTHONDONTWRITEBYTECODE": ""}
