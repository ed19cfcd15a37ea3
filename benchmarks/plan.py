"""The plan of `run.py`: the sections, their order, how often each is measured, and how long that takes."""

SECONDS = {
    "turn": 22,
    "cold": 25,
    "agents": 16,
    "boots": 245,
    "one_shot": 150,
    "map": 85,
    "episode": 62,
    "import": 6,
    "version": 2,
    "ask": 6,
    "record": 2,
    "boxes": 12,
    "sessions": 12,
    "manager": 5,
    "long": 5,
    "talk": 6,
    "window": 8,
    "many": 75,
    "frames": 28,
    "traces": 40,
    "fleet": 50,
    "fleet_rate": 65,
    "large": 100,
    "results": 4,
}
"""Of each section on a quiet machine with two cores, the most important one first."""

LONGER = 1.1
"""A section that takes longer than this, times its seconds, repeats its measurements less often."""

TIMES = {"turn": 3, "cold": 3, "agents": 3}
"""How often a run measures a section whose bar is narrow; all others are measured once."""

WHOLE = (*(name for _ in range(3) for name in TIMES), *(name for name in SECONDS if name not in TIMES))
"""The sections of a whole run."""


def times(name: str) -> int:
    """Return how often a run measures the section `name`."""
    return TIMES.get(name, 1)
