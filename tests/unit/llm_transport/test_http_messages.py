"""URLs, headers and bodies, as an exchange passes them to the HTTP library."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grue.llm_transport.http_messages import HttpRequest, HttpUrl, joined_headers, pieces, plain_url
from grue.llm_transport.through_httpx import UnusableUrlError, normalized_url

LABELS = st.text("abz019-._~%A@[]: /?#\u00fc\\", max_size=6)
URLS = st.builds(
    "{}://{}{}{}/{}/{}".format,
    st.sampled_from(["http", "https", "HTTP", "ftp"]),
    st.sampled_from(["h.example", "127.0.0.1", "localhost", "a", "h.1", "1.2.3.4.5"]),
    LABELS,
    st.sampled_from(["", ":80", ":443", ":8080", ":65535", ":65536", ":0", ":08"]),
    LABELS,
    LABELS,
)


@given(URLS)
def test_a_url_that_needs_no_encoding_is_read_as_httpx_reads_it(text: str) -> None:
    plain = plain_url(text)
    if plain is not None:
        assert normalized_url(text) == (plain, False, [])
        assert plain_url(str(plain)) == plain


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("https://openrouter.ai/api/v1", HttpUrl("https", "openrouter.ai", None, "/api/v1")),
        ("http://127.0.0.1:11434/v1/", HttpUrl("http", "127.0.0.1", 11434, "/v1/")),
        ("http://localhost", HttpUrl("http", "localhost", None, "/")),
        ("http://h:80/v1", HttpUrl("http", "h", None, "/v1")),
        *(
            (unusual, None)
            for unusual in ("http://H/v1", "http://[::1]/v1", "http://h/v1?a=b", "http://h/a/../b")
        ),
        *(
            (unusual, None)
            for unusual in ("http://u:p@h/v1", "http://10.0.0.1/v1", "http://h:65536/", "h/v1")
        ),
    ],
)
def test_which_urls_are_plain(text: str, url: HttpUrl | None) -> None:
    assert plain_url(text) == url


def test_a_text_that_is_no_url_says_so_without_quoting_it() -> None:
    with pytest.raises(UnusableUrlError) as raised:
        normalized_url("http://user:pass word@h:port/")
    assert str(raised.value) == ""


def test_headers_are_found_by_their_name_in_lower_case() -> None:
    raw = [(b"Content-Type", b"text/plain"), (b"X-A", b"1"), (b"x-a", b"\xe9")]
    assert joined_headers(raw) == {"content-type": "text/plain", "x-a": "1, \u00e9"}


@pytest.mark.anyio
@pytest.mark.parametrize(("size", "lengths"), [(0, []), (5, [5]), (600_000, [262_144, 262_144, 75_712])])
async def test_a_body_is_reported_as_sent_after_its_last_piece(size: int, lengths: list[int]) -> None:
    seen: list[str] = []
    left = [*lengths]
    url = HttpUrl("http", "h", None, "/")
    request = HttpRequest("POST", url, [], b"x" * size, {}, on_sent=lambda: seen.append("sent"))
    async for piece in pieces(request):
        assert seen == []
        assert len(piece) == left.pop(0)
    assert (left, seen) == ([], ["sent"])
