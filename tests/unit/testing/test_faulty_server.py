"""The faulty server itself, spoken to by hand: each newer fault is really committed."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from grue.testing import faulty_server


class Wire:
    """Raw lines to and from the server."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.process = process

    def send(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self.process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        message: dict[str, Any] = json.loads(self.process.stdout.readline())
        return message

    def call(self, number: int = 1) -> None:
        arguments = {"name": "echo", "arguments": {"text": f"n{number}"}}
        self.send({"id": number, "method": "tools/call", "params": arguments})

    def tools(self) -> list[str]:
        self.send({"id": "list", "method": "tools/list"})
        return [tool["name"] for tool in self.receive()["result"]["tools"]]


@contextmanager
def server(*flags: str) -> Iterator[Wire]:
    pipe = subprocess.PIPE
    with subprocess.Popen(faulty_server.argv(*flags), stdin=pipe, stdout=pipe) as process:
        try:
            yield Wire(process)
        finally:
            process.kill()


def text(answer: dict[str, Any]) -> str:
    said: str = answer["result"]["content"][0]["text"]
    return said


def test_without_flags_each_call_has_one_answer() -> None:
    with server() as wire:
        wire.call(1)
        wire.call(2)
        assert [(answer["id"], text(answer)) for answer in (wire.receive(), wire.receive())] == [
            (1, "n1"),
            (2, "n2"),
        ]


def test_duplicate_answers_come_twice() -> None:
    with server("--duplicate") as wire:
        wire.call(1)
        wire.call(2)
        assert [wire.receive()["id"] for _ in range(4)] == [1, 1, 2, 2]


def test_wrong_ids_are_nobody_s() -> None:
    with server("--wrong-id") as wire:
        wire.call(1)
        assert wire.receive()["id"] == "wrong-1"


def test_late_answers_let_others_pass() -> None:
    with server("--late", "0.2") as wire:
        wire.call(1)
        assert "echo" in wire.tools()
        assert text(wire.receive()) == "n1"


def test_changed_tools_are_announced_after_the_first_call_only() -> None:
    with server("--change-tools") as wire:
        assert "added" not in wire.tools()
        wire.call(1)
        assert wire.receive() == {
            "jsonrpc": "2.0",
            "method": "notifications/tools/list_changed",
            "params": {},
        }
        assert wire.receive()["id"] == 1
        assert wire.tools() == ["echo", "added"]
        wire.call(2)
        wire.call(3)
        assert [wire.receive()["id"], wire.receive()["id"]] == [2, 3]


@pytest.mark.parametrize("what", faulty_server.REQUESTS)
def test_asking_waits_for_the_answer_and_serves_the_rest_afterwards(what: str) -> None:
    with server("--ask", what) as wire:
        wire.call(1)
        asked = wire.receive()
        assert asked["method"] == faulty_server.REQUESTS[what][0]
        wire.send({"id": "list", "method": "tools/list"})
        wire.send({"id": asked["id"], "error": {"code": -1, "message": "no"}})
        assert json.loads(text(wire.receive())) == {"error": {"code": -1, "message": "no"}}
        assert wire.receive()["id"] == "list"


def test_a_fork_outlives_the_server() -> None:
    with server("--fork") as wire:
        wire.call(1)
        wire.receive()
        (copy,) = psutil.Process(wire.process.pid).children()
        assert wire.process.stdin is not None
        wire.process.stdin.close()
        assert wire.process.wait(60) == 0
        copy.terminate()
        assert copy.is_running(), "it ignores SIGTERM"
        copy.kill()


@pytest.mark.parametrize(
    ("flag", "phase"),
    [
        ("--error-at", "calls"),
        ("--null-at", "start"),
        ("--close-stdout-at", "calls"),
        ("--stop-reading-after", "start"),
    ],
)
def test_a_phase_at_which_nothing_would_happen_is_refused(flag: str, phase: str) -> None:
    with server(flag, phase) as wire:
        assert wire.process.wait(60) == 2


def test_a_start_without_faults_is_recorded_too(tmp_path: Path) -> None:
    record = tmp_path / "record"
    with server("--only-in", "2", str(tmp_path / "lives"), "--record", str(record)) as wire:
        wire.call()
        wire.receive()
    assert b"tools/call" in record.read_bytes()
