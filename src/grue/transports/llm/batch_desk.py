"""Send files of requests to a provider as batches, watch the batches, and fetch the result of each request.

A file of requests goes through these states. `sending` is stored in the folder before the file is sent:

    unsent  ─▶ sending ─▶ sent ─▶ settled
                  │ the process was killed, or the provider neither accepted nor refused the file:
                  │ look for the batch at the provider, and send the file only if there is no batch

A file is unsent again if the provider refuses to make a batch of it, or has no room for its batch beside
others. If the provider refuses the batch later for another reason, each of its requests gets an error.
"""

import codecs
import contextlib
import itertools
import math
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

import anyio
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from grue import messages as m
from grue.policies import Batching
from grue.protocol.chat_wire import batch_forms
from grue.protocol.chat_wire.failures import RETRYABLE, Fault, says
from grue.protocol.chat_wire.formats import FORMATS
from grue.protocol.retry import backoff
from grue.transports.llm.batch_folder import BatchFolder, Submission
from grue.transports.llm.endpoint import LlmEndpoint
from grue.transports.llm.exchange import Answered, Upload

T = TypeVar("T")

_MOST_LINE = 64 * 2**20
_READS = 3  # times to fetch results at most if some are damaged, or missing although the batch ran to its end
_MOST_PAGES = 1000

_SKEW_S = 600.0  # how much the provider's clock may differ from this machine's clock
_QUEUE_FULL = r"enqueued token limit"  # in OpenAI's reason if its queue has no room for another batch
_BOUNDARY = b"grue-batch-file"


