"""Run a long table of fast cases in one test."""

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any


def each_case(names: str, cases: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a test to run with each case. A failure names its case.

    The arguments are those of `pytest.mark.parametrize`. Use this for a dozen cases or more that take a few
    milliseconds each, because pytest needs longer to collect, run and report a test. Use `parametrize` if
    each case needs its own fixture.
    """
    keys = [name.strip() for name in names.split(",")]
    table = [tuple(case) if len(keys) > 1 else (case,) for case in cases]
    assert table, "no cases"

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @wraps(test)
        def try_each(**rest: Any) -> None:
            for case in table:
                named = dict(zip(keys, case, strict=True))
                try:
                    test(**named, **rest)
                except BaseException as error:
                    error.add_note(
                        f"in the case {', '.join(f'{key}={value!r}' for key, value in named.items())}"
                    )
                    raise

        signature = inspect.signature(test)
        left = [parameter for name, parameter in signature.parameters.items() if name not in keys]
        try_each.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return try_each

    return decorate
