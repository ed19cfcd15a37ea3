"""Play episodes whose requests go through the provider's batch API: `grue fleet run --batch`.

A batch may take hours, and the work cannot be paused. So at the first request without a reply the attempt
ends, and the request is stored. When its reply has arrived, the episode is played again from its beginning,
with the stored replies. Tools are called again too. If the attempt comes to a request without a reply, and
has not asked for the last stored reply, the episode fails.

    DIR/ab/ID/requests.jsonl   the requests of the episode ID, whose first two digits are `ab`
    DIR/ab/ID/replies.jsonl    their replies
    DIR/batches/MODEL/         all episodes' requests to a model, see `transports/llm/batch_folder.py`
"""

import asyncio
import contextlib
import hashlib
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct

from grue.errors import FleetError, TraceError
from grue.fleet.broker import RequestCount, may_pass
from grue.fleet.folder import REPLIES, REQUESTS, FleetFolder
from grue.policies import Batching
from grue.protocol.chat_wire.batch_forms import Result, batch_form_of
from grue.protocol.chat_wire.failures import Fault, fault_of_status
from grue.protocol.chat_wire.formats import FORMATS, WireName
from grue.protocol.chat_wire.profile import shown_endpoint
from grue.runtime.files import LineFile, os_cause, read_regular
from grue.runtime.loops.sync_edge import loop_is_running
from grue.transports.llm import endpoint as llm
from grue.transports.llm.batch_desk import BatchDesk, BatchRefused
from grue.transports.llm.batch_folder import BatchFolder, BatchManifest
from grue.transports.llm.exchange import Answered, RequestOutcome, WantedRequest, not_sent

BATCHES = "batches"
T = TypeVar("T")

_LOOK_S = 0.2


class _AskedOnFile(Struct, frozen=True, kw_only=True):
    """A request of an episode; a line of `requests.jsonl`."""

    key: Annotated[str, Meta(pattern=r"^\d{1,9}-[^-]+$")]
    base_url: str
    wire: WireName
    model: str
    body: msgspec.Raw
    tries: int = 1


class _Replied(Struct, frozen=True, kw_only=True):
    """The reply to a request; a line of `replies.jsonl`. `result=None`: the request has to be sent again."""

    key: str
    result: Result | None = None


class EpisodeRoom:
    """Answers the requests of one attempt with stored replies, and stores the requests that have no reply."""

    def __init__(self, folder: Path, count: RequestCount) -> None:
        self.waits = False  # `True` once a request of the attempt waits for its reply
        self._folder = folder
        self._count = count
        self._seen: Counter[str] = Counter()
        self._lock = threading.Lock()
        asked = _lines(folder / REQUESTS, _AskedOnFile)
        self._asked = {(each.key, each.tries) for each in asked}
        self._results: dict[str, Result] = {}
        self._again: Counter[str] = Counter()
        self._last = ""
        for each in _lines(folder / REPLIES, _Replied):
            if each.result is None:
                self._again[each.key] += 1
                self._results.pop(each.key, None)
            else:
                self._results[each.key], self._last = each.result, each.key
        self._read: set[str] = set()

    @property
    def asks_otherwise(self) -> bool:
        """`True` if the last stored reply answers a request that this attempt has not made."""
        return bool(self._last) and self._last in self._results and self._last not in self._read

    async def reply_to(self, endpoint: llm.LlmEndpoint, body: bytes, request: int) -> Answered | Fault:
        """Return a stored reply or a refusal; or else store the request and raise `RequestPostponed`."""
        del request
        digest = hashlib.sha256(body).hexdigest()[:16]
        with self._lock:
            self._seen[digest] += 1
            key = f"{self._seen[digest]}-{digest}"
            self._read.add(key)
        result = self._results.get(key)
        if result is not None:
            return result.fault if result.status is None else Answered(result.status, bytes(result.body))
        tries, settings = self._again[key] + 1, endpoint.settings
        if (key, tries) not in self._asked:
            limit = llm.limit_in(body)
            wanted = WantedRequest(model=settings.model, prompt_bytes=len(body), max_tokens=limit)
            permit = await self._count.admit_only(wanted)
            if isinstance(permit, str):
                return not_sent(permit)
            asked = _AskedOnFile(
                key=key,
                base_url=settings.base_url,
                wire=endpoint.profile.wire,  # type: ignore[arg-type]  # a wire of an endpoint
                model=settings.model,
                body=msgspec.Raw(body),
                tries=tries,
            )
            with self._lock:
                _append(self._folder / REQUESTS, [asked])
                self._asked.add((key, tries))
            if permit is not None:
                permit.settle(RequestOutcome())  # charge the reservation: the real cost is known hours later
        self.waits = True
        raise llm.RequestPostponed(key)

    def read(self, model: str, outcome: RequestOutcome) -> None:
        """Count the cost of a reply that the attempt has read."""
        self._count.add(model, outcome)


