"""Descriptions of servers by others: what is made of them, and what they cannot smuggle in."""

import sys
from typing import Any

import pytest

from grue.config.server_descriptions import (
    Described,
    OfferedBundle,
    Wanted,
    default_name,
    offered_bundle,
    package_description,
    read_manifest,
    read_server,
)
from grue.errors import MCPConfigError

NPM: dict[str, Any] = {"registryType": "npm", "identifier": "@scope/server", "version": "1.2.3"}
SECRET = {"isSecret": True, "isRequired": True}


def defaults(wanted: Wanted) -> tuple[str, ...]:
    if wanted.required and wanted.default is None:
        raise MCPConfigError(f"needs {wanted.name}")
    return wanted.default or ()


def description(*packages: dict[str, Any]) -> dict[str, Any]:
    return {"name": "io.github.me/weather", "version": "1.2.3", "packages": packages}


def server(*packages: dict[str, Any], remotes: tuple[dict[str, Any], ...] = (), **more: Any) -> Described:
    written = {"name": "io.github.me/weather", "version": "1.2.3", "packages": packages, "remotes": remotes}
    return read_server(written, more.pop("ask", defaults), **more)


def refusal(*packages: dict[str, Any], **more: Any) -> str:
    with pytest.raises(MCPConfigError) as caught:
        server(*packages, **more)
    return str(caught.value)


def manifest(**changes: Any) -> dict[str, Any]:
    program = {"command": "node", "args": ["${__dirname}/server/index.js"]}
    inside = {"type": "node", "entry_point": "server/index.js", "mcp_config": program}
    return {"manifest_version": "0.3", "name": "Notes", "version": "1.0.0", "server": inside, **changes}


def with_program(**program: Any) -> dict[str, Any]:
    return manifest(server={"type": "node", "mcp_config": {"command": "node", **program}})


@pytest.mark.parametrize(
    ("package", "command"),
    [
        (NPM, "npx -y @scope/server@1.2.3"),
        ({**NPM, "runtimeArguments": [{"type": "named", "name": "-y"}]}, "npx -y @scope/server@1.2.3"),
        ({"registryType": "pypi", "identifier": "a-server", "version": "2.0"}, "uvx a-server==2.0"),
        ({"registryType": "pypi", "identifier": "a[b]", "runtimeHint": "uvx"}, "uvx a[b]"),
        (
            {
                "registryType": "oci",
                "identifier": "docker.io/me/it:1.0",
                "version": "1.0",
                "runtimeArguments": [
                    {"type": "positional", "value": "run"},
                    {"type": "named", "name": "--rm"},
                    {"type": "named", "name": "--network", "value": "none"},
                ],
                "environmentVariables": [{"name": "API_KEY", **SECRET}],
            },
            "docker run -i --rm -e API_KEY --network none docker.io/me/it:1.0",
        ),
        ({"registryType": "oci", "identifier": "me/it", "version": "3"}, "docker run -i --rm me/it:3"),
        (
            {
                **NPM,
                "packageArguments": [
                    {"type": "positional", "value": "start"},
                    {"type": "named", "name": "--mode", "default": "fast"},
                    {"type": "named", "name": "--quiet"},
                    {"type": "named", "name": "--optional", "format": "number", "placeholder": "7"},
                    {"type": "named", "name": "--key", "isSecret": True, "isRequired": True},
                    {
                        "type": "named",
                        "name": "--mount",
                        "value": "src={from},dst=/x/{unknown}",
                        "variables": {"from": {"default": "/a{to}"}},
                    },
                ],
            },
            "npx -y @scope/server@1.2.3 start --mode fast --quiet --key ${WEATHER_KEY}"
            " --mount src=/a{to},dst=/x/{unknown}",
        ),
    ],
)
def test_a_package_becomes_a_command(package: dict[str, Any], command: str) -> None:
    entry = server(package).entry
    assert " ".join([entry["command"], *entry["args"]]) == command


