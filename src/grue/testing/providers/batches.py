"""The batches of the scripted endpoint: OpenAI's `/files` and `/batches`, Anthropic's `/messages/batches`."""

import email.parser
import email.policy
import itertools
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias
from urllib.parse import parse_qsl

from msgspec import Struct, field

from grue.testing.llm_replies import LlmReply, error_reply, json_reply
from grue.testing.providers import messages_dialect
from grue.testing.providers.chat_rules import MALFORMED, Json

Ask: TypeAlias = Callable[[str, Mapping[str, str], bytes], LlmReply]
Unanswered: TypeAlias = Literal["expired", "cancelled", "errored", "lost"]

_FIELDS = frozenset({"endpoint", "input_file_id", "completion_window", "metadata"})
_ENDPOINTS = frozenset({"/v1/chat/completions", "/v1/responses", "/v1/embeddings", "/v1/completions"})
_MOST_ITEMS, _MOST_BYTES = 50_000, 200 * 10**6
_ANTHROPIC_MOST_ITEMS, _ANTHROPIC_MOST_BYTES = 100_000, 256 * 10**6
_ANTHROPIC = "/messages/batches"  # the path of Anthropic's batches, after `/v1`
_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class BatchFaults(Struct, kw_only=True):
    """What goes wrong with batches of requests. The fields may be changed while the server runs.

    `in_place` and `after` get a count: the request's number, from 1, among the requests with its method and
    path. The count that `results` gets is the request's number among the requests for the file.
    """

    looks: int = 0  # how many GET requests show a batch as running before it ends
    # `failed`: no request is answered; Anthropic's batches cannot fail, so they end as `completed`
    ends: Literal["completed", "expired", "cancelled", "failed"] = "completed"
    why: str = "the file could not be read"  # the reason of a `failed` batch
    # gets a request's id; `None`: the request is answered; `lost`: it is missing in the results
    unanswered: Callable[[str], Unanswered | None] = lambda _: None
    # gets method, path and count; may return a reply to send instead of carrying out the request
    in_place: Callable[[str, str, int], LlmReply | None] = lambda *_: None
    # called like `in_place`, but after the request was carried out; may return another reply to send
    after: Callable[[str, str, int], LlmReply | None] = lambda *_: None
    # gets the content of a results file and the count; returns what to send
    results: Callable[[bytes, int], bytes] = lambda lines, _: lines


class _Batch(Struct, kw_only=True):
    id: str
    created: float
    requests: list[tuple[str, str, Json]]
    anthropic: bool = False
    metadata: Json = field(default_factory=dict)
    file: str = ""
    endpoint: str = ""
    looks: int = 0
    state: Literal["running", "completed", "expired", "cancelled", "failed"] = "running"
    why: str = ""
    good: bytes = b""
    bad: bytes = b""


