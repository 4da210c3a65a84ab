"""State of another identity is never used: each field of the identity, on the real engine.

For every field: no byte of the other's state reaches the engine, the turn is read with a warning that names both
sides, `--strict` refuses, nothing is deleted, and the original setting restores again. Rows B13, cases C02, C11, C13,
C16, N06, N07.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3
from chats import Talk, cold
from faulty_files import tree
from turns import Forked, Turns, fork_server, forked

from strata_cli.engine import EngineOptions, Rebuild
from strata_cli.errors import Refused
from strata_cli.llama_engine import load
from strata_cli.llama_engine.binding import llama
from strata_cli.llama_engine.live import LlamaEngine
from strata_cli.verify import verify

TEXTS = ["The first question.", "The second question."]


def digest(path: Path) -> str:
    return "b3:" + blake3(path.read_bytes()).hexdigest()


class Loader:
    """Engines by family, seed and options, each loaded once."""

    def __init__(self, tiny: Callable[..., Path]) -> None:
        self.tiny = tiny
        self._loaded: dict[str, LlamaEngine] = {}

    def __call__(self, seed: int = 0, family: str = "llama", **options: Any) -> LlamaEngine:
        key = f"{family} {seed} {options}"
        if key not in self._loaded:
            path = self.tiny(family, seed)
            settings = EngineOptions(**{"ctx_size": 1024, "threads": 1, **options})
            adapters = [digest(Path(adapter)) for adapter, _ in settings.loras or ()]
            self._loaded[key] = load(path, settings, digest=digest(path), adapter_digests=adapters)
        return self._loaded[key]

    def close(self) -> None:
        for engine in self._loaded.values():
            engine.close()


__all__ = ["fork_server", "forked"]  # fixtures


@pytest.fixture(scope="module")
def loader(tiny: Callable[..., Path]) -> Iterator[Loader]:
    found = Loader(tiny)
    yield found
    found.close()


@dataclass(frozen=True)
class Other:
    """A change of one field, and how the warning names it."""

    field: str
    options: Mapping[str, Any]
    says: tuple[str, ...]
    saved: Mapping[str, Any] | None = None
    family: str = "llama"


CHANGES = [
    Other("weights", {"seed": 1}, ("weights: saved b3:", "now b3:")),
    Other("adapters", {"loras": 1.0}, ("adapters: saved []", "--lora")),
    Other("adapters gone", {"loras": 0.0}, ("now []", "--lora"), saved={"loras": 1.0}),
    Other("adapter's scale", {"loras": 0.5}, ("adapters: saved",), saved={"loras": 1.0}),
    Other("cache_type_k", {"cache_type_k": "q8_0"}, ("cache_type_k: saved f16, now q8_0", "--cache-type-k f16")),
    Other(
        "cache_type_v",
        {"cache_type_v": "q8_0", "flash_attn": "on"},
        ("cache_type_v: saved f16, now q8_0", "--cache-type-v f16"),
        saved={"flash_attn": "on"},
    ),
    Other(
        "both cache types",
        {"cache_type_k": "q8_0", "cache_type_v": "q8_0"},
        ("--cache-type-k f16 --cache-type-v f16",),
        saved={"flash_attn": "on"},
    ),
    Other(
        "flash on",
        {"flash_attn": "on"},
        ("v_transposed: saved true, now false", "--flash-attn off"),
        saved={"flash_attn": "off"},
    ),
    Other(
        "flash off",
        {"flash_attn": "off"},
        ("v_transposed: saved false, now true", "--flash-attn on"),
        saved={"flash_attn": "on"},
    ),
    Other("rope.freq_base", {"rope_freq_base": 5e5}, ("rope.freq_base: saved 0.0, now 500000.0",)),
    Other("rope.freq_scale", {"rope_freq_scale": 0.5}, ("rope.freq_scale: saved 0.0, now 0.5",)),
    Other("hybrid", {"cache_type_k": "q8_0"}, ("cache_type_k: saved f16, now q8_0",), family="lfm2"),
]


def with_lora(options: Mapping[str, Any], loader: Loader) -> dict[str, Any]:
    """A scale stands for the one tiny adapter with that scale, 0 for none."""
    found = dict(options)
    if "loras" in found:
        found["loras"] = ((str(loader.tiny("lora")), found["loras"]),) if found["loras"] else ()
    return found


@pytest.mark.parametrize("other", CHANGES, ids=lambda other: other.field)
def test_B13_C13_N06_N07_each_field_of_the_identity(
    other: Other, loader: Loader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "s"
    one = loader(family=other.family, **with_lora(other.saved or {}, loader))
    two = loader(family=other.family, **with_lora({**(other.saved or {}), **other.options}, loader))
    assert one.identity.digest != two.identity.digest
    with Talk(one, root).open("talk") as talk:
        talk.say_all(TEXTS)
    before = tree(root / "segments")
    applied: list[Rebuild] = []
    monkeypatch.setattr(two, "rebuild", applied.append)
    right = cold(two, root, tmp_path / "cold", "talk", "And now?")
    with Talk(two, root).open("talk") as talk:
        with pytest.raises(Refused) as caught:
            talk.say("And now?", strict=True)
        assert caught.value.exit_code == 13 and caught.value.reason == "identity"
        result = talk.say("And now?")
    assert applied == [] and result.reused_tokens == 0 and result.source == "none"
    assert result.not_reused is not None and result.not_reused.code == "identity"
    assert right.allows(two, result.reply_tokens)
    assert all(any(text in warning for warning in talk.warnings) for text in other.says), talk.warnings
    assert before.items() <= tree(root / "segments").items()
    monkeypatch.undo()
    for engine in (one, two):
        with Talk(engine, root).open("talk") as talk:
            result = talk.say("Go on.")
        assert result.source == "disk" and result.reused_tokens > 60, "alternating settings lost state"
    assert verify(talk.store, None, lambda done, total: None).bad == ()


def test_N07_the_context_size_is_no_part_of_it(loader: Loader, tmp_path: Path) -> None:
    with Talk(loader(ctx_size=512), tmp_path).open("talk") as talk:
        talk.say_all(TEXTS)
    with Talk(loader(ctx_size=2048), tmp_path).open("talk") as talk:
        result = talk.say("And now?")
    assert result.source == "disk" and result.not_reused is None and talk.warnings == []


@pytest.mark.parametrize("version", [2, 4, 99])
def test_C11_B13_state_of_another_engine_format(
    version: int, loader: Loader, tmp_path: Path, tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The conversation goes on by reading, is stored once in the new format, and the old state stays."""
    path = tiny("llama")
    monkeypatch.setattr(llama(), "LLAMA_STATE_SEQ_VERSION", version)
    older = load(path, EngineOptions(ctx_size=1024, threads=1), digest=digest(path))
    monkeypatch.undo()
    try:
        with Talk(older, tmp_path).open("talk") as talk:
            talk.say_all(TEXTS)
        before = tree(tmp_path / "segments")
        with Talk(loader(), tmp_path).open("talk") as talk:
            result = talk.say("And now?")
        assert result.not_reused is not None and result.not_reused.code == "identity"
        assert f"state_format: saved {version}, now 3" in result.not_reused.message
        assert result.reused_tokens == 0 and before.items() <= tree(tmp_path / "segments").items()
        found = verify(talk.store, None, lambda done, total: None)
        assert found.bad == () and found.notes == ()
        with Talk(loader(), tmp_path).open("talk") as talk:
            result = talk.say("Once more.")
        assert result.not_reused is None and result.source == "disk" and talk.warnings == []
        with Talk(older, tmp_path).open("talk") as talk:
            assert talk.say("Back again.").source == "disk"
    finally:
        older.close()


