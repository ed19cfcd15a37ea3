"""A worker's requests, asked for at the broker over its socket."""

import asyncio
import errno
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import anyio
import msgspec
import pytest
from promises import GUARD_S

from grue.errors import FleetError
from grue.fleet import accounts
from grue.fleet.accounts import GONE, add_to_ledger, read_ledger
from grue.fleet.broker import Amount, FleetBudget, Limits, Rate, ServerCap
from grue.fleet.broker_server import Ask, BrokerLink, BrokerServer, GiveBack
from grue.fleet.folder import LEDGER, FleetFolder
from grue.runtime.processes.guard import guard
from grue.transports.llm.exchange import RequestOutcome, WantedRequest

pytestmark = pytest.mark.anyio
WANTED = WantedRequest(model="m", prompt_bytes=10, max_tokens=5)
HANG_S = 30


def never() -> None:
    pytest.fail("the link was lost")


async def test_a_request_is_granted_charged_and_in_the_ledger(tmp_path: Path) -> None:
    with BrokerServer(FleetFolder(tmp_path), Limits(FleetBudget(requests=1))) as server:
        link = BrokerLink(server.address, never)
        permit = await link.admit(WANTED)
        assert not isinstance(permit, str)
        permit.settle(RequestOutcome(status=200, input_tokens=3, output_tokens=2))
        refused = await link.admit(WANTED)
        assert refused == "the fleet's limit of 1 request is used up: 1 is spent"
        link.close()
    assert (read_ledger(FleetFolder(tmp_path)).requests, read_ledger(FleetFolder(tmp_path)).tokens) == (1, 5)


async def test_a_request_waits_for_another_one_and_can_be_given_up(tmp_path: Path) -> None:
    with BrokerServer(FleetFolder(tmp_path), Limits(rate=Rate(concurrency=1))) as server:
        link = BrokerLink(server.address, never)
        permit = await link.admit(WANTED)
        assert not isinstance(permit, str)
        with anyio.move_on_after(0.05) as waited:
            await link.admit(WANTED)
        assert waited.cancelled_caught
        permit.settle(RequestOutcome(status=200))
        with anyio.fail_after(HANG_S):
            assert not isinstance(await link.admit(WANTED), str)
        link.close()


async def test_requests_that_wait_leave_the_threads_to_the_tools(tmp_path: Path) -> None:
    most = int(anyio.to_thread.current_default_thread_limiter().total_tokens)
    with BrokerServer(FleetFolder(tmp_path), Limits(rate=Rate(concurrency=1))) as server:
        link = BrokerLink(server.address, never)
        permit = await link.admit(WANTED)
        assert not isinstance(permit, str)
        async with anyio.create_task_group() as waiting:
            for _ in range(most + 1):
                waiting.start_soon(link.admit, WANTED)
            await anyio.wait_all_tasks_blocked()
            with anyio.fail_after(HANG_S):
                assert await anyio.to_thread.run_sync(lambda: "a tool's result") == "a tool's result"
            waiting.cancel_scope.cancel()
        permit.settle(RequestOutcome(status=200))
        with anyio.fail_after(HANG_S):
            assert not isinstance(await link.admit(WANTED), str)
        link.close()


async def test_a_lost_worker_is_charged_in_full(tmp_path: Path) -> None:
    with BrokerServer(FleetFolder(tmp_path), Limits(FleetBudget(requests=5))) as server:
        link = BrokerLink(server.address, never)
        await link.admit(WANTED)
        link.close()
        with anyio.fail_after(HANG_S):
            while server.accounts.broker.spent.requests == 0:  # noqa: ASYNC110 - nothing tells of it
                await anyio.sleep(0.01)
    assert read_ledger(FleetFolder(tmp_path)).tokens == 15


