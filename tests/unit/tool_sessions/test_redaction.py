from hypothesis import given
from hypothesis import strategies as st

from grue.tool_sessions.redaction import Redactor

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
    assert redactor.command_line("npx", args) == (
        "npx -y server '--header=[redacted:GITHUB_TOKEN]' --api-key '[redacted:api-key]'"
        " '--password=[redacted:password]' 'two words'"
    )


@given(st.lists(st.text("abc", min_size=12, max_size=20), min_size=1, unique=True), st.data())
def test_no_secret_survives_even_where_one_contains_another(secrets: list[str], data: st.DataObject) -> None:
    environment = {f"TOKEN_{number}": secret for number, secret in enumerate(secrets)}
    text = data.draw(st.lists(st.sampled_from(secrets)).map(" ".join))
    shown = Redactor(environment).text(text)
    assert not any(secret in shown for secret in secrets)
