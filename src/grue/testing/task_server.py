"""An MCP server, for tests, that runs tool calls as tasks, in both forms that MCP has. Standard library only.

    python -m grue.testing.task_server --states working,input_required,completed

Its tool `research` has to be called as a task. Each `tasks/get` moves the task to the next state of
`--states`; the task stays in the last state. Besides the protocol's own states there are: `lost` (the server
knows no such task), `refused` (it answers with an error), `unusable` (a state that does not exist), `silent`
(it does not answer) and `die` (it exits). The tool `quick` answers at once.

`--form experimental` is the form of MCP 2025-11-25, which begins with `initialize`; `--form extension` is the
form of 2026-07-28, which does not. With `--store FILE` the tasks outlive the process. With `--record FILE`
the server writes a line for each request and notification: the method, and the task's id or the tool's name.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

STATES = ("working", "input_required", "completed", "failed", "cancelled")
FAULTS = ("lost", "refused", "unusable", "silent", "die")
EXTENSION = "io.modelcontextprotocol/tasks"
MODERN = "2026-07-28"
QUESTION = {
    "method": "elicitation/create",
    "params": {"message": "Which one?", "requestedSchema": {"type": "object", "properties": {}}},
}
DIED = 3
_NO_METHOD, _NO_TASK, _BROKEN = -32601, -32602, -32603


class _TaskRefusal(Exception):  # noqa: N818 - named as what the server does
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class _TaskServer:
    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._extension = options.form == "extension"
        self._states: Sequence[str] = options.states
        self._asked = 0
        self._tasks: dict[str, dict[str, Any]] = {}
        if options.store is not None and options.store.exists():
            self._tasks = json.loads(options.store.read_text())

    def serve(self) -> None:
        for line in sys.stdin:
            message = json.loads(line)
            if "id" in message and "method" in message:
                self._reply(message["id"], message["method"], message.get("params") or {})
            elif "method" in message:
                self._record(message["method"], {})

    def _reply(self, request_id: object, method: str, params: dict[str, Any]) -> None:
        self._record(method, params)
        try:
            result = self.answer(method, params)
        except _TaskRefusal as refusal:
            self._write({"id": request_id, "error": {"code": refusal.code, "message": str(refusal)}})
            return
        if result is None:
            return
        if self._extension:
            result = {"resultType": "complete", **result}
        self._write({"id": request_id, "result": result})

    def answer(self, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        """Return the result of a request; `None`: send no answer to this request."""
        match method:
            case "initialize" if not self._extension:
                tasks: dict[str, Any] = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
                return {
                    "protocolVersion": "2025-11-25",
                    "capabilities": {"tools": {}, "tasks": tasks},
                    "serverInfo": {"name": "tasks", "version": "1"},
                }
            case "server/discover" if self._extension:
                abilities: dict[str, Any] = {"tools": {}, "extensions": {EXTENSION: {}}}
                return {"supportedVersions": [MODERN], "capabilities": abilities}
            case "tools/list":
                return self._tools()
            case "tools/call" if params["name"] == "quick":
                return _text("quick")
            case "tools/call":
                return self._create(params)
            case "tasks/get":
                return self._get(self._task(params))
            case "tasks/result" if not self._extension:
                return self._collect(self._task(params))
            case "tasks/update" if self._extension:
                self._task(params)["answers"].update(params["inputResponses"])
                self._keep()
                return {}
            case "tasks/cancel":
                task = self._task(params)
                task["status"] = "cancelled"
                self._keep()
                return {} if self._extension else self._state(task)
            case _:
                raise _TaskRefusal(_NO_METHOD, f"there is no {method}")

    def _tools(self) -> dict[str, Any]:
        schema = {"type": "object"}
        research: dict[str, Any] = {"name": "research", "inputSchema": schema}
        if not self._extension:
            research["execution"] = {"taskSupport": "required"}
        return {
            "tools": [research, {"name": "quick", "inputSchema": schema}],
            "ttlMs": 0,
            "cacheScope": "private",
        }

    def _create(self, params: dict[str, Any]) -> dict[str, Any]:
        wanted = params.get("_meta", {}).get("io.modelcontextprotocol/clientCapabilities", {})
        if self._extension and EXTENSION not in wanted.get("extensions", {}):
            raise _TaskRefusal(-32003, "the client has not declared that it can follow tasks")
        if not self._extension and "task" not in params:
            raise _TaskRefusal(_NO_METHOD, "research has to be called as a task")
        name = f"task-{len(self._tasks) + 1}"
        self._tasks[name] = task = {"taskId": name, "status": "working", "polls": 0, "answers": {}}
        self._keep()
        return {**self._state(task), "resultType": "task"} if self._extension else {"task": self._state(task)}

    def _state(self, task: dict[str, Any]) -> dict[str, Any]:
        at = "2026-11-22T10:30:00Z"
        interval, lifetime = ("pollIntervalMs", "ttlMs") if self._extension else ("pollInterval", "ttl")
        return {
            "taskId": task["taskId"],
            "status": task["status"],
            "statusMessage": f"{task['status']}, asked {task['polls']} times",
            "createdAt": at,
            "lastUpdatedAt": at,
            interval: self._options.poll_ms,
            lifetime: 60_000,
        }

    def _get(self, task: dict[str, Any]) -> dict[str, Any] | None:
        state = self._states[min(task["polls"], len(self._states) - 1)]
        task["polls"] += 1
        if state in STATES:
            task["status"] = state
        self._keep()
        match state:
            case "silent":
                return None
            case "die":
                sys.exit(DIED)
            case "refused":
                raise _TaskRefusal(_BROKEN, "the store is down")
            case "lost":
                raise _TaskRefusal(_NO_TASK, f"there is no task {task['taskId']}")
            case "unusable":
                return {**self._state(task), "status": "odd"}
        return {**self._state(task), **(self._inline(task) if self._extension else {})}

    def _inline(self, task: dict[str, Any]) -> dict[str, Any]:
        match task["status"]:
            case "input_required":
                return {"inputRequests": {"which": QUESTION}}
            case "completed":
                return {"result": self._result(task)}
            case "failed":
                return {"error": {"code": _BROKEN, "message": "the library is closed"}}
        return {}

    def _collect(self, task: dict[str, Any]) -> dict[str, Any]:
        if task["status"] == "failed":
            raise _TaskRefusal(_BROKEN, "the library is closed")
        if task["status"] == "input_required":
            self._asked += 1
            self._write({"id": f"question-{self._asked}", **QUESTION})
            answer = json.loads(sys.stdin.readline())
            task["answers"]["which"] = answer.get("result", answer.get("error"))
        return self._result(task)

    def _result(self, task: dict[str, Any]) -> dict[str, Any]:
        answers = json.dumps(task["answers"], sort_keys=True)
        return _text(f"found after {task['polls']} questions; answers: {answers}")

    def _task(self, params: dict[str, Any]) -> dict[str, Any]:
        task = self._tasks.get(str(params.get("taskId")))
        if task is None:
            raise _TaskRefusal(_NO_TASK, f"there is no task {params.get('taskId')}")
        return task

    def _keep(self) -> None:
        if self._options.store is not None:
            self._options.store.write_text(json.dumps(self._tasks))

    def _record(self, method: str, params: dict[str, Any]) -> None:
        if self._options.record is not None:
            about = params.get("taskId") or params.get("name") or ""
            with self._options.record.open("a") as file:
                file.write(f"{method} {about}".rstrip() + "\n")

    def _write(self, message: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def _text(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}]}


def _states(text: str) -> list[str]:
    named = text.split(",")
    unknown = [name for name in named if name not in (*STATES, *FAULTS)]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"there is no state {unknown[0]!r}; the states are {', '.join((*STATES, *FAULTS))}"
        )
    return named


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve one client over standard input and output."""
    parser = argparse.ArgumentParser(prog="python -m grue.testing.task_server", description=__doc__)
    parser.add_argument("--form", choices=("experimental", "extension"), default="extension")
    parser.add_argument("--states", type=_states, default=["completed"], metavar="STATE,...")
    parser.add_argument("--poll-ms", type=int, default=100, help="the interval that it asks for")
    parser.add_argument("--store", type=Path, metavar="FILE")
    parser.add_argument("--record", type=Path, metavar="FILE")
    _TaskServer(parser.parse_args(arguments)).serve()


if __name__ == "__main__":
    main()
