"""Pieces of a text that spell a secret together are not shown, wherever they are cut."""

import base64
import json

import pytest
from case_tables import each_case
from growth import assert_linear
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct
from plain_messages import Said, Seen
from rows import first_of
from written_secrets import FORMS, KEY, PASSWORD, SECRETS, tells

from grue.runtime.secrets.redaction import Redaction, TextPieces
from grue.runtime.trace.recorder import Recorder

HIDDEN = "[redacted:authorization]"


class Piece(Struct, frozen=True, tag=True):
    """A piece of a text, in the tests."""

    text: str
    part: str = "content"


def shown_in(pieces: list[str]) -> tuple[str, list[str]]:
    """What is shown of a text that comes in these pieces: as one text, and piece by piece."""
    redaction = Redaction(SECRETS)
    text = TextPieces(redaction)
    shown = [*(text.feed(piece) for piece in pieces), text.end()]
    parts = [redaction.redact_text(part) for part in shown if part]
    return "".join(parts), parts


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", first_of(SECRETS))
def test_a_secret_cut_at_every_position_is_replaced(form: str, name: str) -> None:
    text = f"The word is {FORMS[form](SECRETS[name])} and no other."
    for cut in range(1, len(text)):
        shown, _ = shown_in([text[:cut], text[cut:]])
        assert not tells(shown), cut
        assert shown.startswith("The word is ")
        assert shown.endswith(" and no other.")


@each_case("form", FORMS)
@each_case("size", [1, 2, 3, 7])
@pytest.mark.slow
def test_a_secret_in_many_pieces_is_replaced(form: str, size: int) -> None:
    text = f"<{FORMS[form](PASSWORD)}><{FORMS[form](KEY)}>"
    shown, _ = shown_in([text[start : start + size] for start in range(0, len(text), size)])
    assert not tells(shown)
    assert shown.count("[redacted:") == 2


@each_case("size", [1, 5, 30])
def test_an_encoded_secret_with_a_line_break_in_pieces_is_replaced(size: int) -> None:
    for before in range(0, 76, 5):
        lines = base64.encodebytes(f"{'x' * before}{KEY}, and more words".encode()).decode()
        shown, _ = shown_in([lines[start : start + size] for start in range(0, len(lines), size)])
        assert shown == Redaction(SECRETS).redact_text(lines) != lines


def test_empty_lines_do_not_count_for_the_length_of_a_beginning() -> None:
    assert shown_in([KEY[:5], "\n\n"])[0] == f"{KEY[:5]}\n\n"
    assert shown_in([KEY[:6], "\n\n"])[0] == "[redacted]"


@given(st.text('sk-live01 xaAuthorizn:Be\n\\"', max_size=60), st.data())
def test_nothing_is_lost_or_shown_twice(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)))))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    held = TextPieces(Redaction({"KEY": "sk-live-01"}))
    shown = "".join(held.feed(piece) for piece in pieces) + held.end()
    assert shown.replace("[redacted]", "") in text
    assert shown == text or "[redacted]" in shown


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer tok/EN+0123456789.abc== \nNext line",
        'curl -H "X-Api-Key: tok-0123456789abcdef"\nNext line',
        "it was bearer abcdefghijklmnop0123456789, so\nNext line",
        "{'authorization': 'Basic dXNlcjpwYXNzd29yZA=='}\nNext line",
    ],
)
def test_an_authorisation_cut_at_every_position_is_replaced(text: str) -> None:
    whole, _ = shown_in([text])
    assert HIDDEN in whole
    for cut in range(1, len(text)):
        assert shown_in([text[:cut], text[cut:]])[0] == whole
    assert shown_in(list(text))[0] == whole


def test_words_are_shown_as_they_come() -> None:
    _, parts = shown_in(["The bearer ", "of this ", "asks for no ", "authorization", " at all.", " Ask"])
    assert parts == ["The ", "bearer of this ", "asks for no ", "authorization at all.", " A", "sk"]


def test_a_secret_that_is_the_beginning_of_another_one_is_not_cut() -> None:
    redaction = Redaction({"SHORT": "abcabcab", "LONG": "abcabcabcabcxyz"})
    text = TextPieces(redaction)
    shown = [redaction.redact_text(part) for part in (text.feed("x abcabc"), text.feed("ab"), text.feed("?"))]
    assert "".join(shown) == "x [redacted:SHORT]?"


def test_the_beginning_of_a_secret_at_the_end_of_a_text_is_not_shown() -> None:
    assert shown_in(["It is ", KEY[:9]]) == ("It is [redacted]", ["It is ", "[redacted]"])
    assert shown_in(["It is ", KEY[:3]]) == (f"It is {KEY[:3]}", ["It is ", KEY[:3]])


def test_a_line_that_does_not_end_is_held_back_without_going_through_it_again() -> None:
    text = TextPieces(Redaction())
    assert text.feed("see: Authorization: Bearer ") == "see: "
    assert [text.feed("x" * 1000) for _ in range(50)] == [""] * 50
    shown = text.feed("\nthe next line") + text.end()
    assert shown == f"Authorization: Bearer {'x' * 50_000}\nthe next line"


