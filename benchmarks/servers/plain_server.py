"""An MCP server with one tool, `echo`, as a person writes it with the standard library alone.

It boots in about 30 ms, from spawn to first answer, and none of that is a sleep: it is the interpreter and
the imports below, such as a small server has. `run.py` measures the boot and prints it. To tune it to another
machine, add or take away imports: `asyncio` is about 25 ms more, without `argparse` it is about 8 ms less.
Start it with `python -I -S`: site packages are not its business.

`--boot-s 0.6` makes it a slow one, by work: it compiles a small module over and over, as an interpreter that
imports many packages does, until it has used so much processor time. `--result-bytes` makes its answers long.
"""

import argparse
import json
import logging
import pathlib
import sys
import time

log = logging.getLogger("plain_server")

A_MODULE = "def described(name, *, of=None):\n    return {'name': name, 'of': of or ['x'] * len(name)}\n" * 20

TOOL = {
    "name": "echo",
    "description": "Return the text that was given.",
    "inputSchema": {
        "type": "object",
        "properties": {"text": {"type": "string", "description": "What to return."}},
        "required": ["text"],
    },
}


def answer(method, params, result):
    """Return the result of a request, or `None` for a method that this server does not have."""
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "plain", "version": "1"},
        }
    if method == "tools/list":
        return {"tools": [TOOL]}
    if method == "tools/call":
        return {"content": [{"type": "text", "text": result or params["arguments"]["text"]}]}
    return {} if method == "ping" else None


def boot(seconds):
    """Work until this process has used so much processor time."""
    while time.process_time() < seconds:
        compile(A_MODULE, "a_module", "exec")


def serve(result):
    """Answer one request a line until the input ends; with `result`, where that is not empty."""
    for line in sys.stdin.buffer:
        message = json.loads(line)
        if "id" not in message or "method" not in message:
            continue
        answered = answer(message["method"], message.get("params", {}), result)
        error = {"code": -32601, "message": "Method not found"}
        outcome = {"error": error} if answered is None else {"result": answered}
        reply = {"jsonrpc": "2.0", "id": message["id"], **outcome}
        sys.stdout.buffer.write(json.dumps(reply).encode() + b"\n")
        sys.stdout.buffer.flush()
        log.info("answered %s", message["method"])


def main():
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(description="An MCP server with one tool, echo.")
    parser.add_argument("--log", type=pathlib.Path, help="file to note each answer in")
    parser.add_argument("--boot-s", type=float, default=0.0, help="processor time to boot with, in seconds")
    parser.add_argument("--result-bytes", type=int, default=0, help="length of each result, instead of echo")
    options = parser.parse_args()
    if options.log:
        logging.basicConfig(filename=options.log, level=logging.INFO)
    started = time.monotonic()
    boot(options.boot_s)
    serve(("a brass lantern. " * (options.result_bytes // 17 + 1))[: options.result_bytes])
    log.info("served for %.3f s", time.monotonic() - started)


main()
