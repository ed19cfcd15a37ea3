"""The client that the official conformance suite tests: a session over HTTP that calls every tool it finds.

python conformance_client.py URL
"""

import sys

from grue.messages import JsonObject, ServerFailure
from grue.offline.schema_instances import minimal
from grue.tool_client import ToolClient
from grue.tool_sessions.server_requests import Declined, ElicitationRequest
from grue.tool_sessions.server_specs import HttpServer


async def accept_with_defaults(request: ElicitationRequest) -> JsonObject | Declined:
    """Answer as a person does who changes nothing in the form."""
    if request.schema is None:
        return Declined("there is no form to fill in")
    fields = request.schema["properties"]
    return {name: field["default"] for name, field in fields.items() if "default" in field}


def main(url: str) -> int:
    failed = False
    server = HttpServer(name="suite", url=url)
    with ToolClient({"suite": server}, elicit=accept_with_defaults) as client:
        outcome = client.connect()["suite"]
        print(outcome)
        if isinstance(outcome, ServerFailure):
            return 1
        for tool in client.tools():
            arguments = minimal(tool.input_schema)
            assert isinstance(arguments, dict)
            result = client.call(tool.name, arguments)
            print(tool.name, arguments, result)
            failed = failed or result.is_error
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[-1]))
