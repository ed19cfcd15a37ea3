"""What never gets past the recorder: named secrets however escaped, and what authorises a request."""

import gc
import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import promises
import pytest
from case_tables import each_case
from growth import assert_linear
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct
from plain_messages import Counted, Said, Seen, shown

from grue.runtime.secrets import redaction as secret_redaction
from grue.runtime.secrets.redaction import Redaction
from grue.runtime.secrets.secret_forms import SecretForms
from grue.runtime.trace.recorder import Recorder

SECRET = "sk-live-0123456789"


@pytest.mark.parametrize(
    "body",
    [
        Said(SECRET),
        Said(f"Authorization: Bearer {SECRET}\n"),
        Said("", {"headers": [{"x": SECRET}]}),
        Said("", {SECRET: 1}),
        Said(json.dumps({"key": SECRET})),
        Said(json.dumps({"outer": json.dumps({"key": SECRET})})),
    ],
    ids=["raw", "within", "nested", "key", "JSON in text", "JSON in JSON in text"],
)
def test_a_secret_is_replaced_by_its_placeholder_and_the_envelope_marked(body: Said) -> None:
    envelope, line = shown(body, API_KEY=SECRET)
    assert envelope.redacted
    assert SECRET.encode() not in line
    assert b"[redacted:API_KEY]" in line
    assert json.loads(line)["redacted"] is True
    assert SECRET not in repr(envelope.body)
    assert isinstance(envelope.body, Said)


NASTY = [
    'pass"word\\with\nall',
    "schlüssel-für-漢字",
    "emoji-😀-secret",
    "a/b/c+d==/slashes",
    "tab\tand\x01control",
    "'single'",
]


@each_case("secret", NASTY)
@each_case("ensure_ascii", [True, False])
def test_a_secret_is_found_however_json_escapes_it(secret: str, ensure_ascii: bool) -> None:
    once = json.dumps({"key": secret}, ensure_ascii=ensure_ascii)
    twice = json.dumps(once, ensure_ascii=ensure_ascii)
    for text in (secret, once, twice):
        envelope, line = shown(Said(text, [text]), KEY=secret)
        assert envelope.body.text == text.replace(text_form(text, secret), "[redacted:KEY]")
        assert line.count(b"[redacted:KEY]") == 2


def text_form(text: str, secret: str) -> str:
    """How the secret stands in `text`."""
    forms = {secret}
    for _ in range(2):
        forms |= {
            json.dumps(form, ensure_ascii=ascii_only)[1:-1] for form in forms for ascii_only in (True, False)
        }
    return max((form for form in forms if form in text), key=len)


ODD_SECRET = '/a/b+c"d\\e\\\\"f<ü😀\n漢\x7f'


@each_case("depth", range(6))
@each_case("ensure_ascii", [True, False])
@each_case("upper", [True, False])
@each_case("slash", ["/", "\\/", "\\u002F"])
def test_a_secret_is_found_at_any_depth_of_json(
    depth: int, ensure_ascii: bool, upper: bool, slash: str
) -> None:
    text = ODD_SECRET
    for _ in range(depth):
        text = json.dumps(text, ensure_ascii=ensure_ascii).replace("/", slash)
        text = re.sub(
            r"u[0-9a-f]{4}", lambda number: "u" + number[0][1:].upper() if upper else number[0], text
        )
    envelope, _ = shown(Said(f"<{text}>"), KEY=ODD_SECRET)
    assert envelope.body.text.strip('<>\\"') == "[redacted:KEY]"


def test_an_escaped_slash_hides_nothing() -> None:
    _, line = shown(Said(r'{"url": "a\/secret\/path"}'), KEY="a/secret/path")
    assert b"secret" not in line


def test_of_overlapping_secrets_the_longest_goes_first() -> None:
    envelope, _ = shown(Said("0123456789abcdef 0123456789"), SHORT="0123456789", LONG="0123456789abcdef")
    assert envelope.body.text == "[redacted:LONG] [redacted:SHORT]"


def test_a_secret_of_digits_is_replaced_in_numbers_too() -> None:
    envelope, line = shown(Said("123456789012", {"id": 123456789012, "n": 5}), PIN="123456789012")
    assert envelope.body == Said("[redacted:PIN]", {"id": "[redacted:PIN]", "n": 5})
    assert b"123456789012" not in line