@pytest.fixture
def turns(forked: Forked, tiny: Callable[..., Path], tmp_path: Path) -> Turns:
    """A model at a path of its own, which tests may replace."""
    shutil.copy(tiny("llama"), tmp_path / "model.gguf")
    return Turns(forked, tmp_path / "model.gguf")


def test_C02_other_weights_at_the_same_path_with_the_same_size_and_time(
    turns: Turns, tiny: Callable[..., Path]
) -> None:
    turns.say("talk", "The first question.")
    turns.say("talk", "The second question.")
    facts = turns.model.stat()
    shutil.copy(tiny("llama", 1), turns.model)
    os.utime(turns.model, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert turns.model.stat().st_size == facts.st_size
    before = tree(turns.strata.home / "data" / "segments")
    planned = turns.run("-C", "talk", "--plan", "And now?", code=0).envelope
    assert planned["data"]["not_reused"]["code"] == "identity" and planned["data"]["tokens"]["reused"] == 0
    assert any("weights: saved b3:" in warning for warning in planned["warnings"])
    assert turns.run("-C", "talk", "--plan", "--strict", "And now?", code=13).envelope["error"]["code"] == "refused"
    refused = turns.run("-C", "talk", "--strict", "And now?", code=13).envelope
    assert refused["error"]["code"] == "refused" and "weights: saved b3:" in refused["error"]["message"]
    result = turns.run("-C", "talk", "And now?", code=0).envelope
    assert result["data"]["tokens"]["reused"] == 0
    assert result["data"]["restore"]["not_reused"]["code"] == "identity"
    assert any("weights: saved b3:" in warning for warning in result["warnings"])
    assert before.items() <= tree(turns.strata.home / "data" / "segments").items()


def test_C02_the_same_model_moved_or_renamed_restores(turns: Turns, tmp_path: Path) -> None:
    turns.say("talk", "The first question.")
    moved = tmp_path / "elsewhere" / "other name.gguf"
    moved.parent.mkdir()
    turns.model.rename(moved)
    gone = turns.strata("run", "-C", "talk", "x", "--json", env=turns.env, code=14).envelope
    assert str(turns.model) in gone["error"]["message"]
    result = Turns(turns.strata, moved).say("talk", "The second question.")
    assert result["restore"]["from"] == "disk" and result["restore"]["not_reused"] is None


def test_C02_the_same_weights_with_another_template_are_another_model(turns: Turns, tiny: Callable[..., Path]) -> None:
    turns.say("talk", "The first question.")
    template = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}<|im_start|>"
    result = Turns(turns.strata, tiny("llama", 0, template)).say("talk", "The second question.")
    assert result["tokens"]["reused"] == 0 and result["restore"]["from"] == "none"