@pytest.mark.parametrize("label", ["authorization:", "api-key=", '"authorization":"'])
@pytest.mark.parametrize("long_line", [False, True])
def test_a_text_full_of_labels_takes_linear_time(label: str, long_line: bool) -> None:
    def feed(text: str) -> None:
        pieces = TextPieces(Redaction())
        step = 64 if long_line else len(text)
        for start in range(0, len(text), step):
            pieces.feed(text[start : start + step])
        pieces.feed("\nx")

    end = "" if long_line else "\nx"
    assert_linear(feed, 60_000, lambda size: f"{label * (size // len(label))}{end}")


def test_only_the_end_of_a_long_piece_is_searched_for_a_place_to_cut() -> None:
    searched: list[int] = []

    class Watched(Redaction):
        def safe_cut(self, text: str, end: int) -> int:
            searched.append(len(text))
            return super().safe_cut(text, end)

    redaction = Watched({"SHORT": "abcabcab", "LONG": "abcabcabcabcxyz"})
    text = TextPieces(redaction)
    pieces = ("." * 2**20 + " abcabc", "ab", "?", "authorization: " + "." * 2**20)
    shown = "".join(redaction.redact_text(text.feed(piece)) for piece in pieces) + text.end()
    assert shown == f"{'.' * 2**20} [redacted:SHORT]?{pieces[-1]}"
    assert max(searched) < 2**18


def test_endless_empty_lines_after_the_beginning_of_a_secret_are_shown() -> None:
    text = TextPieces(Redaction({"KEY": KEY}))
    shown = "".join(text.feed(piece) for piece in [KEY[:4], *["\n" * 10] * 2000])
    assert len(shown) > 15_000
    assert shown + text.end() == KEY[:4] + "\n" * 20_000


def recorded(*bodies: object, sender: str = "llm") -> Seen:
    recorder = Recorder(secrets=SECRETS)
    recorder.hold_back(Piece)
    seen = Seen(recorder)
    for body in bodies:
        recorder.record(body, sender=sender, turn=1)
    return seen


def test_a_recorder_holds_pieces_back_until_the_next_message_of_the_sender() -> None:
    seen = recorded(Piece("It is sk-li"), Piece("ve-0123"), Piece("456789abcdef!"), Piece(" sk"), Said("end"))
    bodies = [envelope.body for envelope in seen.envelopes]
    assert bodies == [Piece("It is "), Piece("[redacted:KEY]!"), Piece(" "), Piece("sk"), Said("end")]
    assert [envelope.seq for envelope in seen.envelopes] == [1, 2, 3, 4, 5]
    assert [json.loads(line)["seq"] for line in seen.lines] == [1, 2, 3, 4, 5]


def test_parts_of_a_reply_and_a_reply_begun_anew_spell_no_secret() -> None:
    seen = recorded(
        Piece(KEY[:10]),
        Piece(KEY[10:15], "reasoning"),
        Piece(KEY[15:]),
        Said("again"),
        Piece(KEY[15:]),
        Said(""),
    )
    said = "".join(envelope.body.text for envelope in seen.envelopes)
    assert not tells(said)


def test_texts_of_other_turns_and_senders_are_apart() -> None:
    recorder = Recorder(secrets=SECRETS)
    recorder.hold_back(Piece)
    seen = Seen(recorder)
    for turn in (1, 2):
        recorder.record(Piece(KEY[:9]), sender="llm", turn=turn)
    recorder.record(Said("of another"), sender="agent", turn=1)
    recorder.record(Piece(KEY[9:]), sender="llm", turn=2)
    recorder.forget_texts([("llm", 1, None)])
    recorder.record(Said("end"), sender="llm", turn=1)
    assert [envelope.body.text for envelope in seen.envelopes] == ["of another", "[redacted:KEY]", "end"]


def test_texts_of_runners_that_share_a_recorder_are_apart() -> None:
    recorder = Recorder(secrets=SECRETS)
    recorder.hold_back(Piece)
    seen = Seen(recorder)
    for piece in (KEY[:5], KEY[5:9], KEY[9:]):
        for cause in (1, 2):  # two turns with the same number, each with a request of its own
            recorder.record(Piece(piece), sender="llm", turn=1, cause=cause)
    recorder.record(Piece(KEY[:9]), sender="llm", turn=1, cause=1)
    recorder.record(Said("end"), sender="llm", turn=1, cause=2)
    recorder.record(Piece(KEY[9:]), sender="llm", turn=1, cause=1)
    assert [envelope.body.text for envelope in seen.envelopes] == ["[redacted:KEY]"] * 2 + [
        "end",
        "[redacted:KEY]",
    ]


def test_a_piece_without_text_is_a_mark_and_recorded_as_one() -> None:
    seen = recorded(Piece(f"It is {KEY[:9]}"), Piece("", "restart"), Piece(KEY[9:]), Said("end"))
    assert [envelope.body.text for envelope in seen.envelopes] == ["It is ", "[redacted]", "", KEY[9:], "end"]
