"""Descriptions of functions and their parameters, from docstrings in all forms."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grue.tool_sessions.function_tools import read_docstring

GOOGLE = """Look around.

    Takes a while.

    Args:
        way (str, optional): Where to look,
            and nowhere else.
        *depth: How far: in metres.
        silent:
            No sound.

    Returns:
        nothing: at all
    """
NUMPY = """Look around.

    Takes a while.

    Parameters
    ----------
    way : str, optional
        Where to look,
        and nowhere else.
    depth
        How far: in metres.
    silent, unused : bool
        No sound.

    Returns
    -------
    nothing : int
        At all.
    """
SPHINX = """Look around.

    Takes a while.

    :param str way: Where to look,
        and nowhere else.
    :param depth: How far: in metres.
    :type depth: int
    :keyword silent: No sound.
    :returns: nothing
    :raises ValueError: never
    """


@pytest.mark.parametrize("text", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"])
def test_the_three_forms_are_read_alike(text: str) -> None:
    docs = read_docstring(text)
    assert docs.description == "Look around.\n\nTakes a while."
    assert docs.summary == "Look around."
    found = dict(docs.parameters)
    found.pop("unused", None)
    assert found == {
        "way": "Where to look, and nowhere else.",
        "depth": "How far: in metres.",
        "silent": "No sound.",
    }


@pytest.mark.parametrize(
    ("text", "description"),
    [
        (None, ""),
        ("Only a summary.", "Only a summary."),
        ("Two\nlines.", "Two\nlines."),
        (
            "Say what it does: well.\n\nNote that\nArgs are few.",
            "Say what it does: well.\n\nNote that\nArgs are few.",
        ),
        ("Looks.\n\nRaises:\n    ValueError: x", "Looks."),
        ("A table\n-------\nis no section", "A table\n-------\nis no section"),
        (":unknown field: stays", ":unknown field: stays"),
    ],
)
def test_other_text_is_the_description(text: str | None, description: str) -> None:
    docs = read_docstring(text)
    assert (docs.description, dict(docs.parameters)) == (description, {})


def test_text_after_the_parameters_is_not_a_parameter() -> None:
    docs = read_docstring("Looks.\n\nArgs:\n    way: Where.\n\nMore: text.\n    still: more")
    assert docs.parameters == {"way": "Where."}


def test_the_first_description_of_a_parameter_counts() -> None:
    docs = read_docstring(
        "Looks.\n\nArgs:\n    way: First.\n\nKeyword Args:\n    way: Second.\n    far: Far."
    )
    assert docs.parameters == {"way": "First.", "far": "Far."}


@given(st.text(st.sampled_from("Args:\n Parmets-x,*()`") | st.characters(), max_size=200))
def test_any_text_is_read(text: str) -> None:
    docs = read_docstring(text)
    assert all(name and "\n" not in said for name, said in docs.parameters.items())
