import time

import pytest

from grue.sandbox.gate import Refusal
from grue.sandbox.kernel import READ, WRITE, Rule
from grue.sandbox.refusals import refusals

RULES = (Rule("/usr", READ), Rule("/srv/open", READ | WRITE))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "PermissionError: [Errno 13] Permission denied: '/etc/shadow'",
            'read /etc/shadow. To allow it: "read"',
        ),
        (
            "Error: EACCES: permission denied, open '/home/u/a b.txt'",
            'read /home/u/a b.txt. To allow it: "read"',
        ),
        ("EACCES: permission denied, mkdir '/srv/x'", 'write /srv/x. To allow it: "write": ["/srv/x"]'),
        ("touch: cannot touch '/usr/x': Permission denied", 'write /usr/x. To allow it: "write"'),
        ("cat: /etc/shadow: Permission denied", 'read /etc/shadow. To allow it: "read": ["/etc/shadow"]'),
        ("open(/etc/shadow): Operation not permitted.", "read /etc/shadow."),
        ("PermissionError: [Errno 13] Permission denied: '/usr/lib/x.pyc'", "write /usr/lib/x.pyc"),
    ],
)
def test_a_path_beside_a_refusal_is_named_with_the_entry_to_add(text: str, said: str) -> None:
    (found,) = refusals(text, RULES, (), network="none")
    assert said in found


@pytest.mark.parametrize(
    "text",
    ["", "all well with '/etc/shadow'", "EACCES: permission denied, open '/srv/open/x'", "Permission denied"],
)
def test_what_is_no_refusal_of_the_box_is_not_blamed_on_it(text: str) -> None:
    assert refusals(text, RULES, (), network="none") == ()


def test_connections_and_names_are_explained() -> None:
    refused = Refusal("a.example:443", "it is not in the box's list of hosts", "a.example:443")
    (found,) = refusals("", RULES, (refused,), network="hosts")
    assert found.endswith('To allow it: "network": ["a.example:443"]')
    names = "getaddrinfo EAI_AGAIN api.example"
    assert "gives it no network" in refusals(names, RULES, (), network="none")[0]
    assert "does not use the proxy" in refusals(names, RULES, (), network="hosts")[0]
    assert refusals(names, RULES, (), network="any") == ()


def test_hostile_text_is_bounded() -> None:
    """Each line is searched once, however many paths it names: otherwise this takes seven seconds of CPU."""
    text = (
        "\n".join(f"Permission denied: '/x/{number}'" for number in range(20_000))
        + "Permission denied '/" * 99_999
    )
    began = time.thread_time()
    assert len(refusals(text, RULES, (), network="none")) <= 5
    assert time.thread_time() - began < 2
