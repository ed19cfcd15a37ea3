import itertools
import json
from typing import Any

import pytest
from case_tables import each_case
from promises import within

from grue.protocol.tools.results import failure, success, whole_text
from grue.tool_sessions.result_reading import CannotReadError, _start_of, read_part, wanted

ROWS = "\n".join(f"row {number}: {'error' if number % 500 == 0 else 'fine'}" for number in range(1, 2001))
DATA = {
    "items": [{"id": number, "name": f"thing {number}", "tags": ["a", "b"]} for number in range(40)],
    "a key": {"it's": True},
    "note": "x" * 3_000,
}


def read(content: object, limit: int = 2_000, **asked: object) -> str:
    return read_part(success(content), wanted({"handle": "c", **asked}), limit)


def refused(content: object, **asked: object) -> str:
    with pytest.raises(CannotReadError) as error:
        read(content, **asked)
    return str(error.value)


def test_lines_are_read_by_number_and_the_rest_of_them_by_what_is_skipped() -> None:
    assert read(ROWS, first_line=999, last_line=1000) == (
        "[lines 999 to 1000 of 2000]\nrow 999: fine\nrow 1000: error"
    )
    assert read(ROWS, first_line=2000).endswith("\nrow 2000: error")
    assert read(ROWS, last_line=1) == "[lines 1 to 1 of 2000]\nrow 1: fine"
    head, shown = read(ROWS, 1_000, first_line=1, last_line=300).split("\n", 1)
    assert head == (
        "[lines 1 to 300 of 2000; 3291 characters of them are left out at the end: go on with the same"
        " lines and skip=800]"
    )
    assert ROWS.startswith(shown)
    assert len(shown) == 800
    last = read(ROWS, first_line=1, last_line=300, skip=3_900)
    assert last.startswith("[lines 1 to 300 of 2000, without 3900 characters]\n")
    assert last.endswith("row 300: fine")


def test_a_text_that_a_server_wraps_in_an_object_is_read_by_its_own_lines() -> None:
    wrapped = {"content": ROWS}
    assert read(wrapped, first_line=999, last_line=1000) == read(ROWS, first_line=999, last_line=1000)
    assert read(wrapped, pattern="row 1[0-9]: ") == read(ROWS, pattern="row 1[0-9]: ")
    assert read(wrapped, json_path="$.content").startswith("[$.content is a text; ")
    assert read({"content": ROWS, "more": 1}, first_line=3) == '[lines 3 to 4 of 4]\n "more": 1\n}'
    assert read({"content": "one line"}, first_line=1) == '[lines 1 to 3 of 3]\n{\n "content": "one line"\n}'


def test_the_text_of_an_embedded_resource_is_read_by_its_own_lines() -> None:
    resource = {"type": "resource", "resource": {"uri": "file:///rows", "text": ROWS}}
    content = [{"type": "text", "text": "downloaded"}, resource]
    described = '{\n "type": "resource",\n "uri": "file:///rows"\n}'
    assert read(content, last_line=6) == f"[lines 1 to 6 of 2005]\ndownloaded\n{described}\nrow 1: fine"


def test_a_whole_text_can_be_read_in_steps_even_of_one_line() -> None:
    text = "".join(f"{number}," for number in range(2_000))
    parts, skip = [], 0
    while skip < len(text):
        shown = read(text, 1_000, skip=skip).split("\n", 1)[1]
        parts.append(shown)
        skip += len(shown)
    assert "".join(parts) == text


@each_case(
    "content, asked, why",
    [
        ("a\nb", {"first_line": 3}, "the result has 2 lines"),
        ("a\nb", {"first_line": 2, "last_line": 1}, "last_line is before first_line"),
        ("a", {"first_line": 0}, "lines from 1"),
        ("a", {"skip": -1}, "skip counts from 0"),
        ("a", {"first_line": "x"}, "The arguments are: handle, first_line"),
        ("a", {"first_line": 1, "pattern": "a"}, "not several of them"),
        ("a", {"json_path": "$"}, "not JSON"),
        ("a", {"pattern": "(?=a)"}, "look-around"),
        ("a", {"pattern": r"(a)\1"}, "back references"),
        ("a", {"pattern": "("}, "not a regular expression"),
        ("a", {"pattern": "a" * 501}, "at most 500 characters"),
        ("a", {"pattern": "(a{100}){100}"}, "too large"),
        (DATA, {"json_path": "$.itms"}, ".itms is not there: it is an object with the members items, a key"),
        (DATA, {"json_path": "$.items[40]"}, "[40] is not there: it is an array of 40 values"),
        (DATA, {"json_path": "$.note.x"}, ".x is not there: it is a text"),
        (DATA, {"json_path": "$.note[0]"}, "[0] is not there: it is a text"),
        (DATA, {"json_path": "$.items[0].id.x"}, ".x is not there: it is a number"),
        (DATA, {"json_path": "$..items"}, "cannot be read from '..items' on"),
        (DATA, {"json_path": "$" + "[0]" * 51}, "at most 50"),
        ({}, {"json_path": "a"}, "an empty object"),
    ],
)
def test_what_cannot_be_read_is_told_with_the_reason(content: object, asked: dict, why: str) -> None:
    assert why in refused(content, **asked)