@pytest.mark.parametrize(
    "line",
    [
        b'{"type":"ask","id":1,"x":' + b"[" * 60_000,
        b'{"type":"\xff","id":1}',
        b'{"type":"ask","id":1,"wanted":{"model":"m","prompt_bytes":-100000}}',
        b'{"type":"give_back","id":1,"outcome":{"cost_usd":-5.0}}',
    ],
    ids=["nested", "no text", "negative prompt", "negative cost"],
)
async def test_a_connection_that_sends_what_no_worker_sends_is_closed_and_no_other(
    tmp_path: Path, line: bytes
) -> None:
    with BrokerServer(FleetFolder(tmp_path), Limits(FleetBudget(tokens=100))) as server:
        with socket.socket(socket.AF_UNIX) as other:
            other.settimeout(HANG_S)
            other.connect(server.address)
            other.sendall(line + b"\n")
            assert await anyio.to_thread.run_sync(other.recv, 1) == b""
        link = BrokerLink(server.address, never)
        assert not isinstance(await link.admit(WANTED), str)
        link.close()


async def test_without_a_broker_no_request_starts_and_the_worker_learns_of_it(tmp_path: Path) -> None:
    lost = threading.Event()
    with BrokerServer(FleetFolder(tmp_path), Limits()) as server:
        link = BrokerLink(server.address, lost.set)
    assert await anyio.to_thread.run_sync(lost.wait, HANG_S)
    assert await link.admit(WANTED) == GONE
    link.close()


async def test_the_worker_learns_of_the_loss_before_a_request_that_could_not_be_sent_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path may not be long
    lost = threading.Event()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("broker")
        listening.listen()
        link = BrokerLink("broker", lost.set)
        with listening.accept()[0] as broker:
            broker.shutdown(socket.SHUT_RD)  # sending fails, and the reading thread does not see why
            with anyio.fail_after(HANG_S):
                assert await link.admit(WANTED) == GONE
            assert lost.is_set()
    link.close()


async def test_a_server_waits_for_a_place_which_a_lost_worker_leaves(tmp_path: Path) -> None:
    limits = Limits(servers=ServerCap(at_once=1))
    with BrokerServer(FleetFolder(tmp_path), limits) as server:
        first, second = (BrokerLink(server.address, never) for _ in range(2))
        place = await first.admit()
        assert not isinstance(place, str)
        with anyio.move_on_after(0.05) as waited:
            await second.admit()
        assert waited.cancelled_caught
        place.leave()
        with anyio.fail_after(HANG_S):
            assert not isinstance(await second.admit(), str)
            second.close()  # its process is gone: nobody else gives the place back
            assert not isinstance(await first.admit(), str)
        first.close()


async def test_a_place_that_is_asked_for_and_given_up_at_once_is_free(tmp_path: Path) -> None:
    with BrokerServer(FleetFolder(tmp_path), Limits(servers=ServerCap(at_once=1))) as server:
        async with await anyio.connect_unix(server.address) as worker:
            messages = Ask(1), GiveBack(1, RequestOutcome(sent=False))  # both come before the task has begun
            await worker.send(b"".join(msgspec.json.encode(each) + b"\n" for each in messages))
            await worker.receive()
            link = BrokerLink(server.address, never)
            with anyio.fail_after(HANG_S):
                assert not isinstance(await link.admit(), str)
            link.close()


async def test_an_episode_with_more_servers_than_said_is_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accounts, "_TOO_MANY_S", 0.05)
    with BrokerServer(FleetFolder(tmp_path), Limits(servers=ServerCap(at_once=1))) as server:
        link = BrokerLink(server.address, never)
        assert not isinstance(await link.admit(), str)
        refused = await link.admit()
        assert refused == (
            "the episode has more than servers_an_episode = 1 server processes at one time, and all 1 places"
            " are taken; say in servers_an_episode how many it needs"
        )
        link.close()


def test_the_ledger_of_a_lost_driver_counts_open_requests_in_full(tmp_path: Path) -> None:
    lines: list[dict[str, object]] = [
        {"kind": "reserved", "id": "1", "requests": 1, "tokens": 100, "money_usd": 0.5},
        {"kind": "settled", "id": "1", "requests": 1, "tokens": 10, "money_usd": 0.1},
        {"kind": "reserved", "id": "2", "requests": 1, "tokens": 100},
    ]
    (tmp_path / LEDGER).write_bytes(b"\n".join(map(msgspec.json.encode, lines)))
    assert read_ledger(FleetFolder(tmp_path)) == Amount(2, 110, 0.1)


