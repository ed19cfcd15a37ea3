"""No secret is shown in any of the forms that programs write it down in."""

import base64
import json
import random
import tracemalloc

import msgspec
import pytest
from case_tables import each_case
from hypothesis import given
from hypothesis import strategies as st
from plain_messages import Said
from written_secrets import FORMS, KEY, PASSWORD, SECRETS, tells

from grue import messages as m
from grue.runtime.secrets.redaction import Redaction


def redaction() -> Redaction:
    return Redaction(SECRETS)


def test_there_are_at_least_23_forms() -> None:
    assert len(FORMS) >= 23
    assert len({write(PASSWORD) for write in FORMS.values()}) >= 23


@each_case("form", FORMS)
@each_case("name", SECRETS)
def test_a_secret_is_replaced_in_every_form(form: str, name: str) -> None:
    written = FORMS[form](SECRETS[name])
    for text in (written, f"before {written} after", f'"{written}"', f"{written}{written}"):
        shown = redaction().redact_text(text)
        assert f"[redacted:{name}]" in shown
        assert not tells(shown)
        assert len(shown) < len(text) + 2 * len("[redacted:PASSWORD]")


@each_case("form", FORMS)
@each_case("name", SECRETS)
def test_a_message_is_still_json_when_it_was_taken_out(form: str, name: str) -> None:
    text = f'before "\\{FORMS[form](SECRETS[name])}\\" after \\'
    body = Said(text, {"nested": [text, text.encode().hex()]})
    redacted = redaction()
    shown, read = redacted.redact_message(
        json.dumps({"type": "Said", "text": text, "extra": body.extra}).encode(), body
    )
    assert not tells(shown.decode())
    assert not tells(read.text)
    assert read.text.startswith("before ")
    assert read.text.endswith(" after \\")


@given(st.text(max_size=9), st.sampled_from(sorted(FORMS)), st.text(max_size=9), st.booleans())
def test_no_form_is_shown_whatever_stands_around_it(before: str, form: str, after: str, twice: bool) -> None:
    text = f"{before}{FORMS[form](PASSWORD)}{after}" * (1 + twice)
    assert not tells(redaction().redact_text(text))


@each_case("line", [60, 64, 76])
@each_case("break_", ["\n", "\r\n", "\n    ", "\r"])
def test_an_encoded_secret_is_replaced_wherever_a_line_ends(line: int, break_: str) -> None:
    long = "sk-ant-api03-" + "".join(map(chr, random.Random(1).choices(range(48, 123), k=90)))
    for secret in (KEY, PASSWORD, long):
        redacted = Redaction({"KEY": secret})
        for before in range(0, line, 5):
            data = f"{'x' * before}{secret}, and more".encode()
            for encoded in (base64.b64encode(data).decode(), data.hex()):
                lines = break_.join(encoded[at : at + line] for at in range(0, len(encoded), line))
                unbroken = redacted.redact_text(encoded)
                assert "".join(redacted.redact_text(lines).split()) == unbroken != encoded
                in_prose = redacted.redact_text("Some words. \n" * 400 + lines)
                assert "".join(in_prose.split()).endswith(f"words.{unbroken}")
                in_json = redacted.redact_json(msgspec.json.encode({"file": lines}))
                assert "".join(msgspec.json.decode(in_json)["file"].split()) == unbroken


def test_what_holds_no_secret_stays_as_it_is() -> None:
    text = "c2stbGl2 736b2d6c p%22w p&quot;w sk-live- Authorization: none \udcff"
    assert redaction().redact_text(text) == text


def test_a_short_secret_is_not_taken_for_a_piece_of_base64() -> None:
    redaction = Redaction({"PIN": "abc123"})
    assert redaction.redact_text("YWJjMTIz 616263313233 abc123") == "YWJjMTIz 616263313233 [redacted:PIN]"


@each_case("kept", range(6, len(KEY)))
@each_case("mark", ["…", "… [cut: 9 of 20 characters]"])
@pytest.mark.slow
def test_the_beginning_of_a_secret_in_front_of_a_cut_goes_in_every_form(kept: int, mark: str) -> None:
    for form, write in FORMS.items():
        written = write(KEY).removeprefix("b'").strip("'")
        if form.startswith(("base64", "Basic")):
            continue  # its beginning belongs to what stands before it
        assert redaction().redact_text(f"x {written[:kept]}{mark}") == f"x [redacted]{mark}", form


def test_the_beginning_of_a_password_in_front_of_a_cut_goes_as_dotnet_writes_it() -> None:
    written = FORMS[".NET's JSON, all of it"](PASSWORD)
    assert written.startswith(r"p\u0022w\\d/\u002B \u003C\u0026\u0027\u003E=%\u00FC")
    for kept in range(14, len(written)):
        assert redaction().redact_text(f"x {written[:kept]}…") == "x [redacted]…"


@pytest.mark.slow
@pytest.mark.parametrize(
    "unit",
    [
        'authorization: required and "more"\n',
        pytest.param(f"Authorization: Bearer {KEY} x ", marks=pytest.mark.slow),
        pytest.param('\\"authorization\\":', marks=pytest.mark.slow),
        "bearer \\\\\\\\/",
        KEY,
        KEY[:-1],
        "&amp;amp;%252525",
    ],
)
def test_a_long_message_takes_memory_in_proportion_and_no_more(unit: str) -> None:
    text = f"Authorization: {unit * (1_000_000 // len(unit))}"
    body = Said(text)
    written = json.dumps({"type": "Said", "text": text, "extra": None}).encode()
    redacted = redaction()
    redacted.redact_text(KEY)  # compiles the patterns
    tracemalloc.start()
    try:
        redacted.redact_message(written, body)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= 4 * len(written) + 2_000_000  # what a piece takes


def test_the_ids_of_a_reply_with_a_secret_are_not_shown_either() -> None:
    redacted = Redaction({"KEY": "hunter2-hunter2"})
    tokens = m.ReplyTokens(ids=(1, 2), logprobs=(-1.0, -2.0))
    for content, kept in (("hunter2-hunter2", None), ("nothing", tokens)):
        body = m.CompletionReceived(request=1, content=content, tokens=tokens)
        shown, read = redacted.redact_message(msgspec.json.encode(body), body)
        assert read.tokens == kept
        assert msgspec.json.decode(shown, type=m.CompletionReceived) == read
