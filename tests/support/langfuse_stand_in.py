"""A stand-in for Langfuse's client that records the calls of its methods."""

import threading
from typing import Any, NamedTuple


class Told(NamedTuple):
    """One call: `start`, `update` or `end` of the observation `whose`.

    For `start`, `whose` is the parent, and `given["name"]` is the new observation.
    """

    what: str
    whose: str
    given: dict[str, Any]


class StandIn:
    """The client, or one of its observations. All of them share one log.

    Attributes:
        flushed: Set when the client is flushed.
        shut_down: Set when the client is shut down.
    """

    def __init__(self, name: str = "client", log: list[Told] | None = None) -> None:
        self.name = name
        self.log: list[Told] = [] if log is None else log
        self.flushed = threading.Event()
        self.shut_down = threading.Event()

    def create_trace_id(self, *, seed: str) -> str:
        return f"trace of {seed}"

    def start_observation(self, **given: Any) -> "StandIn":
        self.log.append(Told("start", self.name, given))
        return StandIn(given["name"], self.log)

    def update(self, **given: Any) -> None:
        self.log.append(Told("update", self.name, given))

    def end(self, *, end_time: int) -> None:
        self.log.append(Told("end", self.name, {"end_time": end_time}))

    def flush(self) -> None:
        self.flushed.set()

    def shutdown(self) -> None:
        self.shut_down.set()

    def tree(self) -> list[tuple[str, str]]:
        """Return the parent and the name of each observation, in order of their start."""
        return [(told.whose, told.given["name"]) for told in self.log if told.what == "start"]

    def ended(self) -> list[str]:
        return [told.whose for told in self.log if told.what == "end"]

    def beginning(self, name: str) -> dict[str, Any]:
        (given,) = [told.given for told in self.log if told.what == "start" and told.given["name"] == name]
        return given

    def ending(self, name: str) -> dict[str, Any]:
        (given,) = [told.given for told in self.log if told.what == "update" and told.whose == name]
        return given