class ScriptedBatches:
    """The batches of requests that an endpoint has received; `ask` answers a request as if posted alone."""

    # `asked` counts the calls of `ask` by the request's id; `made` has the ids of each batch's requests.

    def __init__(self, ask: Ask) -> None:
        self.faults = BatchFaults()
        self.asked: Counter[str] = Counter()
        self.made: dict[str, list[str]] = {}
        self._ask = ask
        self._files: dict[str, bytes] = {}
        self._batches: dict[str, _Batch] = {}
        self._numbers = itertools.count(1)
        self._times: Counter[tuple[str, str]] = Counter()
        self._reads: Counter[str] = Counter()
        self._lock = threading.RLock()

    def takes(self, path: str) -> bool:
        """Return whether a request with this path is about files or batches."""
        plain = path.partition("?")[0]
        return re.search(r"/v1/(files|batches|messages/batches)(/|$)", plain) is not None

    def answer(self, method: str, path: str, headers: Mapping[str, str], raw: bytes) -> LlmReply:
        """Return the reply to a request about files or batches."""
        plain, _, query = path.partition("?")
        with self._lock:
            self._times[method, plain] += 1
            times = self._times[method, plain]
            early = self.faults.in_place(method, plain, times)
            if early is not None:
                return early
            place = plain[plain.index("/v1/") + 3 :]
            try:
                reply = self._done(method, place, dict(parse_qsl(query)), headers, raw)
            except MALFORMED as error:
                reply = error_reply(400, f"We could not parse your request: {error}")
            if reply.status >= 400 and place.startswith(_ANTHROPIC):
                said = messages_dialect.error(reply.status, json.loads(reply.body)["error"])
                reply = json_reply(said, status=reply.status)
            late = self.faults.after(method, plain, times)
        return reply if late is None else late

    def _done(
        self, method: str, place: str, query: Mapping[str, str], headers: Mapping[str, str], raw: bytes
    ) -> LlmReply:
        anthropic = place.startswith(_ANTHROPIC)
        if anthropic and (refused := messages_dialect.admission(headers)) is not None:
            return error_reply(refused.status, refused.words)
        _, kind, *rest = place.removeprefix("/messages").split("/")
        match method, kind, rest:
            case "POST", "files", []:
                return self._upload(headers, raw)
            case "GET", "files", [id_, "content"]:
                return self._content(id_)
            case "POST", "batches", []:
                return self._make_of_list(raw) if anthropic else self._make_of_file(raw)
            case "GET", "batches", []:
                return self._list(query, headers)
            case "GET", "batches", [id_]:
                return self._look(id_, headers)
            case "GET", "batches", [id_, "results"] if anthropic and id_ in self._batches:
                return self._lines(f"{id_}-results", self._batches[id_].good)
        return error_reply(404, f"Unknown request URL: {method} {place}.")

    # --- OpenAI

    def _upload(self, headers: Mapping[str, str], raw: bytes) -> LlmReply:
        kind = headers.get("content-type", "")
        if not kind.startswith("multipart/form-data"):
            return error_reply(400, "Invalid Content-Type header. Expected multipart/form-data.")
        head = f"Content-Type: {kind}\r\n\r\n".encode()
        message = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(head + raw)
        fields = {part.get_param("name", header="content-disposition"): part for part in message.iter_parts()}
        if "purpose" not in fields or fields["purpose"].get_content().strip() != "batch":
            return error_reply(400, "'purpose' is a required property")
        file = fields.get("file")
        if file is None or not str(file.get_filename()).endswith(".jsonl"):
            return error_reply(400, "Invalid file format: a batch takes .jsonl")
        content = file.get_payload(decode=True)
        id_ = f"file-{next(self._numbers)}"
        self._files[id_] = content if isinstance(content, bytes) else b""
        return json_reply({"id": id_, "object": "file", "purpose": "batch", "bytes": len(self._files[id_])})

    def _make_of_file(self, raw: bytes) -> LlmReply:
        body = json.loads(raw)
        endpoint, file, metadata = body.get("endpoint"), body.get("input_file_id"), body.get("metadata") or {}
        if endpoint not in _ENDPOINTS:
            return error_reply(400, f"Invalid value: '{endpoint}'", code="invalid_value")
        if file not in self._files:
            return error_reply(404, f"No such File object: {file}")
        if body.get("completion_window") != "24h":
            return error_reply(400, "Invalid value for completion_window: only '24h' is supported.")
        if len(metadata) > 16 or body.keys() - _FIELDS:
            return error_reply(400, "Unknown parameter, or more than 16 entries of metadata")
        requests, why = _read_file(self._files[file], endpoint)
        batch = self._new(requests, endpoint=endpoint, metadata=metadata, file=file)
        if why:  # no error reply: providers report a refused file in the batch's state
            batch.state, batch.why = "failed", why
        return json_reply(_shown(batch))

    def _content(self, id_: str) -> LlmReply:
        batch, _, kind = id_.rpartition("-")
        if batch not in self._batches:
            return error_reply(404, f"No such File object: {id_}")
        made = self._batches[batch]
        return self._lines(id_, made.good if kind == "output" else made.bad)

    # --- Anthropic

    def _make_of_list(self, raw: bytes) -> LlmReply:
        requests = [(each["custom_id"], "", each["params"]) for each in json.loads(raw)["requests"]]
        ids = [item for item, _, _ in requests]
        if not ids or len(set(ids)) < len(ids) or not all(map(_ID.fullmatch, ids)):
            return error_reply(400, "requests: custom_id is unique and of letters, digits, _ and -")
        if len(ids) > _ANTHROPIC_MOST_ITEMS or len(raw) > _ANTHROPIC_MOST_BYTES:
            return error_reply(413, "Request exceeds the maximum size")
        if any(body.get("stream") for _, _, body in requests):
            return error_reply(400, "requests: stream is not supported in batches")
        return json_reply(_shown(self._new(requests, anthropic=True)))

    # --- What the two providers have in common

    def _new(self, requests: list[tuple[str, str, Json]], **more: Any) -> _Batch:
        id_ = f"batch_{next(self._numbers)}"
        batch = _Batch(id=id_, created=time.time(), requests=requests, **more)
        self._batches[id_] = batch
        self.made[id_] = [item for item, _, _ in requests]
        return batch

    def _list(self, query: Mapping[str, str], headers: Mapping[str, str]) -> LlmReply:
        newest = [*reversed(self._batches.values())]
        after = query.get("after_id") or query.get("after")
        names = [batch.id for batch in newest]
        start = names.index(after) + 1 if after in names else 0
        limit = min(100, int(query.get("limit", 20)))
        page = newest[start : start + limit]
        for each in page:
            self._go_on(each, headers)
        more = start + limit < len(newest)
        return json_reply({"object": "list", "data": [_shown(each) for each in page], "has_more": more})

    def _look(self, id_: str, headers: Mapping[str, str]) -> LlmReply:
        batch = self._batches.get(id_)
        if batch is None:
            return error_reply(404, f"No batch with id {id_}")
        self._go_on(batch, headers)
        return json_reply(_shown(batch))

    def _go_on(self, batch: _Batch, headers: Mapping[str, str]) -> None:
        batch.looks += 1
        if batch.state != "running" or batch.looks <= self.faults.looks:
            return
        anthropic = batch.anthropic
        batch.state = "completed" if anthropic and self.faults.ends == "failed" else self.faults.ends
        if batch.state == "failed":
            batch.why = self.faults.why
            return
        good: list[bytes] = []
        bad: list[bytes] = []
        for item, url, body in reversed(batch.requests):  # a client must accept results in any order
            missing = self.faults.unanswered(item)
            if missing is None:
                self.asked[item] += 1
                reply = self._ask(url or "/v1/messages", headers, json.dumps(body).encode())
                try:
                    said = json.loads(reply.body if reply.then == "keep" else b"")
                    line = _answered(item, reply.status, said, anthropic=anthropic)
                    (good if reply.status == 200 else bad).append(line)
                except ValueError:  # such as `hang_up()`, or a web page: in a batch, only this request fails
                    missing = "errored"
            if missing not in (None, "lost"):
                bad.append(_unanswered(item, missing, anthropic=anthropic))
        batch.good = b"".join(good) + (b"".join(bad) if anthropic else b"")
        batch.bad = b"".join(bad)

    def _lines(self, id_: str, lines: bytes) -> LlmReply:
        self._reads[id_] += 1
        sent = self.faults.results(lines, self._reads[id_])
        return LlmReply(headers={"Content-Type": "application/jsonl"}, body=sent)


