"""An outcome in a notebook: a table that says how the turn went, and in which nothing is markup."""

from html.parser import HTMLParser
from typing import Any

from grue import TurnOutcome
from grue import messages as m


class Table(HTMLParser):
    """The texts of a table's cells, and every tag."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.tags: set[str] = set()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        if tag in ("th", "td"):
            self.cells.append("")

    def handle_data(self, data: str) -> None:
        self.cells[-1] += data

    @property
    def rows(self) -> dict[str, str]:
        return dict(zip(self.cells[::2], self.cells[1::2], strict=True))


def call(name: str, result: m.ToolCallResult) -> m.ToolCallRecord:
    return m.ToolCallRecord(
        call_id=m.CallId("c"), name=name, arguments="{}", iteration=1, settlement="returned", result=result
    )


def outcome(
    response: Any, *calls: m.ToolCallRecord, kind: m.OutcomeKind = "answered", reason: str = ""
) -> Table:
    made: TurnOutcome[Any] = TurnOutcome(
        turn=1,
        kind=kind,
        response=response,
        reason=reason,
        raw_response=None,
        tool_calls=calls,
        iterations=1,
        requests=2,
        usage=m.Usage(input_tokens=30, output_tokens=12),
        duration_s=1.234,
    )
    return Table(made._repr_html_())


def test_it_says_how_the_turn_went() -> None:
    failed = m.ToolCallResult(is_error=True, error_message="no ink")
    table = outcome("a lamp", call("box.look", m.ToolCallResult("dust")), call("box.write", failed))
    assert table.rows == {
        "answer": "a lamp",
        "kind": "answered",
        "tools": "box.look, box.write (no ink)",
        "tokens": "30 + 12",
        "time": "1.23 s",
    }


def test_without_calls_and_with_a_reason() -> None:
    rows = outcome({"n": 1}, kind="forced", reason="tool_timeout").rows
    assert (rows["answer"], rows["kind"], rows["tools"]) == ("{'n': 1}", "forced: tool_timeout", "none")


def test_what_models_and_tools_said_is_no_markup() -> None:
    script = "<script>alert(1)</script>"
    failed = m.ToolCallResult(is_error=True, error_message=script)
    table = outcome(f"</td>{script}&amp;", call(f"box.{script}", failed), kind="fallback", reason=script)
    assert table.tags == {"table", "tr", "th", "td"}
    assert table.rows["answer"] == f"</td>{script}&amp;"
    assert table.rows["kind"] == f"fallback: {script}"
    assert table.rows["tools"] == f"box.{script} ({script})"


def test_a_long_answer_is_cut_where_the_reader_sees_it() -> None:
    table = outcome("<" * 100_000)
    assert table.rows["answer"] == "<" * 4_000 + "…"
    assert table.rows["time"] == "1.23 s"
