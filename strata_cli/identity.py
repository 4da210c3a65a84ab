"""What must be equal for state to mean the same, its digest, and the hashes that name token prefixes.

It owns canonical JSON (the one text form that is hashed and stored) and the prefix hash. Where the facts of
an identity come from is the engine's business; what to do about a difference is decided above.
"""

import json
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from blake3 import blake3

from .errors import Bad

Json = Any
PREFIX_HASH_CHARS = 32
CHECK_BYTES = len(b',"check":"0123456789abcdef"}')


def canonical_json(value: Json) -> bytes:
    """The one JSON text of a value: sorted keys, no spaces, UTF-8. Raises Bad for what JSON cannot hold."""
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        return text.encode()
    except UnicodeEncodeError:
        # Half a surrogate pair has no UTF-8 form: such a value is written with escapes throughout.
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise Bad(f"a value cannot be written as JSON: {error}") from error


def checked_json(value: Mapping[str, Json]) -> bytes:
    """The canonical JSON of an object with a last key `check`: 16 hex digits of the blake3 of the text without it."""
    body = canonical_json(value)
    return body[:-1] + b',"check":"' + _check_of(body) + b'"}'


def has_check(data: bytes) -> bool:
    """Whether `data` is what `checked_json` made: no bit of it has changed."""
    if data[-2:] != b'"}' or data[-CHECK_BYTES : 10 - CHECK_BYTES] != b',"check":"':
        return False
    hasher = blake3(memoryview(data)[:-CHECK_BYTES])  # nothing is copied: thousands of heads are checked in a row
    hasher.update(b"}")
    return hasher.hexdigest(length=8).encode() == data[10 - CHECK_BYTES : -2]


def _check_of(body: bytes) -> bytes:
    return blake3(body).hexdigest(length=8).encode()


def parse_json(data: bytes | str, what: str) -> Json:
    """The value of a JSON text. Raises Bad, naming `what`, for every malformed one."""
    try:
        return _DECODER.decode(data if isinstance(data, str) else data.decode())
    except (ValueError, RecursionError) as error:
        raise Bad(f"{what}: not JSON: {error}") from error


def parse_json_whole(text: str, what: str) -> Json:
    """The same of a text without blanks around its value, sooner. Raises Bad for blanks, too."""
    try:
        value, end = _DECODER.raw_decode(text)
    except (ValueError, RecursionError) as error:
        raise Bad(f"{what}: not JSON: {error}") from error
    if end != len(text):
        raise Bad(f"{what}: not JSON: it goes on at {end}")
    return value


def _no_constant(name: str) -> Json:
    raise ValueError(f"{name} is no JSON number")


_DECODER = json.JSONDecoder(parse_constant=_no_constant)


@dataclass(frozen=True)
class Identity:
    """All that must be equal for state to mean the same (docs: "Identity" in the design).

    `weights` is "b3:" and 64 hex digits; `adapters` pairs each adapter's digest with its scale; `rope` holds
    the frequencies and the factors in force; `layout` what else shapes a row.
    """

    weights: str
    adapters: tuple[tuple[str, float], ...]
    cache_type_k: str
    cache_type_v: str
    v_transposed: bool
    rope: Mapping[str, Json]
    state_format: int
    layout: Mapping[str, Json]

    def fields(self) -> dict[str, Json]:
        """The identity as JSON values, one entry a field."""
        return {
            "weights": self.weights,
            "adapters": [[digest, float(scale)] for digest, scale in self.adapters],
            "cache_type_k": self.cache_type_k,
            "cache_type_v": self.cache_type_v,
            "v_transposed": self.v_transposed,
            "rope": dict(self.rope),
            "state_format": self.state_format,
            "layout": dict(self.layout),
        }

    @cached_property
    def digest(self) -> bytes:
        """32 bytes: the blake3 of the canonical JSON of the fields."""
        return digest_of(self.fields())

    @property
    def short(self) -> str:
        """The first 16 hex digits of the digest."""
        return self.digest.hex()[:16]

    def __hash__(self) -> int:
        return hash(self.digest)


def digest_of(fields: Mapping[str, Json]) -> bytes:
    """The digest of an identity's fields: 32 bytes."""
    return blake3(canonical_json(fields)).digest()


