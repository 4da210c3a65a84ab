"""Names: refused with a reason before anything is touched, and found again by a beginning."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata_cli.errors import NotFound, UsageProblem
from strata_cli.names import (
    automatic_name,
    check_name,
    is_automatic,
    key_of,
    resolve,
    same_but_for_case,
)

NOT_NAMES = [
    "",
    " ",
    ".",
    "..",
    "../x",
    "/abs",
    "a/b",
    "a\\b",
    "-rf",
    "--help",
    "a\nb",
    "a\n",
    "a\0b",
    "a\tb",
    "a" * 65,
    "a" * 300,
    "😀" * 200,
    "x ",
    "_x",
    "٣",
    "é",
]


@pytest.mark.parametrize("text", NOT_NAMES, ids=ascii)
def test_what_is_no_name_is_refused_harmlessly(text: str) -> None:
    with pytest.raises(UsageProblem) as caught:
        check_name(text)
    assert caught.value.message.isprintable() and len(caught.value.message) < 1100


@pytest.mark.parametrize("text", ["a", "9", "con", "x.", "A-b_c.d", "a" * 64, "auto-0123456789abcdef"])
def test_names_stay_as_they_are(text: str) -> None:
    assert check_name(text) == text


@given(st.text())
def test_no_name_leaves_its_folder(text: str) -> None:
    try:
        name = check_name(text)
    except UsageProblem:
        return
    assert name == text and "/" not in name and not name.startswith((".", "-")) and name.isascii()


def test_automatic_names() -> None:
    key = key_of("hello")
    assert key == hashlib.sha1(b"hello").hexdigest()[:16]
    assert automatic_name(key) == automatic_name(key, 1) == f"auto-{key}"
    assert automatic_name(key, 2) == f"auto-{key}-2"
    assert is_automatic(automatic_name(key)) and is_automatic(automatic_name(key, 12))
    assert not any(map(is_automatic, ["auto-x", f"auto-{key}-1x", f"auto-{key}-0", f"xauto-{key}", "auto"]))
    assert len(key_of("\ud800")) == 16


NAMES = ["notes", "notebook", "auto-0123456789abcdef", "auto-0123456789abcdef-2", "auto-99", "ab"]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("notes", "notes"),
        ("ab", "ab"),
        ("noteb", "notebook"),
        ("auto-0123456789abcdef", "auto-0123456789abcdef"),
        ("0123456789abcdef-", "auto-0123456789abcdef-2"),
        ("auto-9", "auto-99"),
    ],
)
def test_resolve(text: str, name: str) -> None:
    assert resolve(text, NAMES) == name


def test_an_ambiguous_beginning_lists_the_candidates() -> None:
    with pytest.raises(UsageProblem) as caught:
        resolve("note", NAMES)
    assert caught.value.hint == "notebook, notes"
    with pytest.raises(UsageProblem, match="2 names"):
        resolve("0123", NAMES)


@pytest.mark.parametrize("text", ["not", "zzzz", "99xx", "NOTES"])
def test_what_begins_nothing_is_not_found(text: str) -> None:
    with pytest.raises(NotFound):
        resolve(text, NAMES)


def test_names_differ_by_more_than_case() -> None:
    assert same_but_for_case("Notes", NAMES) == "notes"
    assert same_but_for_case("notes", NAMES) is None
