"""The batch APIs of providers, which take many requests at once and answer later, usually at half the price.

OpenAI takes a file with a line for each request, and Anthropic all requests in one body. If a process is
killed while it submits a batch, the batch may be in the provider's list already. With OpenAI's API, grue
finds its batch by a key in the metadata, or by the id of the uploaded file, because some providers keep no
metadata. With Anthropic's API, a batch counts as grue's if it was made since grue began to submit, has as
many requests as grue submitted, and its first readable result has the id of one of them.
"""

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct, field

from grue.errors import MCPConfigError
from grue.policies import FailureKind, FailureReason
from grue.protocol.chat_wire.failures import STATUS_OF_TYPE, Fault
from grue.protocol.chat_wire.formats import FORMATS
from grue.protocol.chat_wire.wire_format import BatchFormName

Json: TypeAlias = dict[str, Any]

# The name of a member of a batch's metadata. By the member's value grue finds the batch again.
KEY = "grue_batch"


_AGAIN = "To ask it anew, run the same batch with Batching(retry_failed=True)."


class BatchState(Struct, frozen=True, kw_only=True):
    """The state of a batch, as the provider reports it. `refused`: no request of the batch was processed."""

    id: str
    state: Literal["running", "ended", "refused"]
    key: str = ""  # the key that grue put into the batch's metadata; empty if the batch has no such key
    file: str = ""
    created_at: str = ""  # when the batch was created, as the provider writes it
    total: int | None = None
    results: tuple[str, ...] = ()  # API paths of the files with the results; none before the batch has ended
    why: str = ""
    left: Literal["", "expired", "cancelled"] = ""  # how it ended, if so early that results may be missing