@pytest.mark.parametrize("line", [b'{"kind":"\xff"}', b'{"kind":' + b"[" * 100_000, b"nothing"])
def test_a_damaged_line_of_the_ledger_is_named(tmp_path: Path, line: bytes) -> None:
    (tmp_path / LEDGER).write_bytes(b'{"kind":"settled","id":"1","tokens":5}\n' + line + b"\n")
    with pytest.raises(FleetError, match=rf"{LEDGER}, line 2 is damaged"):
        read_ledger(FleetFolder(tmp_path))


def test_a_cost_is_added_after_half_a_line_of_the_ledger(tmp_path: Path) -> None:
    (tmp_path / LEDGER).write_bytes(b'{"kind":"settled","id":"1","requests":1,"tok')  # by a full disk
    add_to_ledger(FleetFolder(tmp_path), "2", Amount(1, 7, 0.0))
    assert read_ledger(FleetFolder(tmp_path)) == Amount(1, 7, 0.0)


async def test_a_half_line_of_the_ledger_does_not_damage_the_next_run(tmp_path: Path) -> None:
    (tmp_path / LEDGER).write_bytes(b'{"kind":"reserved","id":"1","requests":1,"tok')
    with BrokerServer(FleetFolder(tmp_path), Limits()) as server:
        link = BrokerLink(server.address, never)
        assert not isinstance(await link.admit(WANTED), str)
        link.close()
    assert read_ledger(FleetFolder(tmp_path)).tokens == 15


async def test_no_request_starts_whose_line_a_full_disk_has_cut_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room, write = 50, os.write

    def short(descriptor: int, line: bytes) -> int:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        room = 0
        return write(descriptor, line[:50])

    ledger = accounts.Accounts(FleetFolder(tmp_path), Limits())
    with monkeypatch.context() as disk:
        disk.setattr(os, "write", short)
        refused = await ledger.admitted(WANTED)
    ledger.close()
    assert "No space left on device" in str(refused)
    assert ledger.broker.reserved == read_ledger(FleetFolder(tmp_path)) == Amount()


@pytest.mark.slow
async def test_workers_that_end_with_the_driver_leave_no_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(20):
        with BrokerServer(FleetFolder(tmp_path), Limits()) as server:
            workers = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(30)]
            for worker in workers:
                worker.connect(server.address)
            ending = threading.Thread(target=lambda all_: [each.close() for each in all_], args=(workers,))
            ending.start()
        ending.join()
    assert [record.message for record in caplog.records if record.name == "asyncio"] == []


@pytest.mark.parametrize("steps", range(8))
async def test_workers_that_connect_just_as_the_server_ends_leave_no_open_connection(
    steps: int, tmp_path: Path
) -> None:
    server = BrokerServer(FleetFolder(tmp_path), Limits())
    async with anyio.create_task_group() as group:
        scope = await group.start(server._serve)
        workers = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(30)]
        for worker in workers:
            worker.connect(server.address)
        for _ in range(steps):
            await asyncio.sleep(0)
        scope.cancel()
    for worker in workers:
        worker.close()
    gc.collect()  # reports connections that were not closed
    server.accounts.close()
    guard.release(server._folder.name)
    server._folder.cleanup()


KILLED = """
import multiprocessing.forkserver, os, signal, sys
from pathlib import Path
from grue.fleet.broker import Limits
from grue.fleet.broker_server import BrokerServer
from grue.fleet.folder import FleetFolder
from grue.fleet.local import place_sockets

with BrokerServer(FleetFolder(Path(sys.argv[1])), Limits()) as server:
    folder = place_sockets()
    multiprocessing.forkserver.ensure_running()
    print(os.path.dirname(server.address), folder, sep="\\n", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("long", [False, True])
@pytest.mark.slow
def test_a_driver_that_is_killed_leaves_no_folder_with_a_socket(long: bool, tmp_path: Path) -> None:
    """Not even where the folder for temporary files has a path that is too long for a socket in it."""
    environment = {**os.environ}
    if long:
        (tmp_path / ("x" * 100)).mkdir()
        environment["TMPDIR"] = str(tmp_path / ("x" * 100))
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    brokers, workers = map(Path, done.stdout.splitlines())
    assert (brokers.name[:11], workers.name[:5]) == ("grue-fleet-", "pymp-")
    until = time.monotonic() + GUARD_S
    while brokers.exists() or workers.exists():  # the guard removes them
        assert time.monotonic() < until
        time.sleep(0.01)
