"""The forms of batches: what is written and read, and what cannot be read."""

import json
from typing import Any

import msgspec
import pytest

from grue.protocol.chat_wire.batch_forms import (
    AnthropicBatches,
    BatchState,
    OpenAIBatches,
    batches_in,
    lost,
)

OPENAI, ANTHROPIC = OpenAIBatches(), AnthropicBatches()


def test_a_request_is_a_line_with_its_body_byte_for_byte() -> None:
    body = b'{"model":"m","b":1.50}'
    line = OPENAI.line("id-1", "/responses", body)
    assert line.endswith(b',"body":' + body + b"}\n")
    assert json.loads(line) == {
        "custom_id": "id-1",
        "method": "POST",
        "url": "/v1/responses",
        "body": {"model": "m", "b": 1.5},
    }
    assert ANTHROPIC.line("id-1", "/messages", body) == b'{"custom_id":"id-1","params":' + body + b"}\n"


@pytest.mark.parametrize(
    ("status", "state", "left"),
    [
        ("validating", "running", ""),
        ("in_progress", "running", ""),
        ("finalizing", "running", ""),
        ("cancelling", "running", ""),
        ("completed", "ended", ""),
        ("expired", "ended", "expired"),
        ("cancelled", "ended", "cancelled"),
        ("failed", "refused", ""),
        ("a status to come", "running", ""),
    ],
)
def test_the_states_of_openai(status: str, state: str, left: str) -> None:
    batch = {
        "id": "b",
        "status": status,
        "metadata": {"grue_batch": "key"},
        "input_file_id": "in",
        "created_at": 7,
        "output_file_id": "out",
        "error_file_id": None,
        "request_counts": {"total": 3},
        "errors": {"data": [{"message": "first"}, {"message": "second"}]},
    }
    results = ("/files/out/content",) if state == "ended" else ()
    assert OPENAI.state(batch) == BatchState(
        id="b",
        state=state,  # type: ignore[arg-type]
        key="key",
        file="in",
        created_at="7",
        total=3,
        results=results,
        why="first; second",
        left=left,  # type: ignore[arg-type]
    )


def test_the_states_of_anthropic_and_a_url_that_is_not_followed() -> None:
    batch = {
        "id": "b",
        "processing_status": "ended",
        "created_at": "2026-11-24T06:00:00Z",
        "request_counts": {"processing": 0, "succeeded": 2, "errored": 1, "expired": 1, "canceled": 0},
        "results_url": "https://elsewhere.invalid/results",
    }
    state = ANTHROPIC.state(batch)
    assert (state.state, state.total, state.results) == ("ended", 4, ("/messages/batches/b/results",))
    assert ANTHROPIC.state({"id": "b", "processing_status": "canceling"}).state == "running"


OPENAI_ERROR = {"custom_id": "a", "response": None, "error": {"code": "batch_expired", "message": "late"}}
LINES: list[tuple[Any, dict[str, Any], tuple[int | None, str, str]]] = [
    (OPENAI, {"custom_id": "a", "response": {"status_code": 200, "body": {"x": 1}}}, (200, "", "")),
    (OPENAI, {"custom_id": "a", "response": {"status_code": 429, "body": {}}, "error": None}, (429, "", "")),
    (OPENAI, OPENAI_ERROR, (None, "timed_out", "timeout")),
    (OPENAI, {**OPENAI_ERROR, "error": {"code": "batch_cancelled"}}, (None, "refused", "request")),
    (OPENAI, {**OPENAI_ERROR, "error": {"message": "x"}}, (None, "unavailable", "overloaded")),
    (ANTHROPIC, {"custom_id": "a", "result": {"type": "succeeded", "message": {}}}, (200, "", "")),
    (ANTHROPIC, {"custom_id": "a", "result": {"type": "expired"}}, (None, "timed_out", "timeout")),
    (ANTHROPIC, {"custom_id": "a", "result": {"type": "canceled"}}, (None, "refused", "request")),
    (
        ANTHROPIC,
        {"custom_id": "a", "result": {"type": "errored", "error": {"error": {"type": "overloaded_error"}}}},
        (529, "", ""),
    ),
    (
        ANTHROPIC,
        {"custom_id": "a", "result": {"type": "errored", "error": {"type": "invalid_request_error"}}},
        (400, "", ""),
    ),
    (
        ANTHROPIC,
        {"custom_id": "a", "result": {"type": "errored", "error": {"error": {"type": "billing_error"}}}},
        (402, "", ""),
    ),
]


@pytest.mark.parametrize(("form", "line", "expected"), LINES)
def test_a_result_is_a_reply_or_a_typed_failure(
    form: Any, line: dict[str, Any], expected: tuple[int | None, str, str]
) -> None:
    result = form.result(json.dumps(line).encode())
    status, kind, reason = expected
    assert (result.item, result.status) == ("a", status)
    if status is None:
        assert (result.fault.kind, result.fault.reason) == (kind, reason)
        assert "retry_failed" in result.fault.remedy


@pytest.mark.parametrize("form", [OPENAI, ANTHROPIC])
@pytest.mark.parametrize(
    "line", [b"", b"{", b"[]", b"null", b'{"custom_id":1}', b'{"custom_id":"a","result":3}']
)
def test_a_line_that_is_no_result_is_refused(form: Any, line: bytes) -> None:
    with pytest.raises((ValueError, msgspec.ValidationError), match=" "):
        form.result(line)


def test_a_page_of_batches_says_where_it_goes_on() -> None:
    page = {"data": [{"id": "b2", "status": "completed"}, {"id": "b1", "status": "failed"}], "has_more": True}
    found, after = batches_in(OPENAI, json.dumps(page).encode())
    assert ([each.id for each in found], after) == (["b2", "b1"], "b1")
    with pytest.raises(ValueError, match="without id"):
        batches_in(OPENAI, b'{"data":[{}]}')


def test_a_result_of_an_unknown_type_is_refused() -> None:
    with pytest.raises(ValueError, match="a result of the type 'postponed'"):
        ANTHROPIC.result(b'{"custom_id":"a","result":{"type":"postponed"}}')


def test_what_the_results_lack_has_failed() -> None:
    assert lost("a", "expired", "in the provider's words").message == "in the provider's words"
    assert lost("a", "").reason == "reply"