def test_keys_become_variables_and_never_values() -> None:
    found = server(
        {
            **NPM,
            "environmentVariables": [
                {"name": "WEATHER_KEY", **SECRET},
                {"name": "UNITS", "default": "celsius"},
                {"name": "SERVICE_TOKEN", "default": "hunter2"},
                {"name": "SPARE_KEY", "isSecret": True},
                {"name": "HEADER", "value": "Bearer {it}", "variables": {"it": {"isSecret": True}}},
            ],
        },
        env={"SPARE_KEY"},
    )
    assert found.entry["env"] == {
        "WEATHER_KEY": "${WEATHER_KEY}",
        "UNITS": "celsius",
        "SPARE_KEY": "${SPARE_KEY}",
        "HEADER": "Bearer ${WEATHER_IT}",
    }
    assert found.variables == ("WEATHER_KEY", "SPARE_KEY", "WEATHER_IT")
    assert found.optional == ("SERVICE_TOKEN",)


def test_an_address_gets_its_headers_and_no_key_of_another_name() -> None:
    found = server(
        remotes=(
            {
                "type": "streamable-http",
                "url": "https://{tenant}.example.com/mcp",
                "variables": {"tenant": {"default": "me"}},
                "headers": [
                    {"name": "AWS_SECRET_ACCESS_KEY", **SECRET},
                    {"name": "X-Region", "default": "eu"},
                ],
            },
        )
    )
    assert found.entry == {
        "type": "streamable-http",
        "url": "https://me.example.com/mcp",
        "headers": {"AWS_SECRET_ACCESS_KEY": "${WEATHER_AWS_SECRET_ACCESS_KEY}", "X-Region": "eu"},
    }


def test_the_first_way_that_works_is_used_and_the_others_are_named() -> None:
    nuget = {"registryType": "nuget", "identifier": "X", "version": "1"}
    remote = {"type": "sse", "url": "https://example.com/sse"}
    assert (found := server(nuget, NPM, remotes=(remote,))).kind == "npm"
    assert found.others == ("remote",)
    assert server(nuget, NPM, remotes=(remote,), kind="remote").entry["url"] == "https://example.com/sse"
    assert "has no pypi. It has 'nuget', 'npm'." in refusal(nuget, NPM, kind="pypi")
    assert "It has 'nuget'." in refusal(nuget)


def test_the_registrys_answer_is_read_as_well() -> None:
    inside = {"name": "a.b/c.d", "packages": [NPM]}
    assert read_server({"server": inside, "_meta": {}}, defaults).name == "c-d"


@pytest.mark.parametrize(
    "identifier",
    ["git+https://evil.example/x", "-e", "../x", "a b", "a;b", "@a/../b", "file:///x", "x@y@z", ""],
)
@pytest.mark.parametrize("kind", ["npm", "pypi", "oci"])
def test_only_names_of_packages_are_started(kind: str, identifier: str) -> None:
    assert "is not a package" in refusal({"registryType": kind, "identifier": identifier, "version": "1"})


def test_a_name_without_a_version_is_refused_without_a_space() -> None:
    assert refusal({"registryType": "pypi", "identifier": "../x"}) == "'../x' is not a package of pypi."


@pytest.mark.parametrize("version", ["--yes", "1 2", "https://evil.example", "npm:other@1", "1\u202e"])
def test_only_versions_follow_a_name(version: str) -> None:
    assert "is not a package" in refusal({**NPM, "version": version})


@pytest.mark.parametrize("hint", ["sh", "/bin/npx", "bash -c", "uvx"])
def test_only_the_launcher_of_the_kind_starts_it(hint: str) -> None:
    assert "grue uses npx for npm" in refusal({**NPM, "runtimeHint": hint})