class BatchRefused(Exception):  # noqa: N818 - what has happened to the batch
    """Batches cannot be sent or read for now; `failure` says why. The requests stay in their folder."""

    def __init__(self, failure: m.LlmFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class BatchDesk:
    """Sends the requests that wait in a folder, and fetches the replies. The caller enters `endpoint`."""

    def __init__(
        self,
        endpoint: LlmEndpoint,
        folder: BatchFolder,
        batching: Batching,
        *,
        sleep: Callable[[float], Awaitable[object]] = anyio.sleep,
    ) -> None:
        self._endpoint = endpoint
        self._folder = folder
        self._batching = batching
        self._sleep = sleep
        self._form = folder.form
        self._path = FORMATS[folder.manifest.wire].path_of(folder.manifest.model, stream=False)

    async def send(self) -> None:
        """Send each unsent file of requests; raises `BatchRefused`."""
        for each in list(self._folder.unsent()):
            # A new key each time: a file that is sent again must not be taken for the batch that was refused.
            key = f"{self._folder.manifest.run}-{each.number}-{secrets.token_hex(4)}"
            record = replace(each, begun_at=time.time(), key=key)
            await self._submit(self._folder.keep(record))

    async def replies(self) -> list[str]:
        """Call `look` until it returns ids, and return them; empty: no batch is under way."""
        delay_s = self._batching.first_look_s
        while self._under_way():
            settled = await self.look()
            if settled:
                return settled
            await self._sleep(delay_s)
            delay_s = min(delay_s * 1.5, self._batching.look_every_s)
        return []

    async def look(self) -> list[str]:
        """Check each batch, store the results of those that have ended, and return their requests' ids.

        Also send each file in the state `sending` that has no batch at the provider. Raises `BatchRefused`,
        for instance if the provider keeps failing for `Batching.patience_s`, or does not end a batch within
        `Batching.batch_timeout_s`.
        """
        return [item for each in self._under_way() for item in await self._look(each)]

    def _under_way(self) -> list[Submission]:
        return [each for each in self._folder.submissions.values() if each.state != "settled"]

    async def _submit(self, record: Submission, *, unsure: bool = False) -> Submission:
        """Send a file of requests to the provider, which makes a batch of it. Raises `BatchRefused`.

        `unsure`: the file may have been sent already, so first look for its batch. If a batch that still runs
        may be that batch, return `record` unchanged: the next `look` checks again.
        """
        patience = self._patience()
        while True:
            found = await self._found(record) if unsure else None
            if found == "running":
                return record
            if found is not None:
                return self._folder.keep(replace(record, state="sent", batch_id=found.id))
            if isinstance(self._form, batch_forms.OpenAIBatches) and not record.file_id:
                record = self._folder.keep(replace(record, file_id=await self._upload(record)))
            answer = await self._create(record)
            if isinstance(answer, Answered) and 200 <= answer.status < 300:
                made = self._read_as("a batch", self._state_in, answer)
                return self._folder.keep(replace(record, state="sent", batch_id=made.id))
            fault = answer if isinstance(answer, Fault) else answer.fault
            if isinstance(answer, Answered) and _is_final(answer.status, fault):
                self._folder.forget(record)  # no batch was made of the file, so it can be sent again later
                raise BatchRefused(self._endpoint.describe(fault))
            await patience.after(fault)
            unsure = True

    async def _create(self, record: Submission) -> Answered | Fault:
        if isinstance(self._form, batch_forms.OpenAIBatches):
            body = self._form.created(record.file_id, self._path, record.key)
            return await self._endpoint.call("POST", self._form.path, content=body)
        upload = Upload(b'{"requests":[', self._folder.file("requests", record.number), b"]}", commas=True)
        return await self._endpoint.call("POST", self._form.path, upload=upload)

    async def _found(self, record: Submission) -> batch_forms.BatchState | Literal["running"] | None:
        """Return the batch of `record`'s file, `running` if a batch that still runs may be it, or `None`."""
        known = {each.batch_id for each in self._folder.submissions.values()}
        running: Literal["running"] | None = None
        async for batch in self._batches(record.begun_at - _SKEW_S):
            if isinstance(self._form, batch_forms.OpenAIBatches):
                if batch.key == record.key or batch.file == record.file_id != "":
                    return batch
            elif batch.id not in known and batch.total == record.items:
                if batch.state == "running":
                    self._refuse_overdue(batch, record)
                    running = "running"
                elif await self._is_ours(batch, record):
                    return batch
        return running

    async def _batches(self, since: float) -> AsyncIterator[batch_forms.BatchState]:
        """Yield the batches made at `since` or later, the newest first. Raises `BatchRefused`."""
        after, name = "", "after" if isinstance(self._form, batch_forms.OpenAIBatches) else "after_id"
        for _ in range(_MOST_PAGES):
            page = {"limit": "100"} | ({name: after} if after else {})
            ask = partial(self._endpoint.call, "GET", self._form.path, params=page)
            found, after = await self._surely(
                "the list of batches", partial(batch_forms.batches_in, self._form), ask
            )
            for each in found:
                if _made_at(each, time.time()) >= since:
                    yield each
            if not after or not found or _made_at(found[-1], time.time()) < since:
                return
        fault = Fault(kind="invalid_reply", message=f"the list of batches has more than {_MOST_PAGES} pages")
        raise BatchRefused(self._endpoint.describe(fault))

    async def _is_ours(self, batch: batch_forms.BatchState, record: Submission) -> bool:
        """Return whether the first readable result of `batch`, which has ended, is one of `record`'s."""
        ours, patience = self._folder.items_in(record.number), self._patience()
        while True:
            try:
                async for line in self._lines_of(batch, len(ours)):
                    if (result := self._read(line)) is not None:
                        return result.item in ours
                return False
            except _BrokenOff as broken:
                await patience.after(broken.fault)

    async def _look(self, record: Submission) -> list[str]:
        try:
            return await self._settled(record)
        except BatchRefused as refused:
            if refused.failure.status == 404 and record.state == "sent":
                # Such as when damaged replies are fetched again after months.
                file = self._folder.file("submissions", record.number)
                remedy = f"If the provider has removed the batch, remove {file}: its requests are sent again."
                refused.failure = replace(refused.failure, remedy=remedy)
            raise

    async def _settled(self, record: Submission) -> list[str]:
        if record.state == "sending":
            record = await self._submit(record, unsure=True)
            if record.state == "sending":
                return []
        ask = partial(self._endpoint.call, "GET", f"{self._form.path}/{record.batch_id}")
        state = await self._surely("a batch", self._state_in, ask)
        if state.state == "running":
            self._refuse_overdue(state, record)
            return []
        items = self._folder.items_in(record.number)
        if state.state == "refused":
            if says(_QUEUE_FULL, state.why) and len(self._under_way()) > 1:
                # The queue is full. A later `send` sends the file again.
                self._folder.forget(record)
                return []
            why = state.why or "the provider has refused the batch and does not say why"
            body = msgspec.Raw(msgspec.json.encode({"error": {"message": why}}))
            return self._folder.settle(
                record, (batch_forms.Result(item=each, status=400, body=body) for each in items)
            )
        return await self._fetch(record, state, items)

    async def _fetch(
        self, record: Submission, state: batch_forms.BatchState, items: frozenset[str]
    ) -> list[str]:
        draft = self._folder.file("replies", record.number).with_suffix(".part")
        patience, reads = self._patience(), 0
        while True:
            missing = set(items)
            try:
                sound = await self._read_into(draft, state, missing)
            except _BrokenOff as broken:
                await patience.after(broken.fault)
                continue
            reads += 1
            if reads >= _READS or (sound and (not missing or state.left)):
                break
        # If replies are fetched again, the provider may have removed them. Keep those that are in the folder.
        rest = (
            self._folder.result(item) or batch_forms.lost(item, state.left, state.why)
            for item in sorted(missing)
        )
        with self._folder.using(), draft.open("rb") as file:
            read = (msgspec.json.decode(line, type=batch_forms.Result) for line in file)
            settled = self._folder.settle(record, itertools.chain(read, rest))
        draft.unlink(missing_ok=True)
        return settled

    async def _read_into(self, draft: Path, state: batch_forms.BatchState, missing: set[str]) -> bool:
        """Write results to `draft`, and remove their ids from `missing`; return whether all were readable."""
        sound, items = True, len(missing)
        with self._folder.using(), draft.open("wb") as file:
            async for line in self._lines_of(state, items):
                result = self._read(line)
                if result is None:
                    sound = False
                elif result.item in missing:
                    missing.discard(result.item)
                    file.write(msgspec.json.encode(result) + b"\n")
        return sound

    def _read(self, line: bytes) -> batch_forms.Result | None:
        try:
            return self._form.result(line.removeprefix(codecs.BOM_UTF8))
        except (ValueError, TypeError, AttributeError, RecursionError):
            return None

    async def _lines_of(self, batch: batch_forms.BatchState, items: int) -> AsyncIterator[bytes]:
        for path in batch.results:
            async for line in self._lines(path, items):
                yield line

    async def _lines(self, path: str, items: int) -> AsyncIterator[bytes]:
        """Yield a result file's lines; `b""` in place of a line over 64 MiB, or of an unreadable rest."""
        rest = bytearray()
        skipping = False
        async for piece in self._endpoint.download(path, items * _MOST_LINE):
            if isinstance(piece, Fault) and piece.kind == "invalid_reply":
                yield b""
                return
            if isinstance(piece, Fault):
                if piece.status is not None and _is_final(piece.status, piece):
                    raise BatchRefused(self._endpoint.describe(piece))
                raise _BrokenOff(piece)
            *lines, tail = piece.split(b"\n")
            for line in lines:
                rest += line
                if rest.strip() or skipping:
                    yield b"" if skipping else bytes(rest)
                rest.clear()
                skipping = False
            rest += tail
            if len(rest) > _MOST_LINE:
                rest.clear()
                skipping = True
        if rest.strip() or skipping:
            yield b"" if skipping else bytes(rest)

    def _state_in(self, body: bytes) -> batch_forms.BatchState:
        return self._form.state(msgspec.json.decode(body, type=dict))

    async def _upload(self, record: Submission) -> str:
        name = f"grue-{record.key}.jsonl".encode()
        head = (
            b'--%b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--%b\r\n'
            b'Content-Disposition: form-data; name="file"; filename="%b"\r\n'
            b"Content-Type: application/jsonl\r\n\r\n" % (_BOUNDARY, _BOUNDARY, name)
        )
        source = self._folder.file("requests", record.number)
        upload = Upload(
            head, source, b"\r\n--%b--\r\n" % _BOUNDARY, f"multipart/form-data; boundary={_BOUNDARY.decode()}"
        )
        ask = partial(self._endpoint.call, "POST", "/files", upload=upload)
        return await self._surely("an uploaded file", lambda body: str(msgspec.json.decode(body)["id"]), ask)

    async def _surely(
        self, what: str, read: Callable[[bytes], T], ask: Callable[[], Awaitable[Answered | Fault]]
    ) -> T:
        """Send a request, and return its answer, parsed by `read`. Raises `BatchRefused`.

        After a fault that may pass, send it again, for `Batching.patience_s`. Also send it again if the
        answer cannot be read, such as a proxy's page, but only once.
        """
        patience, unread = self._patience(), False
        while True:
            answer = await ask()
            if isinstance(answer, Answered) and 200 <= answer.status < 300:
                try:
                    return self._read_as(what, read, answer)
                except BatchRefused:
                    if unread:
                        raise
                unread = True
                fault = Fault(kind="invalid_reply", message=f"{what} cannot be read")
            else:
                fault = answer if isinstance(answer, Fault) else answer.fault
                if isinstance(answer, Answered) and _is_final(answer.status, fault):
                    raise BatchRefused(self._endpoint.describe(fault))
            await patience.after(fault)

    def _refuse_overdue(self, batch: batch_forms.BatchState, record: Submission) -> None:
        limit_s = self._batching.batch_timeout_s
        if time.time() <= _made_at(batch, record.begun_at) + limit_s:
            return
        fault = Fault(
            kind="timed_out",
            message=f"the batch {batch.id} has not ended within {limit_s:g} s (Batching.batch_timeout_s)",
            remedy="Run the same again when the batch has ended, or cancel the batch at the provider first.",
        )
        raise BatchRefused(self._endpoint.describe(fault))

    def _patience(self) -> "_Patience":
        return _Patience(self._endpoint, time.monotonic() + self._batching.patience_s, self._sleep)

    def _read_as(self, what: str, read: Callable[[bytes], T], answer: Answered) -> T:
        try:
            return read(answer.body)
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
            fault = Fault(kind="invalid_reply", message=f"{what} cannot be read: {error}")
            raise BatchRefused(self._endpoint.describe(fault)) from error


class _Patience(Struct):
    """Waits after a fault, or raises `BatchRefused` if `until` has passed on the monotonic clock."""

    endpoint: LlmEndpoint
    until: float
    sleep: Callable[[float], Awaitable[object]]
    tries: int = 0

    async def after(self, fault: Fault) -> None:
        if time.monotonic() > self.until:
            raise BatchRefused(self.endpoint.describe(fault))
        self.tries += 1
        retry, asked_s = self.endpoint.settings.retry, fault.retry_after_s
        wait_s = backoff(retry, self.tries)
        if asked_s is not None and asked_s <= retry.max_asked_delay_s:
            wait_s = max(wait_s, asked_s)  # never shorter than the backoff: the provider may ask for 0 s
        await self.sleep(wait_s)


class _BrokenOff(Exception):  # noqa: N818 - never leaves this module
    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


def _is_final(status: int, fault: Fault) -> bool:
    # A 429 may mean that the credit is used up: then retries for `patience_s` would not help.
    return status not in RETRYABLE or fault.reason == "credit"


def _made_at(batch: batch_forms.BatchState, otherwise: float) -> float:
    """Return when a batch was made, in seconds since the epoch; `otherwise` if its time cannot be read."""
    for read in (float, lambda text: datetime.fromisoformat(text).timestamp()):
        with contextlib.suppress(ValueError):
            made_at = read(batch.created_at)
            return made_at if math.isfinite(made_at) else otherwise
    return otherwise
