import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata_cli.errors import UsageProblem
from strata_cli.sizes import format_age, format_bytes, format_duration, format_span, parse_age, parse_size


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("0GB", 0),
        ("1B", 1),
        ("100GB", 100_000_000_000),
        ("1gb", 1_000_000_000),
        ("1.5G", 1_500_000_000),
        ("1GiB", 2**30),
        ("512 KiB", 512 * 1024),
        (" 2 MB ", 2_000_000),
        ("0.5kB", 500),
        ("2TiB", 2 * 2**40),
    ],
)
def test_sizes_that_are_taken(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    "text",
    ["", " ", "10", "1", "-1", "-1GB", "+1GB", "1e-20", "1e300", "1e3MB", "ten", "nan", "NaNGB", "inf", "GB",
     "1XB", "1,5GB", "1_000MB", ".5GB", "5.GB", "0.0001B", "9223372036854775808B", "999999999TB", "1GB2",
     "\u0661GB", "0x10B", "1GB\n1", "none"],
)  # fmt: skip
def test_sizes_that_are_refused_with_the_form_in_the_hint(text: str) -> None:
    with pytest.raises(UsageProblem) as caught:
        parse_size(text)
    assert "100GB" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "age_s"),
    [("0", 0), ("45s", 45), ("1m", 60), ("30m", 1800), ("12h", 43200), ("90d", 90 * 86400),
     ("2w", 14 * 86400), ("3mo", 90 * 86400), ("1y", 365 * 86400), ("1.5h", 5400), ("7D", 7 * 86400)],
)  # fmt: skip
def test_ages_that_are_taken(text: str, age_s: int) -> None:
    assert parse_age(text) == age_s


@pytest.mark.parametrize("text", ["", "3", "-3d", "1e9d", "ten", "5min", "0.1s", "1001y", "d", "nan", "1GB"])
def test_ages_that_are_refused(text: str) -> None:
    with pytest.raises(UsageProblem):
        parse_age(text)


@given(st.text(max_size=30))
def test_any_text_gives_a_number_or_a_usage_problem(text: str) -> None:
    for parse in (parse_size, parse_age):
        try:
            assert parse(text) >= 0
        except UsageProblem as problem:
            assert problem.hint


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (3_400_000, "3.4 MB"), (27_000_000, "27 MB"),
     (650_000_000, "0.65 GB"), (99_960_000, "100 MB"), (1_050_000_000, "1.05 GB"), (9_999_000_000, "10 GB"),
     (12_345_000_000, "12.3 GB"),
     (100_000_000_000, "100 GB"), (2_500_000_000_000, "2.5 TB")],
)  # fmt: skip
def test_bytes_for_people(size_bytes: int, text: str) -> None:
    assert format_bytes(size_bytes) == text


@given(st.integers(0, 10**15))
def test_formatted_bytes_are_near_the_truth(size_bytes: int) -> None:
    assert abs(parse_size(format_bytes(size_bytes)) - size_bytes) <= size_bytes * 0.05


@pytest.mark.parametrize(
    ("duration_ms", "text"),
    [(0, "0 ms"), (146.4, "146 ms"), (1400, "1.4 s"), (48_000, "48 s"), (125_000, "2 min 5 s"),
     (3_725_000, "1 h 2 min")],
)  # fmt: skip
def test_durations_for_people(duration_ms: float, text: str) -> None:
    assert format_duration(duration_ms) == text


@pytest.mark.parametrize(
    ("age_s", "text"),
    [(-5, "just now"), (59, "just now"), (60, "1 min ago"), (7200, "2 h ago"), (3 * 86400, "3 d ago"),
     (65 * 86400, "2 mo ago"), (800 * 86400, "2 y ago")],
)  # fmt: skip
def test_ages_for_people(age_s: float, text: str) -> None:
    assert format_age(age_s) == text


@pytest.mark.parametrize(("span_s", "shown"), [(7776000, "90d"), (43200, "12h"), (1800, "30m"), (61, "61s"), (0, "0s")])
def test_a_span_is_shown_as_it_is_typed(span_s: int, shown: str) -> None:
    assert format_span(span_s) == shown
    if span_s >= 60 and span_s % 60 == 0:
        assert parse_age(shown) == span_s
