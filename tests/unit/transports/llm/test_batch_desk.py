"""The lines of a batch's results: a line that is too long is skipped as a whole, however it arrives."""

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from grue.protocol.chat_wire.failures import Fault
from grue.transports.llm import batch_desk
from grue.transports.llm.batch_desk import BatchDesk

pytestmark = pytest.mark.anyio

LONG = b"x" * 30

TOO_LONG = Fault(kind="invalid_reply", message="too long")

CASES: dict[str, tuple[list[bytes | Fault], list[bytes]]] = {
    "whole": ([b"one\ntwo\n"], [b"one", b"two"]),
    "without a newline at the end": ([b"one\ntw", b"o"], [b"one", b"two"]),
    "a long line in the middle": ([b"one\n" + LONG, b"rest\ntwo\n"], [b"one", b"", b"two"]),
    "a file that is too long": ([b"one\ntw", TOO_LONG], [b"one", b""]),
    "a long last line": ([b"one\n" + LONG, b'{"custom_id": "a"}'], [b"one", b""]),
}


@pytest.mark.parametrize("case", CASES)
async def test_a_line_that_is_too_long_is_empty(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces, lines = CASES[case]

    async def download(path: str, most_bytes: int) -> AsyncIterator[bytes | Fault]:
        assert most_bytes == 3 * 20
        for piece in pieces:
            yield piece

    monkeypatch.setattr(batch_desk, "_MOST_LINE", 20)
    desk: Any = BatchDesk.__new__(BatchDesk)
    desk._endpoint = SimpleNamespace(download=download)
    assert [line async for line in desk._lines("/results", 3)] == lines