@contextlib.contextmanager
def waiting_in(folder: Path, count: RequestCount) -> Iterator[EpisodeRoom]:
    """Within the block, let an `EpisodeRoom` answer or store this process's requests, and send no request."""
    room = EpisodeRoom(folder, count)
    llm.set_process_room(room)
    try:
        yield room
    finally:
        llm.set_process_room(None)


def ask_failed_again(episode: Path) -> None:
    """Mark an episode's failed requests that may succeed in another try, so that they are sent again."""
    last = {each.key: each for each in _lines(episode / REPLIES, _Replied)}
    failed = [
        _Replied(key=each.key) for each in last.values() if each.result is not None and _failed(each.result)
    ]
    if failed:
        _append(episode / REPLIES, failed)


def _failed(result: Result) -> bool:
    if result.status is None or 200 <= result.status < 300:
        return result.status is None
    fault = fault_of_status(result.status, bytes(result.body))
    return may_pass(fault.kind, fault.reason)


class FleetBatches:
    """Sends the waiting requests of all episodes in batches, and stores the replies. Not thread-safe."""

    def __init__(self, folder: Path, batching: Batching) -> None:
        self._folder = folder
        self._batching = batching
        self._models: dict[str, _Model] = {}
        # By the episode's id: its folder, and its requests without a reply. Each request has two ids: the
        # inner dictionary maps the id in the batch to the `key` in the episode's folder.
        self._waiting: dict[str, tuple[Path, dict[str, str]]] = {}
        # Runs each model's `poll`, but only during `step` and `close`, because the driver is synchronous.
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)

    def add(self, episode: Path) -> None:
        """Store an episode's unanswered requests, for `step` to send in batches; may raise `MCPError`."""
        answered = Counter(
            each.key for each in _lines(episode / REPLIES, _Replied) if each.result is not None
        )
        keys = {}
        for each in _lines(episode / REQUESTS, _AskedOnFile):
            if answered[each.key] >= each.tries:
                continue
            files = self._of(each).files
            item = f"{files.manifest.run}-{episode.name}-{each.key}-{each.tries}"
            if not files.is_wanted(item):
                files.want(item, FORMATS[each.wire].path_of(each.model, stream=False), bytes(each.body))
            keys[item] = each.key
        self._waiting[episode.name] = (episode, keys)

    def step(self, *, send: bool) -> list[str]:
        """Run the polls for up to 0.2 s; return the ids of episodes that have all replies now."""
        # With `send`, new polls also send the waiting requests. Raises `FleetError` if a provider fails.
        if not self._waiting:
            return []
        for each in self._models.values():
            each.begin_poll_if_due(self._runner.get_loop(), send=send)
        polls = self._polls()
        if not polls and not send:
            return []
        if polls:
            self._where_no_loop_runs(lambda: self._runner.run(asyncio.wait(polls, timeout=_LOOK_S)))
        for each in self._models.values():
            each.end_poll()
        self._store_replies()
        ready = [name for name, (_, keys) in self._waiting.items() if not keys]
        for name in ready:
            del self._waiting[name]
        return ready

    def close(self) -> None:
        """Cancel the polls, and unlock the folders, so that another process can use them."""
        polls = self._polls()

        async def end() -> None:
            for poll in polls:
                poll.cancel()
            await asyncio.gather(*polls, return_exceptions=True)

        self._where_no_loop_runs(lambda: self._runner.run(end()))
        self._where_no_loop_runs(self._runner.close)
        for each in self._models.values():
            each.files.close()

    def drop(self) -> None:
        """Delete each `DIR/batches/MODEL` of this run whose episodes all have results. Call `close` first."""
        fleet = FleetFolder(self._folder)
        for each in self._models.values():
            if all(fleet.episode(id_).usable_commit is not None for id_ in each.files.turns()):
                shutil.rmtree(each.files.path, ignore_errors=True)

    def _polls(self) -> list[asyncio.Task[list[str]]]:
        return [each.poll for each in self._models.values() if each.poll is not None]

    def _where_no_loop_runs(self, call: Callable[[], object]) -> None:
        """Make a call that runs the event loop; in a new thread if this one runs a loop, as in a notebook."""
        if not loop_is_running():
            call()
            return
        with ThreadPoolExecutor(1) as thread:
            thread.submit(call).result()

    def _store_replies(self) -> None:
        for episode, keys in self._waiting.values():
            for item in list(keys):
                found = filter(None, (each.files.result(item) for each in self._models.values()))
                result = next(found, None)
                if result is not None:
                    # Writing fails, for example, if the work has removed the episode's folder. The episode is
                    # then played again without this reply, and waits for it again.
                    with contextlib.suppress(TraceError):
                        _append(episode / REPLIES, [_Replied(key=keys[item], result=result)])
                    del keys[item]

    def _of(self, asked: _AskedOnFile) -> "_Model":
        name = hashlib.sha256(f"{asked.base_url}\n{asked.model}\n{asked.wire}".encode()).hexdigest()[:12]
        if name not in self._models:
            settings = llm.LlmSettings(base_url=asked.base_url, model=asked.model, wire=asked.wire)
            manifest = BatchManifest(
                address=shown_endpoint(asked.base_url), model=asked.model, wire=asked.wire
            )
            form = batch_form_of(asked.wire)
            place = self._folder / BATCHES / name
            # Drop what earlier runs did not send: it may belong to another sweep. `add` stores what we want.
            most = self._batching.most_items
            files = BatchFolder(place, manifest, form, most_items=most, keep_unsent=False)
            self._models[name] = _Model(files, llm.LlmEndpoint(settings), self._batching)
        return self._models[name]


