"""Run the unit tests under coverage and hold them to the project's floors.

The whole package: 90 % of lines and branches together, over the tests that run in one process (the others
start commands, whose own lines do not count). `protocol/`: every branch, because it is where everything is
decided.
"""

import subprocess
import sys

FLOOR = 90
IN_PROCESS = [
    "tests/unit",
    "tests/actors",
    "tests/properties",
    *(
        f"tests/integration/test_{name}.py"
        for name in (
            "fault_matrix",
            "http_servers",
            "http_turns",
            "mcp_client",
            "offline_turn",
            "seed_code",
            "server_requests",
            "stdio_transport",
            "sync_boundary",
            "tool_client",
            "tool_lock",
            "zmachine_game",
        )
    ),
]

ONCE = ["-m", "not in_another_mode"]
"""What runs the same lines again only takes time here."""


def main() -> int:
    """Return the exit status: 0 when both floors hold."""
    python = [sys.executable, "-m"]
    steps = [
        [*python, "coverage", "erase"],
        [*python, "coverage", "run", "-m", "pytest", "-q", "-x", *ONCE, *IN_PROCESS],
        [*python, "coverage", "combine", "--quiet"],
        [*python, "coverage", "report", "--skip-covered", f"--fail-under={FLOOR}"],
        [*python, "coverage", "report", "--include=src/grue/protocol/*", "-m", "--fail-under=100"],
    ]
    for step in steps:
        status = subprocess.run(step, check=False).returncode
        if status:
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
