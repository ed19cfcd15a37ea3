"""Sequence diagrams: what is drawn, and that no text breaks out of its place."""

import re
from pathlib import Path
from typing import Any

import pytest
from episode_scenes import SCENES, scene
from hypothesis import given
from hypothesis import strategies as st
from recorded_turns import Tape

from grue.messages import (
    Cleared,
    CompletionRetried,
    ConversationId,
    DeadlinePassed,
    LlmFailure,
    OpenSession,
    RepairRequested,
    ReplyDropped,
    RewriteHistory,
    RunTurn,
    ServerFailure,
    SessionOpened,
    StartupFailed,
    TextDelta,
    ToolSkipped,
    ToolTimedOut,
)
from grue.tracing.columns import cells
from grue.tracing.diagram import escaped, mermaid, plain

STATEMENT = re.compile(
    r"sequenceDiagram"
    r"|    participant p\d+ as [^;#\n]*(?:#\d+;[^;#\n]*)*"
    r"|    Note over p\d+(?:,p\d+)?: [^;#\n]*(?:#\d+;[^;#\n]*)*"
    r"|    p\d+--?(?:>>|x)p\d+: [^;#\n]*(?:#\d+;[^;#\n]*)*"
)


def tape(*said: tuple[Any, str, str]) -> list[Any]:
    made = Tape()
    for body, sender, receiver in said:
        made.say(body, turn=1, sender=sender, receiver=receiver)
    return made.envelopes


def test_what_the_agent_asks_of_another_actor_is_a_solid_line() -> None:
    rewrite = RewriteHistory(conversation=ConversationId("c"), reason="window", change=Cleared())
    lines = mermaid(tape((rewrite, "agent", "llm"), (ReplyDropped(request=1), "llm", "agent")))
    assert [line.split(":")[0].strip() for line in lines if ">>" in line] == ["p1->>p2", "p2-->>p1"]


def test_a_turn_in_mermaid() -> None:
    failure = LlmFailure(kind="unavailable", endpoint="e", model="m", message="busy", status=503)
    lines = list(
        mermaid(
            tape(
                (RunTurn(turn=1, system="s", user="north; #1"), "host", "agent"),
                (OpenSession(server="cave", turn=1, timeout_s=5), "agent", "cave"),
                (SessionOpened(server="cave", tools=()), "cave", "agent"),
                (CompletionRetried(request=1, attempt=1, delay_s=0.5, failure=failure), "llm", "trace"),
                (TextDelta(request=1, text="No"), "llm", "trace"),
                (ToolTimedOut(batch=1, call_id="c1", timeout_s=3), "cave", "agent"),
                (ToolSkipped(batch=1, call_id="c2", reason="Skipped"), "cave", "agent"),
                (DeadlinePassed(limit_s=9), "clock", "trace"),
            )
        )
    )
    assert lines == [
        "sequenceDiagram",
        "    participant p0 as host",
        "    participant p1 as agent",
        "    participant p2 as llm",
        "    Note over p0,p2: Turn 1",
        "    p0->>p1: RunTurn: no tools#59; #34;north#59; #35;1#34;",
        "    participant p3 as cave",
        "    p1->>p3: OpenSession: cave, within 5 s",
        "    p3-->>p1: SessionOpened: cave, 0.0 ms: no tools",
        "    Note over p2: ! CompletionRetried: "
        "the model did not answer (unavailable 503: busy)#59; attempt …",
        "    p3--xp1: ✗ ToolTimedOut: c1: no answer within 3 s",
        "    p3-->>p1: ! ToolSkipped: c2: Skipped",
        "    Note over p1: ✗ DeadlinePassed: limit 9 s",
    ]