@pytest.mark.parametrize("kind", ["npm", "pypi"])
@pytest.mark.parametrize(
    "argument",
    [
        {"type": "named", "name": "--package", "value": "https://evil.example/x.tgz"},
        {"type": "named", "name": "-c", "default": "rm -r ."},
        {"type": "positional", "value": "other"},
    ],
)
def test_a_launcher_of_packages_gets_nothing_else_from_a_description(
    kind: str, argument: dict[str, Any]
) -> None:
    package = {"registryType": kind, "identifier": "a-server", "runtimeArguments": [argument]}
    assert "the name of a package and its version, and no other" in refusal(package)


def positional(value: str, **variables: dict[str, str]) -> dict[str, Any]:
    return {**NPM, "packageArguments": [{"type": "positional", "value": value, "variables": variables}]}


@pytest.mark.parametrize(
    "package",
    [
        positional("--x=${AWS_SECRET_ACCESS_KEY}"),
        positional("${env:HOME}"),
        positional("${unclosed"),
        positional("{a}{HOME}", a={"default": "$"}),
        positional("{a}", a={"default": "${HOME}"}),
        {**NPM, "environmentVariables": [{"name": "A", "value": "${B}"}]},
        {**NPM, "environmentVariables": [{"name": "A", "default": "${B:-x}"}]},
    ],
)
def test_a_description_cannot_read_the_environment(package: dict[str, Any]) -> None:
    assert "would read your environment" in refusal(package)


@pytest.mark.parametrize("name", ["PYTHONPATH", "NODE_PATH"])
@pytest.mark.parametrize("folder", ["/home/me/.ssh", "${userHome}/.ssh", ".", "a:/etc/ssl"])
def test_a_description_opens_no_folder_by_a_variable_for_modules(name: str, folder: str) -> None:
    def given(package: dict[str, Any]) -> dict[str, Any]:
        return {**package, "environmentVariables": [{"name": name, "value": folder}]}

    assert "which its sandbox would open" in refusal(given(NPM))
    asked = [{"name": name, "isRequired": True, "default": folder}]
    assert "which its sandbox would open" in refusal({**NPM, "environmentVariables": asked})
    if folder != ".":
        with pytest.raises(MCPConfigError, match="which its sandbox would open"):
            read_manifest(with_program(env={name: folder.replace("userHome", "HOME")}), defaults)
    oci = {"registryType": "oci", "identifier": "me/server"}
    assert server(given(oci)).entry["env"] == {name: folder}  # a container opens no folder of this machine


def test_a_bundle_names_its_own_folders_of_modules() -> None:
    for folder in ("${__dirname}/lib", "${__dirname}", "lib:vendor"):
        assert "PYTHONPATH" in read_manifest(with_program(env={"PYTHONPATH": folder}), defaults).entry["env"]
    for folder in ("${__dirname}/../other", "${__dirname}2", "../other"):
        with pytest.raises(MCPConfigError, match="which its sandbox would open"):
            read_manifest(with_program(env={"PYTHONPATH": folder}), defaults)


def test_an_address_cannot_carry_the_environment_away() -> None:
    remote = {"type": "sse", "url": "https://evil.example/${OPENAI_API_KEY}"}
    assert "would read your environment" in refusal(remotes=(remote,))


@pytest.mark.parametrize("value", ["a\x1b[2Jb", "a\nb", "a\0b", "a\u202eb", "a\ud800b"])
def test_control_characters_are_refused_in_what_is_written(value: str) -> None:
    text = refusal(positional(value))
    assert "control character" in text
    assert text.isprintable()


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("file:///etc/passwd", "is not an http"),
        ("https://me:pw@example.com/", "is not an http"),
        ("javascript:alert(1)", "is not an http"),
        ("", "is not an http"),
        ("http://[x", "is not an http"),
    ],
)
def test_only_plain_addresses_are_written(url: str, problem: str) -> None:
    assert problem in refusal(remotes=({"type": "sse", "url": url},))


@pytest.mark.parametrize("name", ["A B", "A=B", "", "1A", "A\n"])
def test_names_of_variables_are_checked(name: str) -> None:
    assert "is not a name of a variable" in refusal({**NPM, "environmentVariables": [{"name": name}]})


