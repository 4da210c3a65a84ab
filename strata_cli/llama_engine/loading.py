"""From a GGUF file and options to a live engine, or to an error that says what is wrong with them.

Owns parameters, the identity of what was loaded, and the refusal of models whose state strata cannot keep apart.
"""

import ctypes
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..engine import EngineOptions, Memory, ModelFacts
from ..errors import Interrupted, ModelUnavailable, NoRoom, Refused, UsageProblem
from ..identity import Identity
from ..state_shape import Shape, learn
from .binding import LOG, llama
from .gguf import check_gguf, has_long_factors
from .live import LlamaEngine
from .state import PARTIAL, PREFIX_BYTES, WHOLE, SequenceState
from .template import JinjaTemplate, choose_template
from .vocabulary import LlamaVocabulary

CACHE_TYPES = {
    "f32": 0, "f16": 1, "bf16": 30, "q8_0": 8, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "iq4_nl": 20,
}  # fmt: skip
SPLIT_MODES = {"none": 0, "layer": 1, "row": 2, "tensor": 3}
FLASH_ATTENTION = {"on": 1, "off": 0, "auto": -1}
DEFAULT_CONTEXT_TOKENS, DEFAULT_BATCH_TOKENS, MICRO_BATCH_TOKENS = 8192, 512, 512
CONTEXT_STEP_TOKENS = 256  # llama.cpp rounds a context up to this
REFUSED_ARCHITECTURES = {"deepseek4": "it aborts the process when a range of its memory is copied"}


@dataclass
class Handles:
    """The C objects of one engine, freed in order and once."""

    model: Any = None
    context: Any = None
    adapters: list[Any] = field(default_factory=list)

    def free(self) -> None:
        lc = llama()
        if self.context:
            lc.llama_free(self.context)
        for adapter in self.adapters:
            lc.llama_adapter_lora_free(adapter)
        if self.model:
            lc.llama_model_free(self.model)
        self.model = self.context = None
        self.adapters = []

    def free_context(self) -> None:
        if self.context:
            llama().llama_free(self.context)
            self.context = None


