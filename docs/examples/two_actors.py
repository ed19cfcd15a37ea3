"""A thermometer and a thermostat keep a room warm: two actors over `grue.runtime`.

Run it with the path of a trace file, or without.
"""

import sys
from pathlib import Path

from msgspec import Struct

from grue.runtime.actor import Actor, Mailbox, Supervisor, reply
from grue.runtime.loops.sync_edge import run_blocking
from grue.runtime.trace.file import TraceWriter
from grue.runtime.trace.recorder import Envelope, Recorder

GOAL_C = 20.0


class Measure(Struct, frozen=True, tag=True):
    """host -> thermometer: take so many readings, then answer with the last temperature in the room."""

    times: int


class Measured(Struct, frozen=True, tag=True):
    """thermometer -> thermostat: it is this warm, in degrees Celsius."""

    celsius: float


class Heat(Struct, frozen=True, tag=True):
    """thermostat -> thermometer, in reply: heat the room by so many degrees."""

    degrees: float


class Thermostat(Actor[Measured]):
    """Decides."""

    async def receive(self, envelope: Envelope[Measured]) -> None:
        """Answer a reading with the heat that is missing, two degrees at a time."""
        missing = GOAL_C - envelope.body.celsius
        reply(envelope, Heat(degrees=min(2.0, missing) if missing > 0 else 0.0))


class Thermometer(Actor[Measure]):
    """Stands in the room, which loses half a degree between two readings."""

    def __init__(self, mailbox: Mailbox[Measure], thermostat: Mailbox[Measured]) -> None:
        super().__init__(mailbox)
        self._thermostat = thermostat
        self._celsius = 16.0

    async def receive(self, envelope: Envelope[Measure]) -> None:
        """Take the readings and pass on what the thermostat says of each."""
        for _ in range(envelope.body.times):
            measured = Measured(celsius=self._celsius)
            heat = await self._thermostat.ask(measured, sender=self.name, timeout_s=1.0, cause=envelope.seq)
            self._celsius += heat.degrees - 0.5
        reply(envelope, self._celsius)


def show(envelope: Envelope[object], _line: bytes) -> None:
    """Print an envelope as it is recorded."""
    because = f"  (because of {envelope.cause})" if envelope.cause else ""
    print(f"{envelope.seq:2}  {envelope.sender} -> {envelope.receiver}: {envelope.body}{because}")


async def keep_warm(recorder: Recorder) -> float:
    """Start both actors, ask for four readings, and stop them."""
    async with Supervisor(recorder) as group:
        thermostat = Thermostat(group.mailbox("thermostat"))
        thermometer = Thermometer(group.mailbox("thermometer"), thermostat.mailbox)
        group.start(thermostat)
        group.start(thermometer)
        celsius: float = await thermometer.mailbox.ask(Measure(times=4), sender="host", timeout_s=5.0)
        return celsius


def main(trace: Path | None = None) -> None:
    """Keep the room warm from plain code."""
    recorder = Recorder()
    recorder.add(show)
    writer = None if trace is None else TraceWriter(trace, episode="a cold morning")
    if writer is not None:
        recorder.add(writer)
    celsius = run_blocking(
        lambda: keep_warm(recorder), on_exit=writer.close if writer else lambda: None, twin="keep_warm"
    )
    print(f"The room has {celsius} degrees.")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