def test_a_description_without_bounds_is_refused() -> None:
    many = [{"type": "positional", "value": "x"}] * 200
    assert "too many or too long" in refusal({**NPM, "packageArguments": many})
    assert "too many or too long" in refusal(positional("x" * 100_000))
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"variables": {"a": deep}}
    assert "not a server.json" in refusal({**NPM, "environmentVariables": [{"name": "A", **deep}]})


@pytest.mark.parametrize(
    "written", [None, [], "x", {}, {"name": 1}, {"name": "a/b", "packages": {}}, {"\ud800": 1}]
)
def test_what_is_no_description_is_refused(written: object) -> None:
    with pytest.raises(MCPConfigError, match=r"This is not a server\.json"):
        read_server(written, defaults)


def test_a_bundle_of_a_description_has_an_address_and_a_digest() -> None:
    npm = {"registryType": "npm", "identifier": "x", "version": "1.0.0"}
    at = {"registryType": "mcpb", "identifier": "https://example.com/x.mcpb", "fileSha256": "AB" * 32}
    found = offered_bundle(description(at, npm))
    assert found == OfferedBundle(
        name="weather", url="https://example.com/x.mcpb", sha256="ab" * 32, others=("npm",)
    )
    assert offered_bundle(description(at, npm), kind="npm") is None
    assert offered_bundle(description(npm, at)) is None
    for changes, problem in [
        ({"fileSha256": ""}, "has no digest of its bundle"),
        ({"fileSha256": "ab" * 31}, "has no digest of its bundle"),
        ({"identifier": "file:///etc/passwd"}, "has no address of its bundle"),
        ({"identifier": "https://me:key@example.com/x.mcpb"}, "has no address of its bundle"),
        ({"identifier": "x.mcpb"}, "has no address of its bundle"),
        ({"identifier": "https://[::1/x.mcpb"}, "has no address of its bundle"),
    ]:
        with pytest.raises(MCPConfigError, match=problem):
            offered_bundle(description({**at, **changes}))
    with pytest.raises(MCPConfigError, match="its own manifest says"):
        read_server(description(at), defaults)


def test_a_package_can_be_named_without_a_description() -> None:
    for kind, named, command in [
        ("npm", "@a/server-x", "npx -y @a/server-x /data"),
        ("npm", "@a/server-x@1.0", "npx -y @a/server-x@1.0 /data"),
        ("pypi", "mcp-server-time==1.0", "uvx mcp-server-time==1.0 /data"),
        ("oci", "mcp/time:1", "docker run -i --rm mcp/time:1 /data"),
    ]:
        found = read_server(package_description(kind, named, ["/data"]), defaults)
        assert " ".join([found.entry["command"], *found.entry["args"]]) == command
        assert found.name in ("server-x", "mcp-server-time", "time")


def test_names_become_names_of_servers() -> None:
    assert [default_name(each) for each in ("a.b/c.d", "mcp", "x/../..", "é")] == [
        "c-d",
        "mcp-server",
        "server",
        "server",
    ]


def test_a_manifest_becomes_an_entry_with_its_folder() -> None:
    found = read_manifest(
        manifest(
            server={
                "type": "node",
                "mcp_config": {
                    "command": "node",
                    "args": ["${__dirname}/index.js", "${user_config.folders}", "--max=${user_config.max}"],
                    "env": {
                        "KEY": "${user_config.api_key}",
                        "SPARE": "${user_config.spare}",
                        "SEP": "a${/}b",
                    },
                    "platform_overrides": {sys.platform: {"env": {"HERE": "1"}}, "other": {"command": "x"}},
                },
            },
            user_config={
                "folders": {
                    "type": "directory",
                    "multiple": True,
                    "default": ["${HOME}/Desktop", "${DOCUMENTS}"],
                },
                "max": {"type": "number", "default": 10},
                "api_key": {"type": "string", "sensitive": True, "required": True},
                "spare": {"type": "string"},
            },
        ),
        defaults,
    )
    assert found.entry == {
        "command": "node",
        "args": [
            "${workspaceFolder}/mcp_bundles/Notes/index.js",
            "${userHome}/Desktop",
            "${userHome}/Documents",
            "--max=10",
        ],
        "cwd": "mcp_bundles/Notes",
        "env": {"KEY": "${NOTES_API_KEY}", "SEP": "a/b", "HERE": "1"},
    }
    assert found.variables == ("NOTES_API_KEY",)
    assert found.paths == ("${userHome}/Desktop", "${userHome}/Documents")


