"""`grue tools`, `grue call` and `grue doctor`, as a user runs them."""

import json
import os
import re
from pathlib import Path

import pytest
from commands import faulty, grue, write_servers

from grue.testing.leftovers import assert_nothing_left


def printable(text: str) -> bool:
    return all(line.isprintable() for line in text.splitlines())


def table(tmp_path: Path, text: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text)


@pytest.mark.slow
def test_tools_lists_the_bundled_server_where_none_is_configured(tmp_path: Path) -> None:
    listed = grue("tools", cwd=tmp_path)
    assert listed.returncode == 0, listed.stderr
    assert listed.stdout.startswith("mind · 1 tool · MCP 2025-11-25 · bundled with grue\n")
    assert "    thoughtNumber: integer, required\n        The number of this step, from 1\n" in listed.stdout
    assert max(map(len, listed.stdout.splitlines())) <= 80
    assert printable(listed.stdout)


@pytest.mark.slow
def test_tools_lists_every_configured_server_though_one_fails(tmp_path: Path) -> None:
    write_servers(
        tmp_path / "mcp.json",
        good=faulty("--malformed-tool"),
        bad=faulty("--exit-at", "start", "--stderr", "no disk \x1b[31mred"),
        off={**faulty(), "disabled": True},
        unset={"command": "x", "args": ["${GRUE_NOT_SET}"]},
    )
    with assert_nothing_left():
        listed = grue("tools", "--mcp-config", "mcp.json", cwd=tmp_path)
    assert listed.returncode == 1
    assert re.findall(r"^  (\S+)$", listed.stdout, re.MULTILINE) == ["good.echo", "good.fail", "good.environ"]
    assert "no disk red" in listed.stderr
    assert "GRUE_NOT_SET" in listed.stderr
    assert "off" not in listed.stdout
    assert printable(listed.stdout + listed.stderr)


@pytest.mark.slow
def test_a_configured_file_is_used_though_no_settings_turn_mcp_on(tmp_path: Path) -> None:
    write_servers(tmp_path / "mcp_config.json", good=faulty())
    assert grue("tools", cwd=tmp_path).stdout.startswith("good · ")
    called = grue("call", "good.echo", '{"text": "hello"}', cwd=tmp_path)
    assert called.returncode == 0, called.stderr
    table(tmp_path, "[tool.grue.mcp]\nenabled = false\n")
    refused = grue("call", "good.echo", '{"text": "hello"}', cwd=tmp_path)
    assert refused.returncode == 2
    assert "mcp_config.json is not used, because pyproject.toml has enabled = false" in refused.stderr
    assert "--mcp-config mcp_config.json" in refused.stderr


@pytest.mark.slow
def test_a_file_without_servers_is_named(tmp_path: Path) -> None:
    write_servers(tmp_path / "mcp_config.json", good=faulty())
    write_servers(tmp_path / "none.json")
    refused = grue("tools", "--mcp-config", "none.json", cwd=tmp_path)
    assert refused.returncode == 2
    assert "No MCP servers configured in none.json." in refused.stderr


@pytest.mark.slow
def test_tools_of_one_server_starts_no_other(tmp_path: Path) -> None:
    record = tmp_path / "record"
    write_servers(tmp_path / "mcp.json", one=faulty(), two=faulty("--record", str(record)))
    listed = grue("tools", "one", "--mcp-config", "mcp.json", "--json", cwd=tmp_path)
    (server,) = json.loads(listed.stdout)["servers"]
    assert server["server"] == "one"
    assert server["protocol_version"] == "2025-11-25"
    assert server["tools"][0]["input_schema"]["required"] == ["text"]
    assert not record.exists()


@pytest.mark.slow
def test_tools_as_json_has_the_failures_too(tmp_path: Path) -> None:
    write_servers(tmp_path / "mcp.json", bad=faulty("--exit-at", "list"))
    listed = grue("tools", "--mcp-config", "mcp.json", "--json", cwd=tmp_path)
    assert listed.returncode == 1
    (server,) = json.loads(listed.stdout)["servers"]
    assert (server["server"], server["phase"]) == ("bad", "list")


