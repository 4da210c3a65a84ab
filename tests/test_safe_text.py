import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata_cli.safe_text import SafeStream, one_line, safe_text

ANY_TEXT = st.text(st.characters(codec=None) | st.sampled_from("\r\n\t\x1b\x9b\u202e\ud800"), max_size=40)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J", "\\x1b[2J"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("\x9b31m", "\\x9b31m"),
        ("a\x00\x7f", "a\\x00\\x7f"),
        ("over\rwrite", "over\\x0dwrite"),
        ("dos\r\nline", "dos\nline"),
        ("\u202egpj.exe", "\\u202egpj.exe"),
        ("\udc80", "\\udc80"),
        ("tab\tand\nnewline stay", "tab\tand\nnewline stay"),
        ("[bold]x[/] :smile: \\[", "[bold]x[/] :smile: \\["),
        ("\U0001f468\u200d\U0001f469 한국어 \u05d0\u200f", "\U0001f468\u200d\U0001f469 한국어 \u05d0\u200f"),
    ],
)
def test_what_is_shown(text: str, shown: str) -> None:
    assert safe_text(text) == shown


@given(ANY_TEXT)
def test_nothing_is_left_that_a_terminal_would_obey(text: str) -> None:
    shown = safe_text(text)
    assert not [c for c in shown if unicodedata.category(c) in ("Cc", "Cs") and c not in "\n\t"]
    shown.encode()


@given(st.lists(ANY_TEXT, max_size=6))
def test_pieces_give_what_the_whole_gives(pieces: list[str]) -> None:
    stream = SafeStream()
    assert "".join([*map(stream.feed, pieces), stream.end()]) == safe_text("".join(pieces))


@given(ANY_TEXT)
def test_one_line_is_one_line(text: str) -> None:
    assert len(one_line(text).splitlines()) <= 1
