"""`grue doctor` and the configured LLM endpoint, as a user runs it."""

from collections.abc import Callable
from pathlib import Path

import pytest
from commands import grue

from grue.cli.doctor import _programs, look_at_llm
from grue.config.settings import GameConfiguration, RetrySettings
from grue.protocol.chat_wire.formats import FORMATS
from grue.testing.llm_server import (
    LlmReply,
    LlmRequest,
    ScriptedLlmServer,
    completion,
    error_reply,
    text_reply,
    tool_calls_reply,
)

KEY = "sk-of-the-doctor-0123456789"


def able(request: LlmRequest) -> LlmReply:
    """An endpoint that can do everything."""
    if request.tool_names:
        return tool_calls_reply((request.tool_names[0], "{}"))
    return text_reply('{"swatch": "green"}')


def without_tools(request: LlmRequest) -> LlmReply:
    return (
        error_reply(404, "No endpoints found that support tool use.") if request.tool_names else able(request)
    )


def without_schemas(request: LlmRequest) -> LlmReply:
    if "response_format" in request.body:
        return error_reply(400, "This response_format type is unavailable now")
    return able(request)


def ignoring_schemas(request: LlmRequest) -> LlmReply:
    """An endpoint that accepts a schema and does not hold the model to it."""
    told = "JSON Schema" in str(request.messages)
    return able(request) if request.tool_names or told else text_reply("Green.")


def strict_about_keys(request: LlmRequest) -> LlmReply:
    return error_reply(401, f"Incorrect API key provided: {KEY}")


def endless_with_tools(request: LlmRequest) -> LlmReply:
    return LlmReply(then="hang") if request.tool_names else able(request)


def examine(folder: Path, url: str, *options: str, wire: str = "", tables: str = "") -> tuple[int, str]:
    llm = f"client_base_url = '{url}'\nagent_model = 'scripted'\n"
    llm += f"wire_format = '{wire}'\n" if wire else ""
    (folder / "pyproject.toml").write_text(f"[tool.zorkgpt.llm]\n{llm}{tables}")
    found = grue("doctor", *options, cwd=folder, GRUE_API_KEY=KEY)
    assert KEY not in found.stdout + found.stderr
    assert "Traceback" not in found.stderr
    return found.returncode, found.stdout


@pytest.mark.parametrize("nested", ["-" * 90_000 + "1", "(" * 900 + ")" * 900, "+a" * 90_000])
def test_a_program_that_is_nested_too_deeply_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nested: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text(f"LlmSettings({nested})\n")
    (tmp_path / "b.py").write_text("LlmSettings(base_url='http://127.0.0.1:9/v1', model='m')\n")
    assert [named.model for named in _programs()] == ["m"]


@pytest.mark.parametrize("wire", list(FORMATS))
@pytest.mark.slow
def test_doctor_says_what_an_endpoint_can_do(tmp_path: Path, wire: str) -> None:
    with ScriptedLlmServer(able) as llm:
        status, told = examine(tmp_path, llm.base_url, wire=wire)
        assert [request.refused for request in llm.requests if request.refused] == []
    assert status == 0, told
    for words in (
        f"ok     scripted at {llm.base_url} ({wire.replace('_', ' ')}); a short reply takes 0.",
        "ok     scripted is in its list of 1 model",
        "ok     Tools: it called one",
        "ok     Structured output: held to a JSON schema",
    ):
        assert words in told, told


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (without_tools, "note   Tools: refused."),
        (
            ignoring_schemas,
            "note   Structured output: the endpoint accepts a JSON schema and ignores it; told in the prompt,"
            " the model keeps to it.",
        ),
        (
            without_schemas,
            "note   Structured output: no shape at all; the schema is put into the prompt instead.",
        ),
    ],
)
@pytest.mark.slow
def test_doctor_says_what_an_endpoint_cannot_do(
    tmp_path: Path, script: Callable[[LlmRequest], LlmReply], words: str
) -> None:
    with ScriptedLlmServer(script) as llm:
        status, told = examine(tmp_path, llm.base_url)
    assert status == 0, told
    assert words in told


@pytest.mark.slow
def test_doctor_does_not_call_it_a_refusal_that_a_reply_takes_too_long(tmp_path: Path) -> None:
    with ScriptedLlmServer(endless_with_tools) as llm:
        _, told = examine(tmp_path, llm.base_url, tables="[tool.zorkgpt.retry]\ntimeout_seconds = 8\n")
    assert "open   Tools: unknown, since the reply took too long." in told
    assert "Not all is known" in told
    assert "Everything is in order" not in told
    assert "no complete reply within 8 s" in told
    assert "Structured output: held to a JSON schema" in told


@pytest.mark.parametrize(
    ("listed", "says"),
    [
        (["llama-4", "qwen-3"], "It has: llama-4, qwen-3"),
        ([f"model-{number:02}" for number in range(14)], "model-09 and 4 more"),
        (["scripted-2", "other"], "The nearest are: scripted-2"),
    ],
)
@pytest.mark.slow
def test_doctor_names_the_models_that_there_are_where_the_configured_one_is_not(
    tmp_path: Path, listed: list[str], says: str
) -> None:
    def knows(request: LlmRequest) -> LlmReply:
        return error_reply(404, "There is no model scripted.", code="model_not_found")

    with ScriptedLlmServer(knows, models=[{"id": each} for each in listed]) as llm:
        status, told = examine(tmp_path, llm.base_url)
    assert status == 1
    assert "does not answer" in told
    assert says in told
    assert told.splitlines()[-1].startswith("1 thing is wrong: see what to do above; ")