def test_a_turn_in_plain_text() -> None:
    lines = list(
        plain(
            tape(
                (RunTurn(turn=1, system="s", user="north"), "host", "agent"),
                (OpenSession(server="cave", turn=1, timeout_s=5), "agent", "cave"),
                (ToolTimedOut(batch=1, call_id="c1", timeout_s=3), "cave", "agent"),
                (RepairRequested(reason="no JSON"), "agent", "trace"),
            ),
            width=60,
        )
    )
    assert lines == [
        "── Turn 1 ──",
        "  host                    agent                   cave",
        '  │ RunTurn: no tools; "north"                    │',
        "  ├──────────────────────▶│                       │",
        "  │                       │ OpenSession: cave, within 5 s",
        "  │                       ├──────────────────────▶│",
        "  │                       │ ✗ ToolTimedOut: c1: no answer w…",
        "  │                       │✗╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌┤",
        "  │                       │ • ! RepairRequested: asked once…",
        "  │                       │                       │",
    ]


@pytest.mark.parametrize("name", SCENES)
@pytest.mark.parametrize("width", [40, 80, 120])
def test_every_scene_fits_its_width(name: str, width: int, tmp_path: Path) -> None:
    envelopes = scene(name, tmp_path)
    lines = list(plain(envelopes, width=width))
    assert max(map(cells, lines)) <= width
    assert all(line.isprintable() for line in lines)
    headings = [line for line in lines if line.startswith("── Turn")]
    assert len(headings) == len({envelope.turn for envelope in envelopes})
    assert sum("▶" in line or "◀" in line or "╌" in line for line in lines) == sum(
        envelope.receiver not in ("trace", envelope.sender) for envelope in envelopes
    )


@pytest.mark.parametrize("name", SCENES)
def test_every_scene_is_made_of_whole_statements(name: str, tmp_path: Path) -> None:
    envelopes = scene(name, tmp_path)
    lines = list(mermaid(envelopes))
    assert all(STATEMENT.fullmatch(line) for line in lines)
    assert lines.count("sequenceDiagram") == 1
    drawn = [line for line in lines[1:] if "participant" not in line and ": Turn " not in line]
    assert len(drawn) == len(envelopes)


EVIL = st.one_of(
    st.text(max_size=30),
    st.sampled_from(
        [
            "a; b",
            "#35;",
            "<script>alert(1)</script>",
            "%%{init: {}}%%",
            "end",
            "a\nNote over p0: injected",
            "style a:b#c;",
            "wrap: x",
            "ﬂ°°60¶ß",
            "p0->>p1: hi",
            '"`$[]{}&\\',
            "\x1b[2J\u202e",
        ]
    ),
)


@given(EVIL, EVIL)
def test_no_text_and_no_name_breaks_out_of_its_place(text: str, name: str) -> None:
    text, name = (part.encode(errors="replace").decode() for part in (text, name))
    failure = ServerFailure(server="a", phase="spawn", command="c", cause=text)
    envelopes = tape(
        (RunTurn(turn=1, system="s", user=text), "host", "agent"),
        (StartupFailed(server="a", failure=failure), name, "agent"),
        (RepairRequested(reason=text), "agent", "trace"),
    )
    lines = list(mermaid(envelopes))
    assert all(STATEMENT.fullmatch(line) for line in lines), lines
    arrows = [line for line in lines if re.match(r"    (p\d|Note)", line)]
    assert len(arrows) == 4
    assert not re.search(r"[<>\"`$%{}&\\]", "".join(re.sub(r"^    p\d+-.*?:", "", line) for line in lines))
    for line in plain(envelopes):
        assert line.isprintable()
        assert cells(line) <= 80


def test_what_is_harmless_stays_readable() -> None:
    assert escaped("Turn 3: look (north), 漢字 → 0.5 s!") == "Turn 3: look (north), 漢字 → 0.5 s!"
    assert escaped("a style: b") == "a style#58; b"
    assert escaped("ﬂ°60¶ß") == "#64258;#176;60#182;#223;", "what Mermaid itself makes of an entity"


def test_many_servers_share_the_last_line_of_life() -> None:
    said = [(OpenSession(server=f"s{n}", turn=1, timeout_s=5), "agent", f"s{n}") for n in range(30)]
    lines = list(plain(tape(*said)))
    assert max(map(cells, lines)) <= 80
    assert lines[1].endswith(" + 22")


def test_nothing_is_drawn_of_nothing() -> None:
    assert list(plain([])) == []
    assert list(mermaid([])) == []