def load(
    path: Path,
    options: EngineOptions,
    *,
    digest: str,
    adapter_digests: Sequence[str] = (),
    log_path: Path | None = None,
    progress: Callable[[float], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
    echo: bool = False,
) -> LlamaEngine:
    """Load a GGUF. `digest` and `adapter_digests` are the files' contents, which the caller has computed.

    llama.cpp's log goes to `log_path`, and to stderr too with `echo`. A load that is `cancelled` raises Interrupted.
    Raises ModelUnavailable (missing, not a GGUF, truncated, no binding), Refused (an architecture that breaks the
    recipe), UsageProblem (options that exclude each other), NoRoom (no memory for the context).
    """
    check_gguf(path)
    lc = _binding()
    if log_path is not None:
        LOG.to_file(log_path)
    LOG.echo = echo
    check_options(options)
    handles = Handles()
    try:
        stopped = cancelled or (lambda: False)
        notes = _load_model(lc, handles, path, options, _progress_callback(lc, progress, stopped), stopped)
        facts = _facts(lc, handles.model, path, notes)
        _refuse(lc, handles.model, facts)
        context_tokens = _open_context(lc, handles, options, facts)
        _load_adapters(lc, handles, options)
        _attach_adapters(lc, handles, options)
        return _engine(lc, handles, options, facts, context_tokens, digest, adapter_digests)
    except BaseException:
        handles.free()
        raise


def load_vocabulary(path: Path, *, log_path: Path | None = None) -> tuple[LlamaVocabulary, JinjaTemplate]:
    """Only the tokenizer and the chat template of a GGUF, without its weights. Raises ModelUnavailable."""
    check_gguf(path)
    lc = _binding()
    if log_path is not None:
        LOG.to_file(log_path)
    params = lc.llama_model_default_params()
    params.vocab_only = True
    model = lc.llama_model_load_from_file(os.fsencode(path), params)
    if not model:
        raise ModelUnavailable(f"{path}: the vocabulary cannot be loaded: {LOG.reason()}")
    vocabulary = LlamaVocabulary(lc.llama_model_get_vocab(model))
    return vocabulary, _template(lc, model, vocabulary)


def _template(lc: Any, model: Any, vocabulary: LlamaVocabulary) -> JinjaTemplate:
    bos, eos = (
        vocabulary.special_text(int(token))
        for token in (vocabulary.bos, lc.llama_vocab_eos(lc.llama_model_get_vocab(model)))
    )
    text = lc.llama_model_chat_template(model, None)
    return choose_template(text.decode(errors="replace") if text else None, bos, eos)


def check_options(options: EngineOptions) -> None:
    """Raises UsageProblem for names that are none and for pairs that llama.cpp cannot open."""
    for flag, value, known in (
        ("--cache-type-k", options.cache_type_k, CACHE_TYPES),
        ("--cache-type-v", options.cache_type_v, CACHE_TYPES),
        ("--split-mode", options.split_mode, SPLIT_MODES),
        ("--flash-attn", options.flash_attn, FLASH_ATTENTION),
    ):
        if value is not None and value not in known:
            raise UsageProblem(f"{flag} {value}: not one of {', '.join(known)}")
    quantised = (options.cache_type_v or "f16") not in ("f16", "f32", "bf16")
    if quantised and options.flash_attn == "off":
        raise UsageProblem("--cache-type-v needs flash attention when it is quantised", hint="--flash-attn on")


def _binding() -> Any:
    try:
        return llama()
    except Exception as error:  # a broken shared library raises OSError, RuntimeError or ImportError
        raise ModelUnavailable(
            f"llama-cpp-python cannot be loaded: {error}",
            hint="reinstall it: pip install --force-reinstall llama-cpp-python",
        ) from error


def _load_model(
    lc: Any, handles: Handles, path: Path, options: EngineOptions, progress: Any, cancelled: Callable[[], bool]
) -> tuple[str, ...]:
    """Load the weights, with fewer layers on the GPU where all do not fit: at most four tries.

    Raises Interrupted where it was `cancelled`, which llama.cpp reports as a file that cannot be loaded.
    """
    notes: list[str] = []
    for layers in _gpu_tries(lc, options):
        params = lc.llama_model_default_params()
        params.n_gpu_layers = layers
        if options.split_mode is not None:
            params.split_mode = SPLIT_MODES[options.split_mode]
        params.main_gpu = options.main_gpu or 0
        if options.tensor_split:
            shares = (ctypes.c_float * lc.llama_max_devices())(*options.tensor_split)
            params.tensor_split = shares
        params.progress_callback = progress
        handles.model = lc.llama_model_load_from_file(os.fsencode(path), params)
        if cancelled():
            raise Interrupted("interrupted while the model was loaded")
        if handles.model:
            return tuple(notes)
        reason = LOG.reason()
        notes.append(f"{layers} layers did not fit the GPU")
    raise ModelUnavailable(f"{path}: cannot be loaded: {reason or 'llama.cpp gives no reason'}")


def _gpu_tries(lc: Any, options: EngineOptions) -> list[int]:
    if not lc.llama_supports_gpu_offload() or options.gpu_layers == 0:
        return [0]
    most = 999 if options.gpu_layers is None or options.gpu_layers < 0 else options.gpu_layers
    return [most, min(most, 32) * 3 // 4, min(most, 32) // 3, 0]


def _progress_callback(lc: Any, progress: Callable[[float], None] | None, cancelled: Callable[[], bool]) -> Any:
    def told(share: float, _: ctypes.c_void_p) -> bool:
        if progress is not None:
            progress(share)
        return not cancelled()

    return lc.llama_progress_callback(told)


def _facts(lc: Any, model: Any, path: Path, notes: tuple[str, ...]) -> ModelFacts:
    buffer = ctypes.create_string_buffer(256)
    lc.llama_model_desc(model, buffer, len(buffer))
    return ModelFacts(
        path=path,
        description=buffer.value.decode(errors="replace"),
        architecture=_metadata(lc, model, "general.architecture") or "unknown",
        trained_tokens=int(lc.llama_model_n_ctx_train(model)),
        state_format=int(lc.LLAMA_STATE_SEQ_VERSION),
        build=f"llama-cpp-python {lc.__version__}",
        gpu_layers=0 if not lc.llama_supports_gpu_offload() else -1,
        notes=notes,
    )


def _metadata(lc: Any, model: Any, key: str) -> str | None:
    buffer = ctypes.create_string_buffer(1024)
    count = lc.llama_model_meta_val_str(model, key.encode(), buffer, len(buffer))
    return buffer.value.decode(errors="replace") if count >= 0 else None


def _refuse(lc: Any, model: Any, facts: ModelFacts) -> None:
    """Refuse what would break the recipe, before the first call that could."""
    why = REFUSED_ARCHITECTURES.get(facts.architecture)
    if lc.llama_model_has_encoder(model):
        why = "it is an encoder-decoder model"
    elif not lc.llama_model_has_decoder(model) or lc.llama_model_is_diffusion(model):
        why = "it does not write one token after another"
    if why:
        raise Refused(
            f"{facts.path}: strata cannot keep the state of {facts.architecture} apart: {why}",
            reason="architecture",
            hint="use another model",
        )


def _open_context(lc: Any, handles: Handles, options: EngineOptions, facts: ModelFacts) -> int:
    """Open the context; returns strata's own limit in tokens, which llama.cpp rounds up."""
    wanted = options.ctx_size
    if wanted == 0:
        wanted = facts.trained_tokens or DEFAULT_CONTEXT_TOKENS
    if wanted is None:
        wanted = min(DEFAULT_CONTEXT_TOKENS, facts.trained_tokens or DEFAULT_CONTEXT_TOKENS)
    params = lc.llama_context_default_params()
    params.n_ctx = -(-wanted // CONTEXT_STEP_TOKENS) * CONTEXT_STEP_TOKENS
    params.n_batch = options.batch_size or DEFAULT_BATCH_TOKENS
    params.n_ubatch = min(params.n_batch, MICRO_BATCH_TOKENS)
    params.n_seq_max, params.kv_unified, params.swa_full = 2, True, False
    params.n_threads, params.n_threads_batch = thread_counts(options.threads)
    params.flash_attn_type = FLASH_ATTENTION[options.flash_attn or "auto"]
    params.type_k = CACHE_TYPES[options.cache_type_k or "f16"]
    params.type_v = CACHE_TYPES[options.cache_type_v or "f16"]
    params.rope_freq_base = options.rope_freq_base or 0.0
    params.rope_freq_scale = options.rope_freq_scale or 0.0
    LOG.errors.clear()
    handles.context = lc.llama_init_from_model(handles.model, params)
    if not handles.context:
        reason = LOG.reason()
        if "alloc" in reason or "memory" in reason:
            raise NoRoom(f"no memory for a context of {wanted:,} tokens: {reason}", hint="a smaller --ctx-size")
        raise ModelUnavailable(f"{facts.path}: no context can be opened: {reason}")
    return wanted


def thread_counts(threads: int | None) -> tuple[int, int]:
    """Threads for decoding and for reading prompts. Decoding is bound by memory: half of many cores are enough."""
    if threads:
        return threads, threads
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return (available if available <= 4 else available // 2), available


def _load_adapters(lc: Any, handles: Handles, options: EngineOptions) -> None:
    for path, _ in options.loras or ():
        check_gguf(Path(path))
        adapter = lc.llama_adapter_lora_init(handles.model, os.fsencode(path))
        if not adapter:
            raise ModelUnavailable(f"{path}: the adapter does not fit the model: {LOG.reason()}")
        handles.adapters.append(adapter)


def _attach_adapters(lc: Any, handles: Handles, options: EngineOptions) -> None:
    loras = options.loras or ()
    if loras:
        adapters = (lc.llama_adapter_lora_p_ctypes * len(loras))(*handles.adapters)
        scales = (ctypes.c_float * len(loras))(*[scale for _, scale in loras])
        if lc.llama_set_adapters_lora(handles.context, adapters, len(loras), scales):
            raise ModelUnavailable(f"the adapters cannot be used: {LOG.reason()}")


@dataclass(frozen=True)
class Probe:
    """What two tokens tell of the state's layout."""

    memory: Memory
    v_transposed: bool
    shape: Shape | None


def _engine(
    lc: Any,
    handles: Handles,
    options: EngineOptions,
    facts: ModelFacts,
    context_tokens: int,
    digest: str,
    adapter_digests: Sequence[str],
) -> LlamaEngine:
    vocabulary = LlamaVocabulary(lc.llama_model_get_vocab(handles.model))
    probe = _probe(lc, handles, facts, vocabulary)
    scales = [scale for _, scale in options.loras or ()]

    def identity_at(size: int) -> Identity:
        return Identity(
            weights=digest,
            adapters=tuple(zip(adapter_digests, scales, strict=True)),
            cache_type_k=options.cache_type_k or "f16",
            cache_type_v=options.cache_type_v or "f16",
            v_transposed=probe.v_transposed,
            rope=_rope(lc, handles.model, options, facts, size),
            state_format=facts.state_format,
            layout={"recipe": 1},
        )

    def reopen(size: int) -> Identity:
        handles.free_context()
        _open_context(lc, handles, replace(options, ctx_size=size), facts)
        _attach_adapters(lc, handles, options)
        return identity_at(size)

    return LlamaEngine(
        handles=handles,
        memory=probe.memory,
        shape=probe.shape,
        identity=identity_at(context_tokens),
        model=facts,
        vocabulary=vocabulary,
        template=_template(lc, handles.model, vocabulary),
        context_tokens=context_tokens,
        batch_tokens=int(lc.llama_n_batch(handles.context)),
        reopen=reopen,
    )


def _probe(lc: Any, handles: Handles, facts: ModelFacts, vocabulary: LlamaVocabulary) -> Probe:
    """Read two tokens and look at the bytes: is there a part, does it stand last, is V transposed?"""
    recurrent = bool(lc.llama_model_is_recurrent(handles.model))
    hybrid = bool(lc.llama_model_is_hybrid(handles.model))
    window = int(lc.llama_model_n_swa(handles.model))
    state = SequenceState(handles.context, Memory(True, False, recurrent or hybrid, window))
    first = max(0, vocabulary.bos)
    batch = lc.llama_batch_get_one((ctypes.c_int32 * 2)(first, first), 2)
    if lc.llama_decode(handles.context, batch):
        raise ModelUnavailable(f"{facts.path}: the model cannot read: {LOG.reason()}")
    full, partial = state.whole(0, WHOLE), state.whole(0, PARTIAL)
    state.clear()
    has_parts = len(full) != len(partial)
    has_rows = not recurrent
    if has_parts and not full.endswith(partial[PREFIX_BYTES:]):
        raise Refused(
            f"{facts.path}: {facts.architecture} does not write its partial state last", reason="architecture"
        )
    memory = Memory(has_rows, has_parts or recurrent, recurrent or hybrid, window if has_parts else 0)
    windowed = memory.window_tokens > 0
    shape = learn(full, has_rows=has_rows, has_parts=memory.has_parts, recurrent=memory.recurrent, window=windowed)
    return Probe(memory, has_rows and _v_transposed(full), shape)


def _v_transposed(state: bytes) -> bool:
    """The flag behind the first stream's cell records (llama_kv_cache::state_write, format 3), for two cells."""
    words = memoryview(state)[PREFIX_BYTES:]
    cells = int.from_bytes(words[4:8], "little")
    # a cell is pos, n_seq_id, an optional 2-D position, and the sequence ids
    for cell_bytes in (12, 24, 20, 16, 28):
        at = 8 + cells * cell_bytes
        flag, layers = (int.from_bytes(words[at + i : at + i + 4], "little") for i in (0, 4))
        if flag in (0, 1) and 0 < layers < 4096:
            return bool(flag)
    return False


def _rope(
    lc: Any, model: Any, options: EngineOptions, facts: ModelFacts, context_tokens: int
) -> dict[str, float | str]:
    """RoPE as it is in force: the model's own settings are in the weights' digest, so only what was chosen counts."""
    factors = "none"
    original = _metadata(lc, model, f"{facts.architecture}.rope.scaling.original_context_length")
    if original and has_long_factors(facts.path):
        rounded = -(-context_tokens // CONTEXT_STEP_TOKENS) * CONTEXT_STEP_TOKENS
        factors = "long" if rounded > int(original) else "short"
    return {
        "freq_base": float(options.rope_freq_base or 0.0),
        "freq_scale": float(options.rope_freq_scale or 0.0),
        "factors": factors,
    }
