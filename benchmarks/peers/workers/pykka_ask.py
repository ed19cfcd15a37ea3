"""An ask by Pykka: `ask` of an actor in a thread of its own, which answers by returning."""

import time
from dataclasses import dataclass

import pykka
from ask_loop import serve


@dataclass(frozen=True)
class Returned:
    """What grue's side sends, field by field."""

    batch: int
    call_id: str
    content: str
    duration_s: float


class Echo(pykka.ThreadingActor):
    def on_receive(self, message: Returned) -> Returned:
        return message


def asks(count: int) -> float:
    echo = Echo.start()
    body = Returned(1, "call_1", "a brass lantern", 0.01)
    begun = time.perf_counter()
    for _ in range(count):
        echo.ask(body)
    took = time.perf_counter() - begun
    echo.stop()
    return took / count * 1e6


if __name__ == "__main__":
    serve(asks)