class _Model:
    """The waiting requests to one model. Each model has its own task `poll`, which sends and looks."""

    def __init__(self, files: BatchFolder, endpoint: llm.LlmEndpoint, batching: Batching) -> None:
        self.files = files
        self.poll: asyncio.Task[list[str]] | None = None
        self._endpoint = endpoint
        self._batching = batching
        self._look_at = 0.0
        self._delay_s = batching.first_look_s

    def begin_poll_if_due(self, loop: asyncio.AbstractEventLoop, *, send: bool) -> None:
        if self.poll is None and time.monotonic() >= self._look_at:
            self.poll = loop.create_task(self._send_and_look(send))

    def end_poll(self) -> None:
        """If the poll has ended, set the time of the next one; raises what the poll has raised."""
        if self.poll is None or not self.poll.done():
            return
        poll, self.poll = self.poll, None
        self._delay_s = self._batching.first_look_s if poll.result() else self._delay_s * 1.5
        self._delay_s = min(self._delay_s, self._batching.look_every_s)
        self._look_at = time.monotonic() + self._delay_s

    async def _send_and_look(self, send: bool) -> list[str]:
        async with self._endpoint:
            desk = BatchDesk(self._endpoint, self.files, self._batching)
            try:
                if send:
                    await desk.send()
                return await desk.look()
            except BatchRefused as refused:
                failure = refused.failure
                why = f"{failure.endpoint}: {failure.message.rstrip('.')}. {failure.remedy}".rstrip()
                raise FleetError(
                    f"The batch cannot go on at {why} What waits goes on waiting: mend it, and run the same"
                    " command again."
                ) from refused


def _lines(path: Path, kind: type[T]) -> list[T]:
    """Return a file's lines, except a last one cut short by a kill; `[]`: no file. May raise `FleetError`."""
    try:
        written = read_regular(path)
        whole = written[: written.rfind(b"\n") + 1]
        return [msgspec.json.decode(line, type=kind) for line in whole.splitlines()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise FleetError(f"Cannot read {path}: {os_cause(error)}.") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        remedy = f"Remove it; `grue fleet retry` then takes the replies from {BATCHES} in the fleet's folder."
        raise FleetError(f"{path} is damaged: {error}. {remedy}") from error


def _append(path: Path, lines: Iterable[Struct]) -> None:
    with contextlib.closing(LineFile(path, "list of waiting requests")) as file:
        file.cut_half_line()
        file.write(*map(msgspec.json.encode, lines))