@pytest.mark.slow
def test_r2_4_the_project_s_file_is_used(tmp_path: Path) -> None:
    table(tmp_path, "[tool.zorkgpt.mcp]\nenabled = true\nconfig_file = 'mine.json'\n")
    write_servers(tmp_path / "mine.json", box=faulty())
    called = grue("call", "box.echo", '{"text": "hi"}', cwd=tmp_path)
    assert (called.returncode, called.stdout) == (0, "hi\n"), called.stderr


@pytest.mark.slow
def test_call_prints_the_last_words_of_a_server_that_died(tmp_path: Path) -> None:
    write_servers(tmp_path / "mcp.json", box=faulty("--exit-at", "call", "--stderr", "it is locked"))
    called = grue("call", "box.echo", "--arg", "text=hi", "--mcp-config", "mcp.json", cwd=tmp_path)
    assert called.returncode == 1
    assert "Its last line on stderr: it is locked\n" in called.stderr


@pytest.mark.parametrize(
    ("args", "stdout"),
    [
        (["box.echo", '{"text": "hi"}'], "hi\n"),
        (["box.echo", "--arg", "text=7"], "7\n"),
        (["box.echo", '{"text": "no"}', "--arg", "text=a=b"], "a=b\n"),
        (["box.echo", "--arg", "text=\x1b[31mred\x07"], "red\\u0007\n"),
        (["box.echo", "--arg", 'text={"a": [1]}'], '{\n  "a": [\n    1\n  ]\n}\n'),
        (["box.echo", "--arg", "text=hi", "--json"], '{"content": "hi"}\n'),
    ],
)
@pytest.mark.slow
def test_call_prints_the_result(tmp_path: Path, args: list[str], stdout: str) -> None:
    write_servers(tmp_path / "mcp.json", box=faulty())
    called = grue("call", *args, "--mcp-config", "mcp.json", cwd=tmp_path)
    assert (called.returncode, called.stdout, called.stderr) == (0, stdout, "")


@pytest.mark.parametrize(
    ("args", "status", "words"),
    [
        (["box.fail"], 1, "told to fail"),
        (["box.echo", "--arg", "text=hi", "--timeout", "0.2"], 1, "timed out after 0.2s"),
        (["box.eco"], 2, "There is no tool 'box.eco'. Did you mean 'box.echo'? Listed: box.echo, "),
        (["box.nope"], 2, "There is no tool 'box.nope'. Listed: box.echo, box.fail, box.environ"),
        (["other.x"], 2, "There is no MCP server 'other'. Known (mcp.json): box, bad."),
        (["echo"], 2, "SERVER.TOOL"),
        (["box.echo", "{text}"], 2, "not JSON"),
        (["box.echo", "[1]"], 2, "not a JSON object"),
        (["box.echo", "--arg", "text"], 2, "NAME=VALUE"),
        (["bad.echo"], 1, "no disk"),
    ],
)
@pytest.mark.slow
def test_call_says_what_went_wrong(tmp_path: Path, args: list[str], status: int, words: str) -> None:
    bad = faulty("--exit-at", "start", "--stderr", "no disk")
    write_servers(tmp_path / "mcp.json", box=faulty("--slow-call", "0.5"), bad=bad)
    with assert_nothing_left():
        called = grue("call", *args, "--mcp-config", "mcp.json", cwd=tmp_path)
    assert called.returncode == status, called.stderr
    assert words in called.stderr
    assert "Traceback" not in called.stderr


@pytest.mark.slow
def test_call_shows_what_the_server_says_beside_its_answer(tmp_path: Path) -> None:
    write_servers(tmp_path / "mcp.json", box=faulty("--chatty"))
    called = grue("call", "box.echo", "--arg", "text=hi", "--mcp-config", "mcp.json", cwd=tmp_path)
    assert called.stdout == "hi\n"
    assert called.stderr == "log: info: working on it\nprogress: 1/2\n"


