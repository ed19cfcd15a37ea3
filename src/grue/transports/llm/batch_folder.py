"""A folder with the requests that wait for batches, and with their replies.

    DIR/batch.json               which model the requests are for
    DIR/lock                     locked by the process that uses the folder: one at a time
    DIR/turns/000001.jsonl       the trace of a turn
    DIR/requests/0001.jsonl      one request a line, in the provider's format; a closed file never grows
    DIR/submissions/0001.json    whether requests/0001.jsonl was sent: written before sending, then updated
    DIR/replies/0001.jsonl       the results of requests/0001.jsonl: written when its batch has ended

A request's id consists of the folder's `run`, the number of the turn, the request's number in the turn, a
digest of its body, and the number of the attempt at the turn. In a fleet it consists of `run`, the episode's
id, the request's number among those with the same body, the digest, and the number of the try. By the id, a
process finds a request that an earlier process has stored.

Damaged replies are fetched from the provider again. If `batch.json`, a file of requests, or the submission of
a file that lacks replies is damaged, the error says how to mend it.
"""

import fcntl
import hashlib
import itertools
import os
import re
import secrets
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from grue.errors import MCPError
from grue.protocol.chat_wire.batch_forms import BatchForm, Result
from grue.runtime.files import LineFile, os_errors_as, read_regular, replacing, write_whole
from grue.runtime.loops.closing import Closing

T = TypeVar("T")

_MOST_BYTES = 2**20
FORMAT = 1


class BatchManifest(Struct, frozen=True, kw_only=True):
    """The content of `batch.json`: the model that a folder's requests are for."""

    format: int = FORMAT
    run: str = ""  # set by `BatchFolder`: a random text, so that no two folders have the same ids
    address: str
    model: str
    wire: str


class Submission(Struct, frozen=True, kw_only=True):
    """The state of a file of `items` requests, which is sent as one batch.

    `sending`: it is not known whether the file was sent. `sent`: the provider has it. `settled`: its results
    are in the folder. OpenAI's API stores `key` with the batch, so that grue can find the batch by it.
    """

    number: int
    items: int = 0
    state: Literal["sending", "sent", "settled"] = "sending"
    key: str = ""
    begun_at: float = 0.0
    file_id: str = ""
    batch_id: str = ""


class BatchFolderError(MCPError):
    """The folder cannot be used; the text says why."""


_FILES = {"turns": "{:06}.jsonl", "submissions": "{:04}.json"}
_FILES |= {"requests": "{:04}.jsonl", "replies": "{:04}.jsonl"}
_NUMBERED = re.compile(r"\d{4,}\.jsonl?")