def test_a_number_that_a_message_needs_stays_a_number() -> None:
    envelope, _ = shown(Counted(123456789012), PIN="123456789012")
    assert envelope.body == Counted(123456789012)


class Kinded(Struct, frozen=True, tag=True):
    """A message with a field that allows one word only."""

    kind: Literal["correcthorse"]
    text: str


def test_a_word_that_a_message_needs_stays_and_is_replaced_after_an_escaped_quote() -> None:
    body = Kinded("correcthorse", 'the password: "correcthorse')
    envelope, _ = shown(body, PASSWORD="correcthorse")
    assert envelope.body == Kinded("correcthorse", 'the password: "[redacted:PASSWORD]')


def test_many_escaped_quotes_and_secrets_take_linear_time() -> None:
    assert_linear(
        lambda body: shown(body, PASSWORD="correcthorse"),
        2000,
        lambda size: Kinded("correcthorse", 'correcthorse" ' * size),
    )


@pytest.mark.parametrize(
    ("secret", "written", "replaced"),
    [
        ("1" * 450, f'{{"a":{"1" * 460}}}', '{"a":"[redacted:A]"}'),
        ("11111111,22222222", "[11111111,22222222]", '["[redacted:A]","[redacted:A]"]'),
        ("11111111]", "[11111111]", '["[redacted:A]"]'),
        (" 11111111 ", "[ 11111111 ]", '[ "[redacted:A]" ]'),
        ("true,false", "[true,false]", "[true,false]"),
        (": null", '{"a": null}', '{"a": null}'),
        ("1,2,3", '["1,2,3",1,2,3,4]', '["[redacted:A]","[redacted:A]","[redacted:A]","[redacted:A]",4]'),
        ("1" * 450, f'["{"1" * 460}"]', f'["[redacted:A]{"1" * 10}"]'),
    ],
)
def test_json_stays_json_if_a_secret_is_not_in_a_string(secret: str, written: str, replaced: str) -> None:
    redaction = Redaction({"A": secret})
    assert redaction.redact_json(written.encode(), numbers=True).decode() == replaced
    json.loads(redaction.redact_json(written.encode()))


@given(st.text(min_size=4, max_size=20), st.text(max_size=20), st.text(max_size=20))
@pytest.mark.slow
def test_no_secret_is_shown_whatever_it_is_made_of(secret: str, before: str, after: str) -> None:
    envelope, line = shown(Said(before + secret + after, {secret: [before]}), K=secret)
    assert envelope.redacted
    assert all(secret not in part for part in envelope.body.text.split("[redacted:K]"))
    assert json.loads(line)["body"]["type"] == "Said"


def test_what_holds_no_secret_is_shown_as_it_is() -> None:
    body = Said("plain")
    envelope, line = shown(body, KEY=SECRET, EMPTY="")
    assert envelope.body is body
    assert b"redacted" not in line


def test_an_escape_that_looks_like_a_secret_stays_whole() -> None:
    envelope, line = shown(Said("\x01\x00"), ZEROS="0000", REST="00\x001x")
    assert envelope.body == Said("\x01\x00")
    assert not envelope.redacted
    assert json.loads(line)["body"]["text"] == "\x01\x00"


def test_a_value_that_is_not_unicode_harms_nothing() -> None:
    assert shown(Said("plain"), ODD="\udcff-not-unicode")[0].body == Said("plain")


def test_a_secret_may_become_known_later() -> None:
    recorder = Recorder()
    seen = Seen(recorder)
    recorder.hide("LATE", SECRET)
    recorder.record(Said(SECRET), sender="x")
    assert seen.envelopes[0].body == Said("[redacted:LATE]")


def test_the_name_of_a_secret_is_shown_as_it_is() -> None:
    recorder = Recorder()
    seen = Seen(recorder)
    recorder.hide(r"odd\1\g<0>", SECRET)
    recorder.record(Said(SECRET), sender="x")
    assert seen.envelopes[0].body == Said(r"[redacted:odd\1\g<0>]")


# --- Authorisation headers and bearer tokens, which nobody named ---

TOKEN = "tok/EN+0123456789.abc=="
HIDDEN = "[redacted:authorization]"

