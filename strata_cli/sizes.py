"""Sizes and ages: what a person may type for them, and how a person reads them.

    size   NUMBER UNIT, or 0.   B, kB MB GB TB (1000; also K M G T), KiB MiB GiB TiB (1024), in any case
    age    NUMBER UNIT, or 0.   s, m (minutes), h, d, w, mo (30 days), y (365 days)

A bare number says no unit and is refused, except 0, which means zero and not "no limit". Nothing is guessed:
signs, exponents, thousands separators and words are refused. The formats are for people; JSON has numbers.
"""

import re
from collections.abc import Mapping

from .errors import UsageProblem

_NUMBER_UNIT = re.compile(r"\s*([0-9]{1,18})(?:\.([0-9]{1,18}))?\s*([A-Za-z]*)\s*", re.ASCII)

_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}
_SIZE_UNITS = (
    {"b": 1}
    | {letter: 1000**n for letter, n in _POWERS.items()}
    | {f"{letter}b": 1000**n for letter, n in _POWERS.items()}
    | {f"{letter}ib": 1024**n for letter, n in _POWERS.items()}
)
_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_AGE_UNITS = {
    "s": 1,
    "m": _MINUTE,
    "h": _HOUR,
    "d": _DAY,
    "w": 7 * _DAY,
    "mo": 30 * _DAY,
    "y": 365 * _DAY,
}
_LARGEST_BYTES = 2**63 - 1
_LARGEST_AGE_S = 1000 * 365 * _DAY

SIZE_HINT = "a size is a number with a unit: 500MB, 100GB, 1.5GiB, or 0"
AGE_HINT = "an age is a number with a unit: 30m (minutes), 12h, 90d, 2w, 3mo, 1y, or 0"


def parse_size(text: str) -> int:
    """Bytes. Raises UsageProblem, with a hint that shows the form."""
    return _parse(text, _SIZE_UNITS, "size", SIZE_HINT, _LARGEST_BYTES)


def parse_age(text: str) -> int:
    """Seconds. Raises UsageProblem, with a hint that shows the form."""
    return _parse(text, _AGE_UNITS, "age", AGE_HINT, _LARGEST_AGE_S)


def _parse(text: str, units: Mapping[str, int], what: str, hint: str, largest: int) -> int:
    match = _NUMBER_UNIT.fullmatch(text)
    if match is None:
        raise UsageProblem(f"{text!r} is not a valid {what}", hint=hint)
    places, unit = match[2] or "", match[3].lower()
    digits = int(match[1] + places)
    if not unit:
        if digits == 0:
            return 0
        raise UsageProblem(f"{text!r} has no unit", hint=hint)
    if unit not in units:
        raise UsageProblem(f"{text!r} has no known unit", hint=hint)
    value: int = digits * units[unit] // 10 ** len(places)
    if value > largest:
        raise UsageProblem(f"{text!r} is larger than any {what} can be", hint=hint)
    if value == 0 and digits != 0:
        raise UsageProblem(f"{text!r} is less than the smallest {what} and not 0", hint=hint)
    return value


def format_bytes(size_bytes: int) -> str:
    """`812 B`, `3.4 MB`, `0.65 GB`: decimal units, three digits."""
    if size_bytes < 1000:
        return f"{size_bytes} B"
    for unit, scale, least in (("TB", 10**12, 1.0), ("GB", 10**9, 0.1), ("MB", 10**6, 1.0)):
        if size_bytes >= least * scale:
            return f"{_three_digits(size_bytes / scale)} {unit}"
    return f"{_three_digits(size_bytes / 1000)} kB"


def _three_digits(value: float) -> str:
    # 9.96 must not become 10.0 in one place and 9.96 in another: the digits follow from the rounded value.
    if round(value, 2) < 10:
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return f"{value:.1f}".removesuffix(".0") if round(value, 1) < 100 else f"{value:.0f}"


def format_duration(duration_ms: float) -> str:
    """`146 ms`, `1.4 s`, `48 s`, `2 min 5 s`, `1 h 2 min`."""
    if duration_ms < 1000:
        return f"{duration_ms:.0f} ms"
    seconds = duration_ms / 1000
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE} s"
    return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE} min"


def format_span(span_s: float) -> str:
    """A span as `parse_age` takes it: `90d`, `12h`, `30m`; in seconds where it is no whole number of minutes."""
    for unit, scale in (("d", _DAY), ("h", _HOUR), ("m", _MINUTE)):
        if span_s >= scale and span_s % scale == 0:
            return f"{int(span_s // scale)}{unit}"
    return f"{span_s:,.0f}s"


def format_age(age_s: float) -> str:
    """`just now`, `5 min ago`, `2 h ago`, `3 d ago`, `2 y ago`; `just now` also after a clock set back."""
    units = (
        ("y", _AGE_UNITS["y"]),
        ("mo", _AGE_UNITS["mo"]),
        ("d", _DAY),
        ("h", _HOUR),
        ("min", _MINUTE),
    )
    for unit, scale in units:
        if age_s >= scale:
            return f"{int(age_s // scale)} {unit} ago"
    return "just now"