def test_a_program_of_the_bundle_is_found_in_its_folder() -> None:
    assert read_manifest(with_program(command="server/run"), defaults).entry["command"] == (
        "${workspaceFolder}/mcp_bundles/Notes/server/run"
    )
    uv = manifest(server={"type": "uv", "entry_point": "src/main.py"})
    assert read_manifest(uv, defaults).entry["args"] == [
        "run",
        "--directory",
        "${workspaceFolder}/mcp_bundles/Notes",
        "src/main.py",
    ]


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        (with_program(args=["${AWS_SECRET_ACCESS_KEY}"]), "has the unknown"),
        (with_program(args=["${user_config.absent}"]), "has the unknown"),
        (with_program(args=["${open"]), "has the unknown"),
        (with_program(command="../../../bin/sh"), "outside of the bundle"),
        (with_program(command="a/../../../x"), "outside of the bundle"),
        (with_program(env={"A B": "x"}), "is not a name of a variable"),
        (with_program(args=["a\x1b[1mb"]), "control character"),
        (with_program(command=""), "names no command"),
        (manifest(server={"type": "node"}), "does not say how"),
        (manifest(compatibility={"platforms": ["plan9"]}), "is for 'plan9'"),
        (manifest(server=[]), "This is not the manifest"),
        (
            {**with_program(args=["${user_config.a}{HOME}"]), "user_config": {"a": {"default": "$"}}},
            "would read your environment",
        ),
    ],
)
def test_a_hostile_manifest_is_refused(written: dict[str, Any], problem: str) -> None:
    with pytest.raises(MCPConfigError, match=problem):
        read_manifest(written, defaults)


def test_a_package_without_a_description_is_called_by_its_name() -> None:
    for written, title in (("@a/weather", "weather"), ("@a/weather@1.2.0", "weather 1.2.0")):
        assert read_server(package_description("npm", written, []), defaults).title == title


def test_a_secret_has_one_variable_that_can_be_expanded_whatever_the_server_is_called() -> None:
    key = {"name": "X-Api-Key", "isSecret": True}
    remote = {"type": "sse", "url": "https://example.com/mcp", "headers": [key]}
    found = server(remotes=(remote,), name="3d", env={"MCP_3D_X_API_KEY"})
    assert found.entry["headers"] == {"X-Api-Key": "${MCP_3D_X_API_KEY}"}
    assert server(remotes=(remote,), name="3d").optional == ("MCP_3D_X_API_KEY",)
    option = {"user_config": {"key": {"sensitive": True}}}
    written = {**with_program(env={"KEY": "${user_config.key}"}), **option}
    bundle = read_manifest(written, defaults, name="3d", env={"MCP_3D_KEY"})
    assert bundle.entry["env"] == {"KEY": "${MCP_3D_KEY}"}


@pytest.mark.parametrize(("default", "written"), [(8_080_000, "8080000"), (0.1, "0.1"), (10, "10")])
def test_a_number_of_a_manifest_keeps_its_digits(default: float, written: str) -> None:
    option = {"user_config": {"size": {"type": "number", "default": default}}}
    found = read_manifest({**with_program(args=["${user_config.size}"]), **option}, defaults)
    assert found.entry["args"] == [written]