def _read_file(content: bytes, endpoint: str) -> tuple[list[tuple[str, str, Json]], str]:
    """Return the requests in a file, and why the file is refused; empty: it is not refused."""
    requests, seen, models = [], set(), set()
    lines = content.splitlines()
    if not lines or len(lines) > _MOST_ITEMS or len(content) > _MOST_BYTES:
        return [], "The file is empty, or exceeds the limits of a batch."
    for number, line in enumerate(lines, start=1):
        try:
            read = json.loads(line)
            item, body = read["custom_id"], read["body"]
            models.add(body["model"])
        except MALFORMED as error:
            return [], f"Line {number} is not a valid request: {error}"
        if set(read) != {"custom_id", "method", "url", "body"} or read["method"] != "POST":
            return [], f"Line {number}: wants custom_id, method POST, url and body"
        if read["url"] != endpoint:
            return [], f"Line {number}: the url does not match the batch's endpoint"
        if item in seen or not isinstance(item, str):
            return [], f"Line {number}: the custom_id is not unique"
        if body.get("stream"):
            return [], f"Line {number}: stream is not supported in batches"
        seen.add(item)
        requests.append((item, read["url"], body))
    return requests, "" if len(models) == 1 else "A batch may ask one model only."


def _shown(batch: _Batch) -> Json:
    if batch.anthropic:
        return _shown_anthropic(batch)
    ended = batch.state not in ("running", "failed")
    errors = {"object": "list", "data": [{"code": "invalid_file", "message": batch.why}]}
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "input_file_id": batch.file,
        "status": "in_progress" if batch.state == "running" else batch.state,
        "errors": errors if batch.why else None,
        "created_at": int(batch.created),
        "output_file_id": f"{batch.id}-output" if ended and batch.good else None,
        "error_file_id": f"{batch.id}-error" if ended and batch.bad else None,
        "request_counts": {"total": len(batch.requests), "completed": 0, "failed": 0},
        "metadata": batch.metadata,
    }


def _shown_anthropic(batch: _Batch) -> Json:
    ended = batch.state != "running"
    counts = dict.fromkeys(("processing", "succeeded", "errored", "canceled", "expired"), 0)
    counts["succeeded" if ended else "processing"] = len(batch.requests)
    return {
        "id": batch.id,
        "type": "message_batch",
        "processing_status": "ended" if ended else "in_progress",
        "request_counts": counts,
        "created_at": datetime.fromtimestamp(batch.created, UTC).isoformat().replace("+00:00", "Z"),
        "results_url": f"https://elsewhere.invalid/{batch.id}" if ended else None,
    }


def _answered(item: str, status: int, body: object, *, anthropic: bool) -> bytes:
    if anthropic:
        succeeded = {"type": "succeeded", "message": body}
        return _line(item, result=succeeded if status == 200 else {"type": "errored", "error": body})
    response = {"status_code": status, "request_id": f"req-{item}", "body": body}
    return _line(item, id=f"batch_req_{item}", response=response, error=None)


def _unanswered(item: str, what: Unanswered, *, anthropic: bool) -> bytes:
    if anthropic and what == "errored":
        return _answered(item, 529, messages_dialect.error(529, {"message": "Overloaded"}), anthropic=True)
    if anthropic:
        return _line(item, result={"type": "canceled" if what == "cancelled" else what})
    words = "This request could not be executed before the completion window expired."
    code = {"expired": "batch_expired", "cancelled": "batch_cancelled"}.get(what, "server_error")
    error = {"code": code, "message": words if what == "expired" else f"the request was {what}"}
    return _line(item, id=f"batch_req_{item}", response=None, error=error)


def _line(item: str, **more: object) -> bytes:
    return json.dumps({"custom_id": item, **more}).encode() + b"\n"
