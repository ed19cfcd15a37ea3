"""An MCP server that delivers the skills of a folder (SEP-2640); standard library only.

python skill_server.py FOLDER LOG: each subfolder is a skill; the log gets a line for each request. If FOLDER
has a file `tampered`, the server sends its content for each `SKILL.md`, which then differs from the listed
digest.
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(sys.argv[1]) if len(sys.argv) > 1 else Path()
BASE = "skill://"


def entry(folder: Path) -> dict[str, Any]:
    lines = (folder / "SKILL.md").read_text().split("---")[1].strip().splitlines()
    front = dict(line.split(": ", 1) for line in lines)
    resources = [
        {
            "uri": f"{BASE}{file.relative_to(FOLDER)}",
            "digest": f"sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}",
            "size": len(file.read_bytes()),
        }
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    ]
    return {"uri": f"{BASE}{folder.name}/SKILL.md", "frontmatter": front, "resources": resources}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any] | int:
    """Return the result of a request, or the code of an error."""
    match method:
        case "initialize":
            capabilities = {
                "resources": {},
                "tools": {},
                "extensions": {"io.modelcontextprotocol/skills": {}},
            }
            about = {"name": "skills", "version": "1"}
            return {
                "protocolVersion": params["protocolVersion"],
                "capabilities": capabilities,
                "serverInfo": about,
            }
        case "tools/list":
            return {"tools": []}
        case "skills/list":
            skills = [entry(each) for each in sorted(FOLDER.iterdir()) if each.is_dir()]
            at = int(params.get("cursor", "0"))
            more = {"nextCursor": str(at + 1)} if at + 1 < len(skills) else {}
            return {"skills": skills[at : at + 1], **more}
        case "resources/read":
            file = FOLDER / params["uri"].removeprefix(BASE)
            tampered = FOLDER / "tampered"
            file = tampered if tampered.exists() and file.name == "SKILL.md" else file
            return {"contents": [{"uri": params["uri"], "text": file.read_text()}]}
    return -32601


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        with Path(sys.argv[2]).open("a") as log:
            log.write(f"{message['method']} {message.get('params', {}).get('uri', '')}\n")
        said = answer(message["method"], message.get("params", {}))
        body = {"error": {"code": said, "message": "no"}} if isinstance(said, int) else {"result": said}
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **body}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
