"""What counts as a polite exit of a child process, and what as its death."""

import anyio
import pytest
from transport_servers import CAT, shell

from grue.processes.process_group import ProcessRegistry
from grue.processes.server_process import ServerProcess
from grue.testing.leftovers import assert_nothing_left

pytestmark = pytest.mark.anyio


@pytest.fixture
def registry() -> ProcessRegistry:
    return ProcessRegistry()


async def test_a_server_that_exits_because_it_was_asked_to_has_not_died(registry: ProcessRegistry) -> None:
    with assert_nothing_left():
        async with ServerProcess(CAT, registry) as process:
            process.ask_to_exit()
            with anyio.fail_after(60):
                await process.wait_exit()
            with pytest.raises(anyio.BrokenResourceError):
                process.send_line(b"late")
        assert process.ending == "polite"


async def test_a_server_that_had_exited_before_it_was_asked_has_died(registry: ProcessRegistry) -> None:
    async with ServerProcess(shell("exit 3"), registry) as process:
        with anyio.fail_after(60):
            await process.wait_exit()
        process.ask_to_exit()
    assert process.ending == "died"