def from_fields(fields: Json) -> Identity:
    """The identity that `Identity.fields` described. Raises Bad where one is missing or of a wrong type."""
    if not isinstance(fields, dict):
        raise Bad("an identity is not a JSON object")
    for name, kind in _FIELD_TYPES.items():
        if type(fields.get(name)) is not kind:
            raise Bad(f"identity: {name!r} is missing or of a wrong type")
    adapters = tuple(_adapter(pair) for pair in fields["adapters"])
    return Identity(**{name: fields[name] for name in _FIELD_TYPES if name != "adapters"}, adapters=adapters)


_FIELD_TYPES = {
    "weights": str,
    "adapters": list,
    "cache_type_k": str,
    "cache_type_v": str,
    "v_transposed": bool,
    "rope": dict,
    "state_format": int,
    "layout": dict,
}


def _adapter(pair: Json) -> tuple[str, float]:
    if isinstance(pair, list) and len(pair) == 2:
        digest, scale = pair
        if isinstance(digest, str) and type(scale) in (int, float) and abs(scale) <= sys.float_info.max:
            return digest, float(scale)
    raise Bad("identity: an adapter is not a digest and a scale")


_FLAGS = {
    "weights": "-m with the file that made it",
    "adapters": "--lora",
    "cache_type_k": "--cache-type-k",
    "cache_type_v": "--cache-type-v",
    "rope.freq_base": "--rope-freq-base",
    "rope.freq_scale": "--rope-freq-scale",
    "rope.factors": "--ctx-size",
}
_NO_VALUE = frozenset({"weights", "adapters", "rope.factors"})


@dataclass(frozen=True)
class Difference:
    """One field in which two identities differ; a value that one of them lacks is None."""

    field: str
    saved: Json
    current: Json

    def __str__(self) -> str:
        return f"{self.field}: saved {_shown(self.saved)}, now {_shown(self.current)}"

    @property
    def remedy(self) -> str:
        """The option under which the saved state would match, "" where no option can bring it back."""
        if self.field == "v_transposed":
            return f"--flash-attn {'off' if self.saved else 'on'}"
        flag = _FLAGS.get(self.field, "")
        return flag if self.field in _NO_VALUE or not flag else f"{flag} {_shown(self.saved)}"


def _shown(value: Json) -> str:
    if value is None:
        return "nothing"
    # ASCII with escapes: names in an identity may come from a foreign file.
    text = value if isinstance(value, str) and value.isascii() and value.isprintable() else json.dumps(value)
    return text if len(text) <= 40 else text[:39] + "…"


def differences(saved: Mapping[str, Json], current: Mapping[str, Json]) -> list[Difference]:
    """Where two identities' fields differ, one by one; those inside `rope` and `layout` are dotted."""
    old, new = flat_fields(saved), flat_fields(current)
    names = sorted(old.keys() | new.keys())
    return [Difference(name, old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)]


def flat_fields(fields: Mapping[str, Json]) -> dict[str, Json]:
    """The fields one by one: those inside `rope` and `layout` are dotted."""
    flat: dict[str, Json] = {}
    for name, value in fields.items():
        if isinstance(value, Mapping):
            flat.update({f"{name}.{key}": inner for key, inner in value.items()})
        else:
            flat[name] = value
    return flat


def token_bytes(tokens: Sequence[int]) -> bytes:
    """Token ids as consecutive u32, little-endian. Raises Bad for an id that is not one."""
    try:
        words = tokens if isinstance(tokens, array) and tokens.typecode == "I" else array("I", tokens)
    except (TypeError, OverflowError, ValueError) as error:
        raise Bad(f"a token id is not a whole number from 0 to 4294967295: {error}") from error
    if sys.byteorder == "big":
        words = array("I", words)
        words.byteswap()
    return words.tobytes()


def tokens_from_bytes(data: bytes) -> "array[int]":
    """The inverse of `token_bytes`; `data` is a whole number of words."""
    words = array("I")
    words.frombytes(data)
    if sys.byteorder == "big":
        words.byteswap()
    return words


def prefix_hashes(identity_digest: bytes, tokens: Sequence[int], positions: Iterable[int]) -> dict[int, str]:
    """The name of tokens [0, k) under an identity, for each k of `positions` that is in 0..len(tokens).

    32 hex digits: the first 16 bytes of blake3(identity digest, then the ids as u32 little-endian). One pass.
    """
    data = memoryview(token_bytes(tokens))
    hasher = blake3(identity_digest)
    done = 0
    found: dict[int, str] = {}
    for position in sorted({k for k in positions if 0 <= k <= len(tokens)}):
        hasher.update(data[4 * done : 4 * position])
        done = position
        found[position] = hasher.hexdigest(length=PREFIX_HASH_CHARS // 2)
    return found