class BatchFolder(Closing):
    """A folder of waiting requests, locked for this process. Enter it with `with`.

    A new file gets at most `most_items` requests; `None`: as many as the provider takes. `keep_unsent=False`:
    remove the unsent files of requests, so that the requests that are still wanted have to be stored again.
    Raises `BatchFolderError`, also if another process uses the folder, or its requests are for another model.
    """

    def __init__(
        self,
        path: Path,
        manifest: BatchManifest,
        form: BatchForm,
        *,
        most_items: int | None = None,
        keep_unsent: bool = True,
    ) -> None:
        self.path = path
        self.form = form
        self._most_items = min(form.most_items, most_items or form.most_items)
        self._lock = -1
        self._file: LineFile | None = None
        self._number = 0
        self._size = self._count = 0
        self._wanted: dict[str, int] = {}
        self._by_turn: dict[str, list[str]] = {}
        self._replies: dict[str, tuple[int, int, int]] = {}
        self.submissions: dict[int, Submission] = {}
        try:
            with self.using():
                path.parent.mkdir(parents=True, exist_ok=True)
                # "" is `path` itself. If `mkdir` made it only as the parent of "turns", it would have the
                # default mode.
                for name in ("", *_FILES):
                    (path / name).mkdir(mode=0o700, exist_ok=True)
                self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self.manifest = self._known(manifest)
                self._read(keep_unsent=keep_unsent)
        except BaseException as error:
            self.close()
            if isinstance(error.__cause__, BlockingIOError):
                why = f"Another process works on the batch folder {path}. Wait for it, or end it."
                raise BatchFolderError(why) from None
            raise

    def close(self) -> None:
        """Release the lock, so that another process can use the folder. A second call does nothing."""
        if self._file is not None:
            self._file.close()
        if self._lock >= 0:
            os.close(self._lock)
        self._file, self._lock = None, -1

    def file(self, folder: Literal["turns", "requests", "submissions", "replies"], number: int) -> Path:
        """Return the path of a file in one of the folders that the module's docstring lists."""
        return self.path / folder / _FILES[folder].format(number)

    def item_of(self, turn: int, request: int, body: bytes, read: Collection[str] = ()) -> str:
        """Return the id of a stored request whose reply this request can use, or a new id.

        `read`: the ids of the requests whose replies the turn has read.
        """
        digest, attempt = hashlib.sha256(body).hexdigest()[:16], self._attempt(turn)
        same = [_Item.of(item) for item in reversed(self._by_turn.get(f"{turn}", ()))]
        # Find the same request by its body: a turn that was interrupted and is run again may number its
        # requests differently. If an earlier attempt got an error, do not return its request: ask again.
        for each in (item for item in same if item.digest == digest):
            if each.attempt == attempt or self.result(each.id) is None or self._succeeded(each.id):
                return each.id
        # No request with this body can be used. But a request with this number and another body may have got
        # a reply. Use that reply, because a new request costs money. But skip a reply that the turn has read:
        # the turn asks again because it could not use the reply, for instance because the reply was cut.
        for each in (item for item in same if item.request == request and item.id not in read):
            if self._succeeded(each.id):
                return each.id
        return f"{self.manifest.run}-{turn}-{request}-{digest}-{attempt}"

    def set_aside(self, turn: int) -> None:
        """Rename a turn's trace, so that the turn is run again from its beginning."""
        with self.using():
            self.file("turns", turn).rename(self._failed(turn, self._attempt(turn)))

    def turn_of(self, item: str) -> str:
        """Return the number of the turn to which a stored request belongs; in a fleet, the episode's id."""
        return _Item.of(item).turn

    def turns(self) -> Iterable[str]:
        """Return the numbers of the turns that have stored requests; in a fleet, the episodes' ids."""
        return self._by_turn.keys()

    def _attempt(self, turn: int) -> int:
        return next(at for at in itertools.count(1) if not self._failed(turn, at).exists())

    def _failed(self, turn: int, attempt: int) -> Path:
        return self.path / "turns" / f"{turn:06d}.failed-{attempt}.jsonl"

    def is_wanted(self, item: str) -> bool:
        """Return whether the folder has the request with this id."""
        return item in self._wanted

    def want(self, item: str, path: str, body: bytes) -> None:
        """Store a request so that it survives the end of this process, or raise `TraceError`."""
        line = self.form.line(item, path, body)
        full = self._count >= self._most_items or self._size + len(line) > self.form.most_bytes
        if self._file is None or (full and self._count):
            self._end_file()
            self._number += 1
            self._size = self._count = 0
            self._file = LineFile(self.file("requests", self._number), "file of requests")
        self._file.write(line.removesuffix(b"\n"))
        self._size += len(line)
        self._count += 1
        self._note(item, self._number)

    def result(self, item: str) -> Result | None:
        """Return the reply to a request, or its error; `None`: neither has arrived yet."""
        place = self._replies.get(item)
        if place is None:
            return None
        number, offset, length = place
        path = self.file("replies", number)
        with self.using(), path.open("rb") as file:
            file.seek(offset)
            return _decoded(path, file.read(length), Result, "Run the same again: lost replies are fetched.")

    def unsent(self) -> Iterator[Submission]:
        """Flush the requests to disk, and yield a `Submission` for each unsent file of requests."""
        self._end_file()
        for number, items in sorted(Counter(self._wanted.values()).items()):
            if number not in self.submissions:
                yield Submission(number=number, items=items)

    def keep(self, submission: Submission) -> Submission:
        """Store a submission on disk in place of its earlier state, and return it."""
        with self.using():
            write_whole(
                self.file("submissions", submission.number), msgspec.json.encode(submission), fsync=True
            )
        self.submissions[submission.number] = submission
        return submission

    def forget(self, submission: Submission) -> None:
        """Remove a submission that the provider has refused. Its file of requests can then be sent again."""
        with self.using():
            self.file("submissions", submission.number).unlink(missing_ok=True)
        self.submissions.pop(submission.number, None)

    def items_in(self, number: int) -> frozenset[str]:
        """Return the ids of the requests in the file of requests with this number."""
        return frozenset(item for item, file in self._wanted.items() if file == number)

    def settle(self, submission: Submission, results: Iterable[Result]) -> list[str]:
        """Store the results of a submission's requests, all or none, and return the ids of the requests."""
        settled = []
        with self.using():
            with replacing(self.file("replies", submission.number), fsync=True) as file:
                for each in results:
                    file.write(msgspec.json.encode(each) + b"\n")
                    settled.append(each.item)
            self._read_replies(submission.number)
        self.keep(msgspec.structs.replace(submission, state="settled"))
        return settled

    def _succeeded(self, item: str) -> bool:
        result = self.result(item)
        return result is not None and result.status is not None and 200 <= result.status < 300

    def _note(self, item: str, number: int) -> None:
        self._wanted[item] = number
        self._by_turn.setdefault(self.turn_of(item), []).append(item)

    def using(self) -> AbstractContextManager[None]:
        """Translate an `OSError` of the block into `BatchFolderError`."""
        return os_errors_as(BatchFolderError, f"use the batch folder {self.path}")

    def _end_file(self) -> None:
        if self._file is not None:
            self._file.sync()
            self._file.close()
            self._file = None

    def _known(self, given: BatchManifest) -> BatchManifest:
        path = self.path / "batch.json"
        try:
            remedy = (
                f"If the folder's requests are for {given.model} at {given.address}, remove this file: it is"
                " written again, and no reply is lost."
            )
            there = _decoded(path, read_regular(path, _MOST_BYTES), BatchManifest, remedy)
        except FileNotFoundError:
            made = msgspec.structs.replace(given, run=self._run_of_requests() or secrets.token_hex(4))
            write_whole(path, msgspec.json.encode(made), fsync=True)
            return made
        if msgspec.structs.replace(there, run="") != given:
            raise BatchFolderError(
                f"The batch folder {self.path} holds requests to {there.model} at {there.address}"
                f" ({there.wire}), not to {given.model} at {given.address} ({given.wire})."
                " Name another folder."
            )
        return there

    def _numbered(self, folder: str) -> Iterator[Path]:
        yield from (path for path in sorted((self.path / folder).iterdir()) if _NUMBERED.fullmatch(path.name))

    def _run_of_requests(self) -> str:
        for path in self._numbered("requests"):
            with path.open("rb") as file:
                for line in file:
                    with suppress(ValueError, RecursionError):
                        return msgspec.json.decode(line, type=_Named).custom_id.partition("-")[0]
        return ""

    def _read(self, *, keep_unsent: bool) -> None:
        sent = {int(path.stem): path for path in self._numbered("submissions")}
        self._number = max(sent, default=0)
        for path in self._numbered("requests"):
            if keep_unsent or int(path.stem) in sent:
                self._read_requests(path)
            else:
                path.unlink()
        for number in sent:
            if self.file("replies", number).exists():
                self._read_replies(number)
        incomplete = {number for item, number in self._wanted.items() if item not in self._replies}
        for number, path in sent.items():
            self.submissions[number] = self._read_submission(path, number, incomplete=number in incomplete)

    def _read_submission(self, path: Path, number: int, *, incomplete: bool) -> Submission:
        written = read_regular(path, _MOST_BYTES)
        if not incomplete:
            with suppress(ValueError, RecursionError):
                return msgspec.json.decode(written, type=Submission)
            return Submission(number=number, state="settled")
        remedy = (
            f'Write {{"number":{number},"state":"sent","batch_id":"ID"}} into it, with the id that the'
            f" provider has given to the batch of {self.file('requests', number).name}, and no reply is lost."
            " If you remove the file instead, these requests are sent, and paid for, again."
        )
        submission = _decoded(path, written, Submission, remedy)
        if submission.state == "settled":  # replies were damaged or removed: fetch them again
            return msgspec.structs.replace(submission, state="sent")
        return submission

    def _read_requests(self, path: Path) -> None:
        """Read the ids of a file's requests. Cut off a last line that a killed process left incomplete."""
        number, whole = int(path.stem), 0
        with path.open("rb+") as file:
            for count, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    break
                whole += len(line)
                remedy = f"Remove its line {count}: only its request is asked, and paid for, again."
                self._note(_decoded(path, line, _Named, remedy).custom_id, number)
            file.truncate(whole)
        self._number = max(self._number, number)

    def _read_replies(self, number: int) -> None:
        offset, path = 0, self.file("replies", number)
        with path.open("rb") as file:
            for line in file:
                with suppress(ValueError, RecursionError):  # a damaged reply; see `_read_submission`
                    item = msgspec.json.decode(line, type=Result).item
                    self._replies[item] = (number, offset, len(line))
                offset += len(line)


class _Item(Struct, frozen=True):
    id: str
    turn: str
    request: int
    digest: str
    attempt: int

    @classmethod
    def of(cls, item: str) -> "_Item":
        _, turn, request, digest, attempt = item.split("-")
        return cls(item, turn, int(request), digest, int(attempt))


_ItemId = Annotated[str, Meta(pattern=r"^[^-]+-[^-]+-\d{1,9}-[^-]+-\d{1,9}$")]


class _Named(Struct):
    custom_id: _ItemId


def _decoded(path: Path, written: bytes, kind: type[T], remedy: str) -> T:
    try:
        return msgspec.json.decode(written, type=kind)
    except (ValueError, RecursionError) as error:
        raise BatchFolderError(f"{path} is damaged: {error}. {remedy}") from error