@pytest.mark.slow
def test_doctor_is_content_with_nothing_configured(tmp_path: Path) -> None:
    found = grue("doctor", "--no-network", cwd=tmp_path)
    assert found.returncode == 0, found.stdout
    for words in (
        "Python 3.",
        "mcp 2.",
        "mind (bundled with grue): MCP 2025-11-25, 1 tool, up in",
    ):
        assert words in found.stdout
    assert "WRONG" not in found.stdout
    assert found.stdout.splitlines()[-1].startswith("Everything is in order; ")
    assert "story files" not in found.stdout, "nobody plays here"
    (tmp_path / "zork1.z3").touch()
    assert "story files" in grue("doctor", "--no-network", cwd=tmp_path).stdout


@pytest.mark.slow
def test_doctor_finds_each_fault_and_says_what_to_do(tmp_path: Path) -> None:
    table(tmp_path, "[tool.zorkgpt.mcp]\nenabled = true\nconfig_file = 'mcp.json'\n[tool.zorkgpt.llm]\n")
    write_servers(
        tmp_path / "mcp.json",
        good={**faulty("--ignore-eof"), "oauth": {}},
        bad=faulty("--exit-at", "initialize", "--stderr", "no disk"),
        absent={"command": "grue-has-no-such-command"},
        unset={"command": "x", "env": {"KEY": "${GRUE_NOT_SET}"}},
    )
    with assert_nothing_left():
        found = grue("doctor", "--no-network", cwd=tmp_path)
    assert found.returncode == 1
    for words in (
        "ok     mcp.json: 4 servers",
        "does not use the key 'oauth'",
        "note   good (mcp.json): MCP 2025-11-25, 3 tools",
        "it was terminated",
        "no disk",
        "grue-has-no-such-command",
        "GRUE_NOT_SET",
    ):
        assert words in found.stdout, found.stdout
    assert found.stdout.count("WRONG") == 3


@pytest.mark.slow
def test_doctor_names_the_tools_that_are_left_out_and_fails_only_where_the_lock_refuses(
    tmp_path: Path,
) -> None:
    servers = tmp_path / "mcp_config.json"

    def doctor() -> tuple[int, str, str]:
        found = grue("doctor", "--no-network", cwd=tmp_path)
        return found.returncode, found.stdout, found.stdout.splitlines()[-1]

    write_servers(servers, box=faulty("--malformed-tool", "--double-tool"))
    code, said, last = doctor()
    assert code == 0, "the server's own mistake: its other tools work"
    assert "note   box (mcp_config.json): not all of its tools can be used as they are\n" in said
    assert "       bad schema: inputSchema is not the schema of an object\n" in said
    assert "       echo: listed twice, the first one counts\n" in said
    assert "Everything is in order, except for tools of box: see above; " in last
    listed = grue("tools", cwd=tmp_path)
    assert "grue: box: bad schema: inputSchema is not the schema of an object\n" in listed.stderr
    write_servers(servers, box=faulty())
    grue("tools", "--lock", cwd=tmp_path)
    assert "except" not in doctor()[2]
    write_servers(servers, box=faulty("--pages", "9"))
    code, said, last = doctor()
    assert (code, "except for tools of box" in last) == (0, True)
    assert "       ... and 3 more: grue tools\n       If that is what you want: grue tools --lock\n" in said
    table(tmp_path, "[tool.grue.mcp]\ntool_lock = 'refuse'\n")
    code, said, last = doctor()
    assert (code, last.split(":")[0]) == (1, "1 thing is wrong")
    assert "       box.page_2 is not among the approved tools, so it is not offered\n" in said
    (tmp_path / "mcp_tools.lock").unlink()
    code, said, _ = doctor()
    assert code == 1, "no turn would start"
    assert "grue tools --lock" in said