@pytest.mark.slow
def test_doctor_says_that_a_model_is_not_listed_and_names_the_nearest(tmp_path: Path) -> None:
    with ScriptedLlmServer(able, models=[{"id": "scripted-2"}, {"id": "else"}]) as llm:
        _, told = examine(tmp_path, llm.base_url)
    assert "note   scripted is not in its list of 2 models." in told
    assert "The nearest are: scripted-2" in told


@pytest.mark.slow
def test_doctor_says_that_the_key_is_refused_and_which_variable_to_set(tmp_path: Path) -> None:
    with ScriptedLlmServer(strict_about_keys) as llm:
        status, told = examine(tmp_path, llm.base_url)
    assert status == 1
    assert "does not answer" in told
    assert "Set GRUE_API_KEY to a key that this endpoint accepts" in told


@pytest.mark.slow
def test_doctor_says_that_nobody_is_there(tmp_path: Path) -> None:
    with ScriptedLlmServer(able) as llm:
        url = llm.base_url
    status, told = examine(tmp_path, url)
    assert status == 1
    assert f"WRONG  {url} cannot be reached" in told
    assert "grue doctor" not in told.partition("cannot be reached")[2].partition("--no-network")[0], (
        "it is what runs"
    )
    assert "Use --no-network to skip this check" in told


@pytest.mark.slow
def test_doctor_asks_each_model_of_a_chain_so_that_none_answers_for_another(tmp_path: Path) -> None:
    down = [error_reply(503, "overloaded")] * 9
    with ScriptedLlmServer(down) as first, ScriptedLlmServer(able) as second:
        tables = f"[[tool.zorkgpt.llm.then]]\nclient_base_url = '{second.base_url}'\nagent_model = 'spare'\n"
        status, told = examine(tmp_path, first.base_url, tables=tables)
    assert status == 1
    assert f"WRONG  scripted at {first.base_url} (chat completions) does not answer." in told
    assert f"ok     spare at {second.base_url} (chat completions); a short reply takes 0." in told


@pytest.mark.slow
def test_doctor_asks_nobody_where_it_is_told_not_to(tmp_path: Path) -> None:
    with ScriptedLlmServer(able) as llm:
        status, told = examine(tmp_path, llm.base_url, "--no-network")
        assert llm.requests == []
    assert status == 0
    assert "not contacted, because of --no-network" in told


def cut_with_a_schema(request: LlmRequest) -> LlmReply:
    return text_reply('{"swa', finish_reason="length") if "response_format" in request.body else able(request)


@pytest.mark.slow
def test_doctor_does_not_judge_a_schema_by_a_reply_that_was_cut(tmp_path: Path) -> None:
    with ScriptedLlmServer(cut_with_a_schema) as llm:
        status, told = examine(tmp_path, llm.base_url)
    assert status == 0, told
    assert "Structured output: unknown, since the reply was cut at its length limit" in told
    assert "ignores it" not in told


def counting(request: LlmRequest, *, tools: bool) -> LlmReply:
    """Reply in words, with a count of the prompt that has the tools or not."""
    tokens = sum(len(str(message["content"])) // 4 + 5 for message in request.messages)
    tokens += len(str(request.chat.get("tools", ""))) // 4 if tools else 0
    usage = {"prompt_tokens": tokens, "completion_tokens": 5, "total_tokens": tokens + 5}
    content = '{"swatch": "green"}' if "response_format" in request.body else "21 degrees."
    return completion({"role": "assistant", "content": content}, usage=usage)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (lambda request: counting(request, tools=False), "note   Tools: the chat template leaves them out."),
        (lambda request: counting(request, tools=True), "Tools: they were accepted, but it did not call one"),
        (lambda _: text_reply("ok"), "Tools: they were accepted, but it did not call one"),
    ],
    ids=["left out", "not called", "not counted"],
)
@pytest.mark.slow
def test_doctor_compares_a_prompt_with_a_tool_and_without(
    tmp_path: Path, script: Callable[[LlmRequest], LlmReply], words: str
) -> None:
    with ScriptedLlmServer(script) as llm:
        status, told = examine(tmp_path, llm.base_url)
    assert status == 0, told
    assert words in told
    assert ("--chat-template-file" in told) == ("leaves them out" in words)
    in_order = "Everything is in order, except for tools, which the model does not see: see above"
    assert (in_order in told) == ("leaves them out" in words)


@pytest.mark.parametrize(("written", "wrong"), [(None, True), (50, False)])
def test_a_limit_that_the_user_has_written_is_kept_by_doctor(
    monkeypatch: pytest.MonkeyPatch, written: float | None, wrong: bool
) -> None:
    monkeypatch.setattr("grue.cli.doctor._PATIENCE_S", 1e-6)
    with ScriptedLlmServer(lambda _request: text_reply("ok")) as llm:
        config = GameConfiguration(client_base_url=llm.base_url, agent_model="m")
        if written is not None:
            config.retry = RetrySettings(timeout_seconds=written)
        found = list(look_at_llm(config, network=True, named=True))
    assert any(each.verdict == "WRONG" for each in found) is wrong, found
