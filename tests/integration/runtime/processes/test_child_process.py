"""A child process: when its input ends, what counts as a polite exit, and what as its death."""

from pathlib import Path

import anyio
import pytest
from transport_servers import CAT, shell

from grue.runtime.processes.child_process import ServerProcess
from grue.runtime.processes.limits import ProcessLimits
from grue.runtime.processes.process_group import ProcessRegistry
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


async def test_its_input_ends_behind_everything_that_was_queued(registry: ProcessRegistry) -> None:
    sent = [b"%d " % n + b"x" * 10_000 for n in range(100)]
    async with ServerProcess(shell("read go; cat"), registry) as process:
        for line in (b"go", *sent):  # a megabyte into two pipes that hold 64 kB each
            process.send_line(line)
        process.end_input()
        with anyio.fail_after(60):
            assert [await process.receive_line() for _ in sent] == sent
            with pytest.raises(anyio.EndOfStream):
                await process.receive_line()


async def test_after_a_line_that_filled_the_pipe_others_follow(registry: ProcessRegistry) -> None:
    async with ServerProcess(CAT, registry) as process:
        for line in (b"x" * 1_000_000, b"next", b"y" * 1_000_000, b"last"):
            process.send_line(line)
            assert await process.receive_line() == line
        process.end_input()
        with pytest.raises(anyio.EndOfStream):
            await process.receive_line()


IDLE = "echo ready; while :; do sleep 0.01; done"
LEAVES_SLOWLY = f"trap 'sleep 0.3; echo left >$SAID; exit 0' TERM; {IDLE}"


async def test_a_server_has_its_grace_after_sigterm(registry: ProcessRegistry, tmp_path: Path) -> None:
    said = tmp_path / "said"
    limits = ProcessLimits(exit_grace_s=0.05, term_grace_s=60)
    async with ServerProcess(shell(LEAVES_SLOWLY, SAID=str(said)), registry, limits) as process:
        assert await process.receive_line() == b"ready"
    assert process.ending == "terminated"
    assert said.read_text() == "left\n"


async def test_a_server_that_ignores_sigterm_is_killed_after_that_grace(registry: ProcessRegistry) -> None:
    limits = ProcessLimits(exit_grace_s=0.05, term_grace_s=0.05)
    async with ServerProcess(shell(f"trap '' TERM; {IDLE}"), registry, limits) as process:
        assert await process.receive_line() == b"ready"
    assert process.ending == "killed"


@pytest.mark.parametrize(
    ("grace_s", "left_s", "waits_s"),
    [(2.0, 60.0, 2.0), (2.0, 3.0, 1.5), (2.0, 0.02, 0.05), (2.0, -1.0, 0.05), (0.01, 60.0, 0.01)],
)
async def test_each_grace_is_half_of_the_time_that_is_left_for_closing_at_most(
    registry: ProcessRegistry, monkeypatch: pytest.MonkeyPatch, grace_s: float, left_s: float, waits_s: float
) -> None:
    waited: list[float] = []
    exits = [False, True]  # it exits after SIGTERM
    limits = ProcessLimits(exit_grace_s=grace_s, term_grace_s=grace_s)
    process = ServerProcess(CAT, registry, limits)

    async def exited_within(limit_s: float) -> bool:
        waited.append(limit_s)
        return exits.pop(0)

    async with process:
        moment = anyio.current_time()
        monkeypatch.setattr(anyio, "current_time", lambda: moment)
        monkeypatch.setattr(process, "_close_by", moment + left_s)
        monkeypatch.setattr(process, "_exited_within", exited_within)
    assert waited == [pytest.approx(waits_s)] * 2
    assert process.ending == "terminated"
