import shlex
import time

import pytest
from growth import assert_linear
from hypothesis import given
from hypothesis import strategies as st

from grue.tool_sessions.redaction import Redactor, secrets_of_arguments
from grue.tool_sessions.server_specs import HttpServer, StdioServer

SECRET = "s3cr3t-value-of-length"


def test_values_of_secret_like_variables_are_replaced() -> None:
    redactor = Redactor({"OPENAI_API_KEY": SECRET, "HOME": "/a/long/home/path"})
    assert redactor.text(f"401 for {SECRET} in /a/long/home/path") == (
        "401 for [redacted:OPENAI_API_KEY] in /a/long/home/path"
    )


def test_short_values_are_left_alone() -> None:
    assert Redactor({"KEYBOARD": "us"}).text("us and the bus") == "us and the bus"


def test_command_line_hides_environment_values_and_secret_arguments() -> None:
    redactor = Redactor({"GITHUB_TOKEN": SECRET})
    args = ("-y", "server", f"--header={SECRET}", "--api-key", "short", "--password=hunter2", "two words")
    assert shlex.join(redactor.words("npx", args)) == (
        "npx -y server '--header=[redacted:GITHUB_TOKEN]' --api-key '[redacted:api-key]'"
        " '--password=[redacted:password]' 'two words'"
    )


@given(st.lists(st.text("abc", min_size=12, max_size=20), min_size=1, unique=True), st.data())
@pytest.mark.slow
def test_no_secret_survives_even_where_one_contains_another(secrets: list[str], data: st.DataObject) -> None:
    environment = {f"TOKEN_{number}": secret for number, secret in enumerate(secrets)}
    text = data.draw(st.lists(st.sampled_from(secrets)).map(" ".join))
    shown = Redactor(environment).text(text)
    assert not any(secret in shown for secret in secrets)


@pytest.mark.parametrize(
    ("args", "shown"),
    [
        (("postgres://user:pw@host/db",), ["postgres://user:[redacted:password]@host/db"]),
        (("postgres://u:p@ss@host/db",), ["postgres://u:[redacted:password]@host/db"]),
        (
            ("--url", "https://h/sse?api_key=abc&x=1"),
            ["--url", "https://h/sse?api_key=[redacted:api_key]&x=1"],
        ),
        (("host=db password=pw user=u",), ["host=db password=[redacted:password] user=u"]),
        (("-e", "GITHUB_TOKEN=abc"), ["-e", "GITHUB_TOKEN=[redacted:GITHUB_TOKEN]"]),
        (("--env=GITHUB_TOKEN=abc",), ["--env=GITHUB_TOKEN=[redacted:GITHUB_TOKEN]"]),
        (("--header", "Authorization: Bearer abc"), ["--header", "Authorization: [redacted:Authorization]"]),
        (("--header=X-API-Key:abc",), ["--header=X-API-Key:[redacted:X-API-Key]"]),
        (('{"apiKey": "abc", "n": 1}',), ['{"apiKey": "[redacted:apiKey]", "n": 1}']),
        (("ghp_0123456789abcdefghij",), ["[redacted:token]"]),
        (("0123456789abcdef0123456789abcdef",), ["[redacted:token]"]),
        (("-y", "@scope/server-of-many-words@2025.11.25"), ["-y", "@scope/server-of-many-words@2025.11.25"]),
        (("git+https://h/r@0123456789abcdef0123456789abcdef01234567",),) * 2,
        (("/home/u/0123456789abcdef0123456789abcdef/x",),) * 2,
        (("http://localhost:8080/mcp", "C:\\x", "--port=80"),) * 2,
    ],
)
def test_what_an_argument_holds_of_secrets_is_replaced_and_nothing_else(
    args: tuple[str, ...], shown: list[str] | tuple[str, ...]
) -> None:
    assert Redactor({}).words("run", args) == ["run", *shown]


@pytest.mark.parametrize(("begin", "piece", "end"), [("", "://", ""), ("", "aaa", "://x"), ("://", "a:", "")])
@pytest.mark.slow
def test_a_hostile_text_takes_linear_time(begin: str, piece: str, end: str) -> None:
    assert_linear(lambda times: Redactor({}).text(begin + piece * times + end), 50_000)


def test_a_servers_own_words_do_not_repeat_the_password_of_its_url() -> None:
    server = StdioServer(name="s", command="run", args=("postgres://user:p4ssw0rd%21@host/db",))
    redactor = Redactor(server.named_values())
    assert "p4ssw0rd" not in redactor.text("no connection with p4ssw0rd! to postgres://user:p4ssw0rd%21@host")
    assert "pw" not in redactor.text("cannot open postgres://user:pw@host/db")


def test_two_values_of_one_name_are_both_replaced() -> None:
    first, second, third, fourth = (f"{number}-token-{number}" for number in range(1001, 1005))
    server = StdioServer(command="x", args=("--token", first, "--token", second), env={"token": third})
    shown = Redactor({"token": fourth}, server.named_values()).text(f"{first} {second} {third} {fourth}")
    assert "-token-" not in shown
    query = HttpServer(url=f"https://h/?api_key={first}&api_key={second}").named_values()
    assert {first, second} <= set(query.values())


@pytest.mark.slow
def test_a_long_argument_is_searched_in_one_pass() -> None:
    """Each letter of a long word was tried as the beginning of a name, up to the word's end."""
    script = f"{'A' * 100_000} API_KEY=geheim-wort"
    assert secrets_of_arguments(("-c", script)) == {"API_KEY": "geheim-wort"}


def test_one_long_word_takes_no_longer_than_as_many_short_ones() -> None:
    def shortest_s(argument: str) -> float:
        taken = []
        for _ in range(3):
            begun = time.thread_time()
            secrets_of_arguments((argument,))
            taken.append(time.thread_time() - begun)
        return min(taken)

    assert shortest_s("A" * 20_000) < 4 * shortest_s("A " * 10_000)