class Result(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The outcome of request `item` of a batch. Without a reply, `status` is `None`, and `fault` says why."""

    item: str
    status: int | None = None
    body: msgspec.Raw = field(default_factory=lambda: msgspec.Raw(b"null"))
    kind: FailureKind = "invalid_reply"
    reason: FailureReason = "reply"
    message: str = ""

    @property
    def fault(self) -> Fault:
        """Why the request has no reply. Use it only if `status` is `None`."""
        return Fault(kind=self.kind, message=self.message, reason=self.reason, remedy=_AGAIN)


def lost(item: str, left: Literal["", "expired", "cancelled"], why: str = "") -> Result:
    """Return a result without a reply; `left`, `why`: how and why the batch ended, if it ended early."""
    if not left:
        words = "the batch has ended, and its results have nothing readable for this request"
        return Result(item=item, message=words)
    if left == "expired":
        words = why or "the batch expired before this request was processed"
        return Result(item=item, kind="timed_out", reason="timeout", message=words)
    words = why or "the batch was cancelled before this request was processed"
    return Result(item=item, kind="refused", reason="request", message=words)


class OpenAIBatches:
    """OpenAI's batch API, for chat completions and responses."""

    most_items = 50_000
    most_bytes = 200 * 10**6
    path = "/batches"

    def line(self, item: str, path: str, body: bytes) -> bytes:
        """Return the line for a request in the file that is uploaded for a batch."""
        head = msgspec.json.encode({"custom_id": item, "method": "POST", "url": f"/v1{path}"})
        return head[:-1] + b',"body":' + body + b"}\n"

    def created(self, file_id: str, path: str, key: str) -> bytes:
        """Return the body of the request that creates a batch from an uploaded file."""
        body = {"input_file_id": file_id, "endpoint": f"/v1{path}", "completion_window": "24h"}
        return msgspec.json.encode({**body, "metadata": {KEY: key}})

    def state(self, batch: Json) -> BatchState:
        """Return the state of a batch, from the provider's object, or raise an error such as `ValueError`."""
        status = str(batch.get("status"))
        ended = status in ("completed", "expired", "cancelled")
        errors = (batch.get("errors") or {}).get("data") or ()
        why = "; ".join(str(each.get("message", "")) for each in errors if isinstance(each, dict))
        files = (batch.get("output_file_id"), batch.get("error_file_id"))
        counts = batch.get("request_counts") or {}
        return BatchState(
            id=_text(batch, "id"),
            state="refused" if status == "failed" else "ended" if ended else "running",
            key=str((batch.get("metadata") or {}).get(KEY, "")),
            file=str(batch.get("input_file_id") or ""),
            created_at=str(batch.get("created_at", "")),
            total=counts.get("total"),
            results=tuple(f"/files/{each}/content" for each in files if ended and each),
            why=why,
            left="expired" if status == "expired" else "cancelled" if status == "cancelled" else "",
        )

    def result(self, line: bytes) -> Result:
        """Return the outcome of one request, from a line of the results; `ValueError` if it is unreadable."""
        read = msgspec.json.decode(line, type=_OpenAILine)
        error = read.error or {}
        if read.response is None:
            if not error:
                raise ValueError("a line with neither a reply nor an error")
            expired = error.get("code") == "batch_expired"
            why = str(error.get("message") or "")
            if expired or error.get("code") in ("batch_cancelled", "request_cancelled"):
                return lost(read.custom_id, "expired" if expired else "cancelled", why)
            return Result(item=read.custom_id, kind="unavailable", reason="overloaded", message=why)
        return Result(item=read.custom_id, status=read.response.status_code, body=read.response.body)


class _OpenAIResponse(Struct):
    status_code: int
    body: msgspec.Raw


class _OpenAILine(Struct):
    custom_id: str
    response: _OpenAIResponse | None = None
    error: Json | None = None


class AnthropicBatches:
    """Anthropic's batch API, for messages."""

    most_items = 100_000
    most_bytes = 256 * 10**6
    path = "/messages/batches"

    def line(self, item: str, path: str, body: bytes) -> bytes:
        """Return a request as an item of the list that is posted to create a batch."""
        del path
        return msgspec.json.encode({"custom_id": item})[:-1] + b',"params":' + body + b"}\n"

    def state(self, batch: Json) -> BatchState:
        """Return the state of a batch, from the provider's object, or raise an error such as `ValueError`."""
        id_, ended = _text(batch, "id"), batch.get("processing_status") == "ended"
        counts = {name: n for name, n in (batch.get("request_counts") or {}).items() if isinstance(n, int)}
        state: Literal["ended", "running"] = "ended" if ended else "running"
        results = (f"{self.path}/{id_}/results",) if ended else ()
        total, created_at = sum(counts.values()) or None, str(batch.get("created_at", ""))
        return BatchState(id=id_, state=state, created_at=created_at, total=total, results=results)

    def result(self, line: bytes) -> Result:
        """Return the outcome of one request, from a line of the results; `ValueError` if it is unreadable."""
        read = msgspec.json.decode(line, type=_AnthropicLine)
        match read.result.type:
            case "succeeded" if read.result.message:
                return Result(item=read.custom_id, status=200, body=read.result.message)
            case "errored" if read.result.error:
                error = msgspec.json.decode(read.result.error)
                inner = error.get("error", error) if isinstance(error, dict) else {}
                kind = str(inner.get("type", "")) if isinstance(inner, dict) else ""
                status = STATUS_OF_TYPE.get(kind, 400)
                return Result(item=read.custom_id, status=status, body=read.result.error)
            case "expired":
                return lost(read.custom_id, "expired")
            case "canceled":
                return lost(read.custom_id, "cancelled")
            case other:
                raise ValueError(f"a result of the type {other!r:.40}")


class _AnthropicResult(Struct):
    type: str
    message: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()


class _AnthropicLine(Struct):
    custom_id: str
    result: _AnthropicResult


BatchForm: TypeAlias = OpenAIBatches | AnthropicBatches

FORMS: Mapping[BatchFormName, BatchForm] = {"openai": OpenAIBatches(), "anthropic": AnthropicBatches()}


def batch_form_of(wire: str) -> BatchForm:
    """Return the batch API of a wire format; `MCPConfigError` if its providers take no batches."""
    form = FORMATS[wire].batches
    if form is None:
        raise MCPConfigError(f"No batches are known for the wire format {wire!r}. Ask without `batch`.")
    return FORMS[form]


def batches_in(form: BatchForm, body: bytes) -> tuple[list[BatchState], str]:
    """Return the batches on a page, and the id after which the next page begins, empty on the last page."""
    page = msgspec.json.decode(body, type=_Page)
    found = [form.state(each) for each in page.data]
    return found, found[-1].id if page.has_more and found else ""


class _Page(Struct):
    data: list[Json]
    has_more: bool = False


def _text(batch: Json, name: str) -> str:
    value = batch.get(name)
    if not isinstance(value, str) or not value:
        raise ValueError(f"a batch without {name}")
    return value
