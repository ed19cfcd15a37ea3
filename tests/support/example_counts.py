"""How many examples Hypothesis tries, in proportion to the chosen profile."""

from hypothesis import settings

_FULL = 100


def examples(full: int) -> int:
    """Scale a count of examples: as it is with the full profile, a tenth with the profile `quick`."""
    return max(1, full * settings.default.max_examples // _FULL)