HEADERS = [
    f"Authorization: Bearer {TOKEN}",
    f"authorization:Bearer {TOKEN}",
    f"AUTHORIZATION: BEARER {TOKEN}",
    f"Proxy-Authorization: Basic {TOKEN}",
    f"Authorization: {TOKEN}",
    f"Authorization: AWS4-HMAC-SHA256 Credential=AKIA/{TOKEN}, SignedHeaders=host;range, Signature={TOKEN}",
    f"x-api-key: {TOKEN}",
    f"X-Api-Key={TOKEN}",
    f"curl -H 'Authorization: Bearer {TOKEN}' https://example.invalid",
    f'curl -H "X-API-KEY: {TOKEN}"',
    f"{{'Authorization': 'Bearer {TOKEN}'}}",
    f"refused: Bearer {TOKEN} is not known",
    "the header was Bearer sk-abcdefghijkl",
    f"GET / HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {TOKEN}\r\nAccept: */*\r\n",
]


@each_case("text", HEADERS)
def test_an_authorisation_is_replaced_wherever_it_stands(text: str) -> None:
    in_json = json.dumps({"log": text})
    in_php = in_json.replace("/", "\\/")
    in_dotnet = in_json.replace("+", "\\u002B")
    for written in (text, in_json, in_php, in_dotnet, json.dumps(in_json), json.dumps([in_php])):
        envelope, line = shown(Said(written, {"nested": [written]}))
        assert envelope.redacted
        assert envelope.body.text.count(HIDDEN) == 1
        assert all(part not in line for part in (b"0123456789", b"abcdefghijkl"))
        assert line.count(HIDDEN.encode()) == 2


def test_what_stands_around_an_authorisation_stays() -> None:
    envelope, _ = shown(Said(f"a\nAuthorization: Bearer {TOKEN}\nHost: example.invalid\n"))
    assert envelope.body.text == f"a\nAuthorization: Bearer {HIDDEN}\nHost: example.invalid\n"


@each_case("name", ["Authorization", "x-api-key", "X-Goog-Api-Key", "proxy-authorization"])
@each_case("value", [f"Bearer {TOKEN}", TOKEN, 'odd "value" with\\all [1]'])
def test_a_header_in_an_object_is_replaced_whole(name: str, value: str) -> None:
    envelope, line = shown(Said("x", {"headers": {name: value, "accept": "text/plain"}}))
    headers = envelope.body.extra["headers"]
    assert headers["accept"] == "text/plain"
    assert headers[name].removeprefix("Bearer ") == HIDDEN
    assert json.dumps(value)[1:-1].encode() not in line


@pytest.mark.parametrize(
    "body",
    [
        Said("The bearer of this ring asks for authorization: none"),
        Said("Bearer authentication is required"),
        Said("x", {"authorization": None, "api-key": 1234567890, "bearer ": True}),
        Said("x", {"properties": {"authorization": {"type": "string"}}, "required": ["x-api-key", "url"]}),
    ],
)
def test_what_only_speaks_of_authorisation_stays_as_it_is(body: Said) -> None:
    envelope, line = shown(body)
    assert envelope.body is body
    assert b"redacted" not in line


@pytest.mark.parametrize("text", [f"Authorization: Bearer {SECRET}", f'{{"x-api-key": "{SECRET}"}}'])
def test_a_named_secret_keeps_its_name_in_a_header(text: str) -> None:
    envelope, _ = shown(Said(text, {"authorization": f"Bearer {SECRET}"}), API_KEY=SECRET)
    assert envelope.body.text == text.replace(SECRET, "[redacted:API_KEY]")
    assert envelope.body.extra == {"authorization": "Bearer [redacted:API_KEY]"}


JSON_VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from(HEADERS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.just("x-api-key"), inner),
    max_leaves=6,
)


@given(JSON_VALUES, st.sampled_from(HEADERS), st.text())
@pytest.mark.slow
def test_no_authorisation_is_shown_and_json_stays_json(extra: object, header: str, after: str) -> None:
    envelope, line = shown(Said(f"{header} {after}", extra))
    assert b"EN+0123456789" not in line
    assert b"sk-abcdefghijkl" not in line
    assert json.loads(line)["body"]["type"] == "Said"
    assert isinstance(envelope.body, Said)


CUT = "\N{HORIZONTAL ELLIPSIS} [cut: 99 of 120 characters]"


def written(text: str) -> bytes:
    return json.dumps(
        {"text": json.dumps({"content": text}, ensure_ascii=False)}, ensure_ascii=False
    ).encode()