def test_a_pattern_finds_lines_with_their_numbers() -> None:
    assert read(ROWS, pattern="error$") == (
        "[4 matching lines; there are no more]\n500: row 500: error\n1000: row 1000: error\n"
        "1500: row 1500: error\n2000: row 2000: error"
    )
    assert read(ROWS, pattern="(?i)^ROW 7:") == "[1 matching lines; there are no more]\n7: row 7: fine"
    assert read(ROWS, pattern=r"\Arow 7:") == "[1 matching lines; there are no more]\n7: row 7: fine"


@pytest.mark.parametrize(
    "pattern", ["(?-m)^foo", "(?-m:^foo)", r"(?s-m:^foo\r$)", "(?x)( ?-m)^foo", r"(?R)foo\r$"]
)
def test_a_pattern_with_flags_for_line_ends_finds_a_line_in_mid_text(pattern: str) -> None:
    assert read("bar\nfoo\r\nbaz", pattern=pattern).startswith("[1 matching lines;")
    assert read(ROWS, pattern="nothing") == "[no line matches]"
    assert read(ROWS, pattern="error", skip=4) == "[no line matches any more]"
    first = read(ROWS, 100_000, pattern="fine")
    assert first.startswith("[100 matching lines; there are more: go on with skip=100]\n1: row 1: fine\n")
    following = read(ROWS, 100_000, pattern="fine", skip=100)
    assert following.startswith("[100 matching lines, after 100 others; there are more: go on with skip=200]")
    assert "\n101: row 101: fine\n" in following
    assert len(read(ROWS, 1_000, pattern="fine")) < 1_000


def test_a_match_in_a_long_line_is_shown_with_its_place() -> None:
    line = "x" * 150_000 + "needle" + "y" * 150_000
    found = read(f"first\n{line}\nlast", pattern="needle").split("\n")
    assert found[0] == "[1 matching lines; there are no more]"
    assert found[1].startswith("2 (from character ")
    assert "xxneedleyy" in found[1]
    assert len(found[1]) < 400


def test_few_lines_are_tested_one_by_one_if_matches_are_far_apart() -> None:
    looks = itertools.count()
    rows = "".join(f"row {row}{'!' if row % 1000 == 0 else '.'}\n" for row in range(100_000))
    text = read_part(
        success(rows), wanted({"handle": "c", "pattern": "!"}), 100_000, clock=lambda: 0.0 * next(looks)
    )
    assert text.splitlines()[:3] == [
        "[100 matching lines; there are no more]",
        "1: row 0!",
        "1001: row 1000!",
    ]
    assert next(looks) < 20_000


@pytest.mark.parametrize(
    "pattern", ["^b$", r"\Ab\z", r"\bb\b", r"\B", "[^a]", "^$", r"^\W", "(?s)^a.b", "b*"]
)
def test_a_line_matches_by_itself_wherever_it_stands(pattern: str) -> None:
    lines = ["", "b", "ab", "a b", "-", "a" * 1_500, "a" * 3_000, "b\r"] * 3
    numbers = [
        n for n, line in enumerate(lines, 1) if not read(line + "\n", pattern=pattern).startswith("[no")
    ]
    found = read("\n".join([*lines, "a"]), 100_000, pattern=pattern).splitlines()[1:]
    assert [n for line in found if (n := int(line.partition(":")[0])) <= len(lines)] == numbers


class Counted(str):
    __slots__ = ("finds",)

    def find(self, *args: Any) -> int:
        self.finds = getattr(self, "finds", 0) + 1
        return super().find(*args)


def test_a_line_is_found_by_its_number_in_time() -> None:
    lines = [f"{n}" * (n % 7) for n in range(3_000)]
    for number in (1, 2, 171, 1_000, 2_999, 3_000):
        shown = read("\n".join(lines), first_line=number, last_line=number)
        assert shown == f"[lines {number} to {number} of 3000]\n{lines[number - 1]}"
    text = Counted("\n" * 100_000)
    assert (_start_of(text, 99_999), _start_of(text, 100_002)) == (99_998, -1)
    assert text.finds < 3_000


def test_a_search_ends_in_time() -> None:
    ticks = iter(range(100))
    asked = wanted({"handle": "c", "pattern": "row"})
    text = read_part(success(ROWS), asked, 100_000, clock=lambda: next(ticks))
    assert "the search stopped after 2 s at line 3: use a simpler pattern" in text
    with within(5.0):
        for pattern in (r"(a+)+$", r"(a|aa)+$", r"(.*)*x", r"(\w+\s?)+$", r"([a-z]+)*\d"):
            read("a" * 2_000_000 + "!", pattern=pattern)


