"""What is kept of a command's output, and that reading it leaves time for other tasks."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from promises import cancelled_when
from transport_servers import CAT

from grue.runtime.processes.child_process import Capture, Command
from grue.runtime.processes.process_group import ProcessRegistry


@given(chunks=st.lists(st.binary(max_size=50), max_size=20), limit=st.integers(0, 60))
def test_the_beginning_and_the_end_are_kept_within_the_limit(chunks: list[bytes], limit: int) -> None:
    capture, written = Capture(limit), b"".join(chunks)
    for chunk in chunks:
        capture.add(chunk)
    kept = b"".join(capture.parts)
    assert capture.size == len(written)
    assert len(kept) == len(written) - capture.dropped
    assert len(kept) <= max(2, limit)
    if capture.dropped:
        head, tail = capture.parts
        assert written.startswith(head)
        assert written.endswith(tail)
        assert abs(len(head) - len(tail)) <= 1
    else:
        assert capture.parts == (written,)


@pytest.mark.anyio
async def test_output_that_never_pauses_can_be_cancelled() -> None:
    endless = os.open("/dev/zero", os.O_RDONLY)
    try:
        command = Command(CAT, ProcessRegistry())
        await cancelled_when(lambda: command.stdout.size, lambda: command._capture(endless, command.stdout))
    finally:
        os.close(endless)
    assert command.stdout.size > 0
