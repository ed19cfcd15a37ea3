"""64 clients in four processes share an endpoint that accepts 20 requests a second: how much do they use?

    python benchmarks/run.py --only fleet_rate
    python benchmarks/fleet_rate.py SECONDS        for this time, without storing the result

The endpoint is a process of its own. If it has accepted 20 requests in the last second, it refuses further
ones with 429; it answers the others after 0.3 to 1 s. Each client is a thread with the Zork host's blocking
client, which asks the broker in this process for permission before each request.
"""

import argparse
import json
import tempfile
from contextlib import ExitStack
from pathlib import Path

from children import Worker
from measuring import Bar, Effort, Section, printed
from rate_worker import A_SECOND, THREADS

from grue.fleet.accounts import read_ledger
from grue.fleet.broker import FleetBudget, Limits, Rate
from grue.fleet.broker_server import BrokerServer
from grue.fleet.folder import FleetFolder

PROCESSES = 4
FIRST_S = 10.0


def rate_section(effort: Effort) -> Section:
    """Measure how much of an endpoint's rate a fleet uses, and how often it exceeds it."""
    return measured(effort.rate_s)


def measured(seconds: float) -> Section:
    """Let the clients send requests for `seconds`; the budget is used up shortly before."""
    budget = int(0.95 * A_SECOND * seconds)
    limits = Limits(FleetBudget(requests=budget), Rate(requests_per_minute=60 * A_SECOND))
    with tempfile.TemporaryDirectory() as folder, Worker("rate_worker.py", "endpoint") as endpoint:
        url = f"http://127.0.0.1:{endpoint.ask()['port']}/v1"
        with BrokerServer(FleetFolder(Path(folder)), limits) as server, ExitStack() as stack:
            clients = [stack.enter_context(Worker("rate_worker.py", "clients")) for _ in range(PROCESSES)]
            for client in clients:
                client.tell(json.dumps({"address": server.address, "url": url, "seconds": seconds}))
            for client in clients:
                client.answer()
        spent = read_ledger(FleetFolder(Path(folder))).requests
        arrived: list[tuple[float, int]] = endpoint.ask()["came"]
    first = min((at for at, _ in arrived), default=0.0)
    last = max((at for at, _ in arrived), default=0.0)
    late = [status for at, status in arrived if at - first > min(FIRST_S, seconds / 2)]
    lasted = max(last - first, 1e-9)
    used = sum(status == 200 for _, status in arrived) / (A_SECOND * lasted)
    overloads = late.count(429) / max(1, len(late))
    return Section(
        "fleet_rate",
        f"{PROCESSES * THREADS} clients of a fleet at an endpoint of {A_SECOND} requests a second",
        f"Measured for {seconds:g} s with a budget of {budget} requests, slow start included.",
        [],
        [
            Bar(
                "fleet at an endpoint with a rate limit: requests beyond the budget",
                max(0, len(arrived) - budget),
                0,
            ),
            Bar(
                "fleet at an endpoint with a rate limit: share of the rate that it uses",
                used,
                0.9,
                "x",
                at_least=True,
            ),
            Bar(
                "fleet at an endpoint with a rate limit: share of 429s after ten seconds",
                overloads,
                0.01,
                "x",
            ),
        ],
        {
            "requests that arrived": str(len(arrived)),
            "requests that the ledger has counted": str(spent),
            "seconds from the first request to the last": f"{lasted:.1f}",
            "answers 429": str(sum(status == 429 for _, status in arrived)),
        },
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Let many clients share an endpoint's rate.")
    parser.add_argument("seconds", type=float, nargs="?", default=60.0)
    print(printed(measured(parser.parse_args().seconds)))
