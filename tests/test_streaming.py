"""A reply's bytes to text: no half character is shown, and nothing of a stop text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata_cli.streaming import ReplyText


def streamed(pieces: list[bytes], stops: tuple[str, ...] = ()) -> tuple[list[str], ReplyText]:
    text = ReplyText(stops)
    shown = []
    for piece in pieces:
        shown.append(text.push(piece))
        if text.stopped:
            break
    shown.append(text.finish())
    return shown, text


def single(data: bytes) -> list[bytes]:
    return [data[i : i + 1] for i in range(len(data))]


@pytest.mark.parametrize("said", ["é", "漢字", "🙂🙃", "a🙂b", "e\u0301", "👩‍👩‍👧"])
def test_C55_a_character_of_several_tokens_comes_whole(said: str) -> None:
    shown, text = streamed(single(said.encode()))
    assert "".join(shown) == text.text == said
    assert "\ufffd" not in "".join(shown)
    assert shown[0] == ("a" if said[0] == "a" else "e" if said[0] == "e" else "")


def test_an_unfinished_character_becomes_one_mark_at_the_end() -> None:
    shown, text = streamed(single("ab🙂".encode()[:-1]))
    assert shown[-1] == "\ufffd" and text.text == "ab\ufffd"


def test_bytes_that_are_no_text_do_not_hold_back_what_follows() -> None:
    shown, _ = streamed([b"\xff", b"a", b"\xc3", b"b"])
    assert shown == ["\ufffd", "a", "", "\ufffdb", ""]


def test_a_stop_text_over_several_tokens_is_not_shown() -> None:
    shown, text = streamed([b"Hello ", b"<", b"EN", b"D", b">", b" more"], ("<END>",))
    assert text.stopped and text.text == "Hello " and "".join(shown) == "Hello "
    assert shown == ["Hello ", "", "", "", "", ""]


def test_what_only_looked_like_a_stop_is_shown() -> None:
    shown, text = streamed([b"a<", b"EN", b"x"], ("<END>",))
    assert not text.stopped and "".join(shown) == text.text == "a<ENx"
    shown, text = streamed([b"a<EN"], ("<END>",))
    assert "".join(shown) == "a<EN"


def test_the_earliest_stop_wins_and_nothing_follows_it() -> None:
    shown, text = streamed([b"one two three"], ("three", "two"))
    assert text.text == "one " and text.push(b"x") == "" and text.finish() == ""
    assert "".join(shown) == "one "


def test_a_stop_inside_a_multibyte_character_run() -> None:
    _, text = streamed(single("né漢。終わり".encode()), ("。終",))
    assert text.stopped and text.text == "né漢"


def test_an_empty_stop_is_none() -> None:
    shown, text = streamed([b"abc"], ("",))
    assert "".join(shown) == "abc" and not text.stopped


@given(
    st.text(max_size=40),
    st.lists(st.integers(1, 5), max_size=60),
    st.lists(st.text(min_size=1, max_size=3), max_size=3),
)
def test_any_split_gives_the_same_text(said: str, sizes: list[int], stops: list[str]) -> None:
    data, pieces = said.encode("utf-8", errors="replace"), []
    clean = data.decode()
    for size in sizes:
        pieces.append(data[:size])
        data = data[size:]
    shown, text = streamed([*pieces, data], tuple(stops))
    assert "".join(shown) == text.text
    places = [clean.find(stop) for stop in stops if stop in clean]
    if not places:
        assert text.text == clean
    else:
        # One that ends first may win over one that begins first: what is shown holds no whole stop and is a beginning.
        assert text.stopped and clean.startswith(text.text)
        assert not any(stop in text.text for stop in stops)