@pytest.mark.slow
def test_doctor_asks_a_server_at_a_url_unless_told_not_to(tmp_path: Path) -> None:
    write_servers(tmp_path / "mcp.json", far={"url": "http://127.0.0.1:9/mcp"})
    asked = grue("doctor", "--mcp-config", "mcp.json", cwd=tmp_path)
    spared = grue("doctor", "--mcp-config", "mcp.json", "--no-network", cwd=tmp_path)
    assert (asked.returncode, spared.returncode) == (1, 0), asked.stdout + spared.stdout
    assert "WRONG  Failed to reach MCP server 'far'" in asked.stdout
    assert "far (mcp.json): not contacted, because of --no-network" in spared.stdout


@pytest.mark.slow
def test_doctor_names_the_keys_that_each_server_can_see_and_shows_none(tmp_path: Path) -> None:
    own = {"SERVERS_TOKEN": "${GITHUB_TOKEN}"}
    write_servers(
        tmp_path / "mcp.json",
        **{how: {**faulty(), "inherit_env": how, "env": own} for how in ("no_keys", "safe", "none")},
        default=faulty(),
        bare={**faulty(), "inherit_env": "none"},
    )
    keys = {"OPENAI_API_KEY": "sk-0123456789ab", "COPY": "sk-0123456789ab", "GITHUB_TOKEN": "ghp-0123456789"}
    found = grue("doctor", "--no-network", "--mcp-config", "mcp.json", cwd=tmp_path, **keys)
    own_alone = "it can see keys configured for it: SERVERS_TOKEN"
    for line in (
        f"ok     no_keys (mcp.json), inherit_env no_keys: {own_alone}; inherited: GITHUB_TOKEN",
        f"ok     safe (mcp.json), inherit_env safe: {own_alone}",
        f"ok     none (mcp.json), inherit_env none: {own_alone}",
        "note   default (mcp.json), inherit_env all: it can see keys inherited:"
        " COPY, GITHUB_TOKEN, OPENAI_API_KEY",
        '       "inherit_env": "no_keys" hides grue\'s own keys from it: COPY, OPENAI_API_KEY',
        "ok     bare (mcp.json), inherit_env none: it can see no keys",
    ):
        assert line in found.stdout.splitlines(), found.stdout
    assert not any(value in found.stdout + found.stderr for value in keys.values())


@pytest.mark.slow
def test_doctor_names_the_missing_key(tmp_path: Path) -> None:
    table(tmp_path, "[tool.zorkgpt.llm]\nagent_model = 'some/model'\n")
    found = grue("doctor", "--no-network", cwd=tmp_path)
    assert found.returncode == 1
    assert "GRUE_API_KEY or OPENROUTER_API_KEY" in found.stdout


@pytest.mark.slow
def test_r14_doctor_without_mcp_names_the_command(tmp_path: Path) -> None:
    without = (
        "import importlib.metadata as m\nreal = m.version\n"
        "def version(name):\n"
        "    if name == 'mcp':\n        raise m.PackageNotFoundError(name)\n"
        "    return real(name)\n"
        "m.version = version\n"
        "from pathlib import Path\nglob = Path.glob\n"
        "Path.glob = lambda self, *how: (p for p in glob(self, *how) if not p.name.startswith('mcp-'))\n"
    )
    found = grue("doctor", "--no-network", cwd=tmp_path, before=without)
    assert found.returncode == 1
    assert "pip install 'mcp>=2.3,<3'" in found.stdout


@pytest.mark.slow
def test_r14_doctor_without_node_says_who_needs_it(tmp_path: Path) -> None:
    write_servers(tmp_path / "mcp.json", seq={"command": "npx", "args": ["-y", "some-server"]})
    found = grue("doctor", "--no-network", "--mcp-config", "mcp.json", cwd=tmp_path, PATH="/nowhere")
    assert found.returncode == 1
    assert "Node.js is not installed, and seq needs it" in found.stdout


@pytest.mark.slow
def test_r2_2_doctor_finds_a_missing_file(tmp_path: Path) -> None:
    found = grue("doctor", "--no-network", "--mcp-config", "nowhere.json", cwd=tmp_path)
    assert found.returncode == 1
    assert "WRONG  The file of MCP servers nowhere.json was not found." in found.stdout