def test_a_search_ends_in_time_too_if_no_line_matches() -> None:
    ticks = iter(range(1000))
    asked = wanted({"handle": "c", "pattern": "2"})
    text = read_part(success("0101\n" * 100_000), asked, 100_000, clock=lambda: next(ticks))
    assert text.startswith("[the search stopped after 2 s at line ")


@each_case(
    "path, shown",
    [
        ("$.items[3].name", "[$.items[3].name is a text]\nthing 3"),
        ("items[-1].id", "[items[-1].id is a number]\n39"),
        ("""$['a key']["it's"]""", """[$['a key']["it's"] is a literal]\ntrue"""),
        (r"""$['a key']['it\'s']""", r"""[$['a key']['it\'s'] is a literal]""" + "\ntrue"),
        ("$.items[0:3].id", "[3 values of $.items[0:3].id, one a line]\n0\n1\n2"),
        ("$.items[-2:].id", "[2 values of $.items[-2:].id, one a line]\n38\n39"),
        ("$.items[1].*", '[3 values of $.items[1].*, one a line]\n1\n"thing 1"\n["a","b"]'),
        ("$.items[*].tags[0]", "[40 values of $.items[*].tags[0], one a line]\n" + "\n".join(['"a"'] * 40)),
        ("$.items[*].none", "[0 values of $.items[*].none, one a line]"),
        ("$.items[0].tags", '[$.items[0].tags is an array of 2 values]\n[\n "a",\n "b"\n]'),
    ],
)
def test_a_path_selects_values_of_parsed_json_and_of_json_text(path: str, shown: str) -> None:
    assert read(DATA, json_path=path) == shown
    assert read(json.dumps(DATA), json_path=path) == shown.replace('["a","b"]', '["a", "b"]')


@pytest.mark.parametrize("number", ["1e999", "9" * 5_000])
def test_a_number_that_python_cannot_hold_is_shown_as_it_was_written(number: str) -> None:
    text = f'{{"a": {number}, "b": [{number}]}}'
    assert read(text, 9_000, json_path="a") == f"[a is a number]\n{number}"
    assert read(text, 9_000, json_path="b[*]") == f"[1 values of b[*], one a line]\n{number}"
    assert refused(text, json_path="a.x") == ".x is not there: it is a number"
    assert read(number, 9_000, json_path="$") == f"[$ is a number]\n{number}"


def test_long_values_and_many_values_are_read_on() -> None:
    assert read(DATA, 1_000, json_path="$.note").startswith(
        "[$.note is a text; 2200 characters are left out at the end: go on with skip=800]\nxxx"
    )
    assert read(DATA, 1_000, json_path="$.note", skip=2_990) == "[$.note is a text]\n" + "x" * 10
    some = read(DATA, 500, json_path="$.items[*]")
    assert "there are more: go on with skip=7]" in some
    assert '"id":7' in read(DATA, 500, json_path="$.items[*]", skip=7).split("\n")[1]
    assert len(read(DATA, 500, json_path="$.*")) < 1_000


@pytest.mark.parametrize(
    ("opened", "closed"),
    [("[", "]"), ('["]\\"",', "]"), ('{"a":', "}")],
    ids=["arrays", "in strings", "objects"],
)
def test_long_json_that_is_deeply_nested_is_not_indented(opened: str, closed: str) -> None:
    deep = opened * 400 + "1" + closed * 400
    text = f"[{','.join([deep] * 100)}]"
    assert whole_text(success(text)) == text
    assert len(read(text, json_path="$", skip=len(text))) < 100


def test_long_json_is_indented_whatever_stands_in_its_strings() -> None:
    rows = [{"code": 'if (a["b\\"]) { [', "at": [[1, {"x": None}]]}] * 3_000
    assert json.loads(text := whole_text(success(json.dumps(rows)))) == rows
    assert text.count("\n") == 33_001


def test_json_is_laid_out_in_lines_and_errors_and_blocks_are_read_too() -> None:
    assert read({"a": [1, 2]}, first_line=3, last_line=3) == "[lines 3 to 3 of 6]\n  1,"
    one_line = json.dumps({"rows": [[number, "x" * 50] for number in range(100)]})
    assert "of 40" in read(one_line, last_line=1), "a JSON text of one line has lines too"
    assert read("{not json" + "x" * 5_000, last_line=1).startswith("[lines 1 to 1 of 1")
    failed = failure("no such file", "see the log\nbelow")
    assert whole_text(failed) == "Error: no such file\nsee the log\nbelow"
    blocks = [{"type": "text", "text": "a\nb"}, {"type": "image", "mimeType": "image/png", "data": "AAAA"}]
    assert whole_text(success(blocks)).startswith("a\nb\n{")
    assert "AAAA" not in whole_text(success(blocks))
