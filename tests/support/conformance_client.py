"""The client that the official MCP conformance suite tests: it connects over HTTP and calls every tool.

python conformance_client.py URL

If the server requires a login, the client logs in, agrees to everything, and tries again.
"""

import json
import os
import shlex
import sys
import tempfile
import urllib.request
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from grue.engine.outside_turns.tool_client import ToolClient
from grue.hosts.skill_agent.served_skills import list_skills, read_file
from grue.hosts.skill_agent.skills import SKILL_FILE
from grue.messages import JsonObject, ServerFailure, ToolCallResult, ToolDefinition
from grue.testing.offline.schema_instances import UnsatisfiableError, minimal
from grue.tool_sessions.oauth_settings import OAuth
from grue.tool_sessions.server_requests import Declined, ElicitationRequest
from grue.tool_sessions.server_specs import HttpServer
from grue.transports.mcp.login import log_in

_METADATA_URL = "https://conformance-test.local/client-metadata.json"
_LOGINS = 3
SCENARIO = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")


async def accept_with_defaults(request: ElicitationRequest) -> JsonObject | Declined:
    """Answer a form with its default values."""
    if request.schema is None:
        return Declined("there is no form to fill in")
    fields = request.schema["properties"]
    return {name: field["default"] for name, field in fields.items() if "default" in field}


def press_yes(address: str) -> None:
    """Log in as a person does in the browser: open the address, and follow the redirect back."""
    urllib.request.urlopen(address, timeout=60).read()


def authorisation(url: str, context: dict[str, Any]) -> OAuth:
    """Return the OAuth settings for `context`, which the suite passes in an environment variable."""
    known: dict[str, Any] = {
        name: context[name] for name in ("client_id", "client_secret") if name in context
    }
    if "private_key_pem" in context:
        algorithm = context.get("signing_algorithm", "ES256")
        known |= {"private_key": context["private_key_pem"], "signing_algorithm": algorithm}
    if "idp_id_token" in context:
        return OAuth(
            grant="identity_assertion",
            issuer=authorization_server(url),
            identity_provider=context["idp_issuer"],
            identity_client_id=context["idp_client_id"],
            identity_token=context["idp_id_token"],
            **known,
        )
    if context.get("name", "").startswith("auth/client-credentials"):
        return OAuth(grant="client_credentials", **known)
    return OAuth(client_metadata_url=None if known else _METADATA_URL, **known)


def authorization_server(url: str) -> str:
    """Return the issuer's URL. An administrator would configure it; here it is in the server's metadata."""
    parts = urlsplit(url)
    metadata = f"{parts.scheme}://{parts.netloc}/.well-known/oauth-protected-resource{parts.path}"
    with urllib.request.urlopen(metadata, timeout=60) as answer:
        return str(json.load(answer)["authorization_servers"][0])


def arguments_for(tool: ToolDefinition, tools: Sequence[ToolDefinition]) -> JsonObject:
    """Return the arguments that the suite expects for a tool, or else minimal ones that fit its schema."""
    for call in json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}")).get("toolCalls", ()):
        if call["name"] == tool.tool:
            return {name: value for name, value in call["arguments"].items() if value is not None}
    if tool.tool == "json_schema_echo":
        (focal,) = (each for each in tools if each.tool == "json_schema_2020_12_tool")
        return {"schema": focal.input_schema}
    try:
        arguments = minimal(tool.input_schema)
    except UnsatisfiableError:  # the schema refers to another host, from which grue fetches nothing
        return {}
    assert isinstance(arguments, dict)
    return arguments


def calls_succeed(server: HttpServer) -> bool | str:
    """Call every tool. Return whether all calls succeeded, or else the scopes that a login must request."""
    with ToolClient({"suite": server}, elicit=accept_with_defaults) as client:
        outcome = client.connect()["suite"]
        print(outcome)
        if isinstance(outcome, ServerFailure):
            return wanted_scope(outcome.remedy) if outcome.needs_login else False
        failed = False
        for tool in client.tools():
            arguments = arguments_for(tool, client.tools())
            result: ToolCallResult = client.call(tool.name, arguments)
            print(tool.name, arguments, result)
            if "wants the scopes" in (result.error_message or ""):
                return (result.error_message or "").split("'")[1]
            failed = failed or result.is_error
        if SCENARIO.startswith("sep-2640"):
            failed = not uses_skills(client) or failed
    return not failed


def uses_skills(client: ToolClient) -> bool:
    """List the skills, and load each with its files, unless the scenario forbids it. Return the success."""
    skills, problems = list_skills(client, "suite")
    print(skills, problems)
    for skill in () if SCENARIO.endswith("no-prefetch") else skills:
        try:
            for path in (SKILL_FILE, *(each for each in skill.files if each != SKILL_FILE)):
                print(read_file(client, skill, path))
        except ValueError as error:
            print(error)
            return False
    return bool(skills) and not problems


def wanted_scope(remedy: str) -> str:
    return shlex.split(remedy)[-1] if "--scope" in remedy else ""


def main(url: str) -> int:
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
    with tempfile.TemporaryDirectory() as folder:
        os.environ["GRUE_TOKENS"] = folder
        server = HttpServer(name="suite", url=url, auth=authorisation(url, context))
        for _ in range(_LOGINS):
            done = calls_succeed(server)
            if isinstance(done, bool):
                return int(not done)
            log_in(server, press_yes, scope=done or None)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[-1]))