@pytest.mark.slow
def test_doctor_checks_what_grue_init_wrote(tmp_path: Path) -> None:
    grue("init", cwd=tmp_path, GRUE_API_KEY="k-0123456789abcdef")  # without a key, it may find a local model
    found = grue("doctor", "--no-network", cwd=tmp_path, GRUE_API_KEY="", OPENROUTER_API_KEY="")
    assert "ok     agent.py names anthropic/claude-haiku-5.5 at https://openrouter.ai/api/v1" in found.stdout
    assert "mind (mcp_config.json): MCP" in found.stdout
    assert (found.returncode, "Set GRUE_API_KEY or OPENROUTER_API_KEY" in found.stdout) == (1, True)
    (tmp_path / "agent.py").rename(tmp_path / "travel.py")
    keyed = grue("doctor", "--no-network", cwd=tmp_path, GRUE_API_KEY="k-0123456789abcdef")
    assert keyed.returncode == 0, keyed.stdout
    assert "ok     travel.py names anthropic/claude-haiku-5.5" in keyed.stdout


@pytest.mark.slow
def test_doctor_names_the_program_whose_address_cannot_be_used_and_shows_no_password(tmp_path: Path) -> None:
    program = tmp_path / "agent.py"
    program.write_text('llm = LlmSettings(base_url="127.0.0.1:11434/v1", model="m")\n')
    found = grue("doctor", "--no-network", cwd=tmp_path)
    assert found.returncode == 1
    assert "WRONG  agent.py: base_url should be an http:// or https:// URL with a host." in found.stdout
    program.write_text('llm = LlmSettings(base_url="http://127.0.0.1:9/v1", model="")\n')
    assert "WRONG  agent.py: model is the text ''" in grue("doctor", "--no-network", cwd=tmp_path).stdout
    program.write_text('llm = LlmSettings(base_url="http://me:hidden@127.0.0.1:9/v1", model="m")\n')
    (tmp_path / "pyproject.toml").write_text('[tool.grue.llm]\nagent_model = "n"\n')
    found = grue("doctor", "--no-network", cwd=tmp_path)
    assert "To check that: grue doctor --base-url http://127.0.0.1:9/v1 --model m" in found.stdout
    assert "hidden" not in found.stdout


@pytest.mark.slow
def test_doctor_says_how_to_check_what_a_program_names_beside_the_project(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text('llm = LlmSettings(base_url="http://127.0.0.1:9/v1", model="m")\n')
    (tmp_path / "other.py").write_text("llm = LlmSettings(base_url=URL, model=name)\nbroken(\n")
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "warned.py").write_text("LlmSettings(base_url='http://127.0.0.1:8/v1', model='\\d')\n")
    (tmp_path / "pyproject.toml").write_text('[tool.grue.llm]\nagent_model = "n"\n')
    found = grue("doctor", "--no-network", cwd=tmp_path, PYTHONWARNINGS="always")
    assert "To check that: grue doctor --base-url http://127.0.0.1:9/v1 --model m" in found.stdout
    assert "other.py" not in found.stdout
    assert "warned.py" in found.stdout
    assert "invalid escape sequence" not in found.stderr
    named = ("--base-url", "http://127.0.0.1:9/v1", "--model", "m")
    checked = grue("doctor", "--no-network", *named, cwd=tmp_path)
    assert "m at http://127.0.0.1:9/v1" in checked.stdout
    assert "agent.py" not in checked.stdout


@pytest.mark.slow
def test_doctor_says_of_a_file_that_is_not_used(tmp_path: Path) -> None:
    write_servers(tmp_path / "mcp_config.json", box=faulty())
    (tmp_path / "pyproject.toml").write_text("[tool.grue.mcp]\nenabled = false\n")
    found = grue("doctor", "--no-network", cwd=tmp_path)
    assert "note   mcp_config.json is not used: pyproject.toml turns MCP off" in found.stdout