@pytest.mark.parametrize("kept", [6, 10, len("open-sesame/4711") - 1])
def test_what_is_left_of_a_secret_where_a_text_was_cut_goes_too(kept: int) -> None:
    secret = "open-sesame/4711"
    redaction = Redaction()
    redaction.hide("door", secret)
    body = written(f"the word is {secret[:kept]}{CUT}")
    assert redaction.may_contain_secrets(body)
    assert redaction.redact_json(body) == written(f"the word is [redacted]{CUT}")


def test_a_text_that_was_cut_elsewhere_stays_as_it_is() -> None:
    redaction = Redaction()
    redaction.hide("door", "open-sesame/4711")
    assert redaction.redact_json(written(f"the door is open{CUT}")) == written(f"the door is open{CUT}")


def test_many_cuts_take_no_longer_if_a_secret_has_many_forms() -> None:
    def took_s(secret: str) -> float:
        redaction, text = Redaction({"KEY": secret}), f"{secret[:6]}{CUT}" * 3000
        begun = time.thread_time()
        assert redaction.redact_text(text) == f"[redacted]{CUT}" * 3000
        return time.thread_time() - begun

    plain = min(took_s("sk-live-0123456789") for _ in range(5))
    assert min(took_s("sk-live-\"0'1<2>/3é 4") for _ in range(5)) < 3 * plain


def test_a_credential_of_many_labels_takes_linear_time() -> None:
    assert_linear(Redaction().redact_text, 2**21, lambda size: "Authorization: " * (size // 15))


@pytest.mark.slow
def test_thousands_of_secrets_make_the_interpreter_collect_no_garbage() -> None:
    """A collection looks at all that the process has imported, and holds every thread meanwhile."""
    secret = "bench-0123456789-secret"
    redaction = Redaction({"bench": secret})
    told = f"the key is {secret}, Authorization: Basic dXNlcjpwYXNzd29yZDEy, "
    written = json.dumps([told] * 5000).encode()
    collections: list[str] = []

    def collected(phase: str, _: object) -> None:
        collections.append(phase)

    gc.collect()
    gc.callbacks.append(collected)
    try:
        shown = redaction.redact_json(written)
    finally:
        gc.callbacks.remove(collected)
    assert shown.count(b"[redacted:") == 10_000
    # A few come from what else runs in this process; a list of spans makes more than twenty.
    assert len(collections) <= 6


PIECE = 2**16


@pytest.mark.parametrize("before", [0, 1, 8, len(SECRET) - 1, len(SECRET), len(SECRET) + 1])
@pytest.mark.parametrize("written", [SECRET, json.dumps(SECRET), SECRET.encode().hex()])
def test_a_secret_across_the_border_of_two_pieces_is_replaced(before: int, written: str) -> None:
    redaction = Redaction({"KEY": SECRET})
    text = "." * (PIECE - before) + written + "." * PIECE
    assert written not in redaction.redact_text(text)
    assert "[redacted:KEY]" in redaction.redact_text(text)
    in_json = json.dumps(text).encode()
    assert json.dumps(written)[1:-1].encode() not in redaction.redact_json(in_json)


@pytest.mark.parametrize("before", [0, 1, 5, 6, 7, 100])
@pytest.mark.parametrize("kept", [6, 7])
def test_the_beginning_of_a_short_secret_before_the_mark_of_a_cut_is_replaced(before: int, kept: int) -> None:
    secret = "hunter2x"
    redaction = Redaction({"PASSWORD": secret})
    for text in (f"{secret[:kept]}…", "." * (PIECE - before) + f"{secret[:kept]}…" + "." * PIECE):
        assert secret[:6] not in redaction.redact_text(text)
        assert "[redacted]…" in redaction.redact_text(text)


def test_fewer_characters_than_that_are_left_alone() -> None:
    assert Redaction({"PASSWORD": "hunter2x"}).redact_text("hunte…") == "hunte…"


def test_a_secret_is_not_lost_if_two_threads_register_one_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    redaction = Redaction()
    forms_of = secret_redaction.secret_forms.forms_of
    threads = ThreadPoolExecutor(1)

    def slow(value: str) -> SecretForms:
        if value == SECRET:
            threads.submit(redaction.hide, "OTHER", "pk-test-9876543210").result(promises.GUARD_S)
        return forms_of(value)

    monkeypatch.setattr(secret_redaction.secret_forms, "forms_of", slow)
    redaction.hide("KEY", SECRET)
    threads.shutdown()
    shown = redaction.redact_text(f"{SECRET} pk-test-9876543210")
    assert shown == "[redacted:KEY] [redacted:OTHER]"
