"""A model with large state and next to no weights, written on first use: 128 KiB of K/V a token, as an 8B model has.

Owns the few lines of GGUF that this takes, so that nothing else is needed to write it. The weights are noise: replies
mean nothing, and input and output are the same work as with a real model of this geometry.
"""

import random
import struct
from array import array
from collections.abc import Sequence
from pathlib import Path

from ..files import BLOCK_BYTES, Files, write_new

NAME = "bench-fat-1.gguf"
LAYERS, WIDTH, HEADS, HEAD_WIDTH, FEED_FORWARD = 32, 32, 8, 128, 32
TOKEN_BYTES = LAYERS * 2 * HEADS * HEAD_WIDTH * 2
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "<|im_start|>", "<|im_end|>", "\u2581"]
KINDS = [2, 3, 3, *([6] * 256), 3, 3, 1]
ALIGNMENT_BYTES = 32
Tensor = tuple[str, tuple[int, ...], bytes]  # name, shape, values
U32, F32, BOOL, STRING, ARRAY, I32 = 4, 6, 7, 8, 9, 5  # GGUF's types of values


def fat_model(folder: Path, files: Files) -> Path:
    """The model's file in `folder`, written where it is missing. Raises StorageFailed."""
    path = folder / NAME
    if not path.exists():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        data = gguf()
        write_new(
            files, folder, path, [data[at : at + BLOCK_BYTES] for at in range(0, len(data), BLOCK_BYTES)], len(data)
        )
    return path


def gguf() -> bytes:
    """The whole file: header, keys, tensor table, tensors."""
    keys, tensors = _keys(), _tensors()
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + b"".join(keys)
    table, offset = [], 0
    for name, shape, values in tensors:
        dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        table.append(_string(name) + dimensions + struct.pack("<IQ", 0, offset))
        offset += _aligned(len(values))
    head += b"".join(table)
    body = [head.ljust(_aligned(len(head)), b"\0")]
    body += [values.ljust(_aligned(len(values)), b"\0") for _, _, values in tensors]
    return b"".join(body)


def _keys() -> list[bytes]:
    numbers = {
        "vocab_size": len(PIECES), "context_length": 131072, "block_count": LAYERS, "embedding_length": WIDTH,
        "feed_forward_length": FEED_FORWARD, "attention.head_count": HEADS, "attention.head_count_kv": HEADS,
        "attention.key_length": HEAD_WIDTH, "attention.value_length": HEAD_WIDTH, "rope.dimension_count": HEAD_WIDTH,
    }  # fmt: skip
    return [
        _key("general.architecture", STRING, _string("llama")),
        *(_key(f"llama.{name}", U32, struct.pack("<I", value)) for name, value in numbers.items()),
        _key("llama.attention.layer_norm_rms_epsilon", F32, struct.pack("<f", 1e-5)),
        _key("llama.rope.freq_base", F32, struct.pack("<f", 1e6)),
        _key("tokenizer.ggml.model", STRING, _string("llama")),
        _key("tokenizer.ggml.tokens", ARRAY, _array(STRING, [_string(piece) for piece in PIECES])),
        _key("tokenizer.ggml.scores", ARRAY, _array(F32, [struct.pack("<f", 0.0)] * len(PIECES))),
        _key("tokenizer.ggml.token_type", ARRAY, _array(I32, [struct.pack("<i", kind) for kind in KINDS])),
        _key("tokenizer.ggml.bos_token_id", U32, struct.pack("<I", 1)),
        _key("tokenizer.ggml.eos_token_id", U32, struct.pack("<I", PIECES.index("<|im_end|>"))),
        _key("tokenizer.ggml.unknown_token_id", U32, struct.pack("<I", 0)),
        *(
            _key(f"tokenizer.ggml.{name}", BOOL, b"\0")
            for name in ("add_bos_token", "add_eos_token", "add_space_prefix")
        ),
        _key("tokenizer.chat_template", STRING, _string(TEMPLATE)),
    ]


def _tensors() -> list[Tensor]:
    """Name, shape (fastest dimension first, as GGUF has it) and bytes of each tensor."""
    noise, heads, pieces = _Noise(), HEADS * HEAD_WIDTH, len(PIECES)
    tensors: list[Tensor] = [
        ("token_embd.weight", (WIDTH, pieces), noise.take((WIDTH, pieces), 0.5)),
        ("output.weight", (WIDTH, pieces), noise.take((WIDTH, pieces), 0.5)),
        ("output_norm.weight", (WIDTH,), _ones(WIDTH)),
    ]
    shapes: dict[str, tuple[int, ...]] = {
        "attn_q": (WIDTH, heads), "attn_k": (WIDTH, heads), "attn_v": (WIDTH, heads), "attn_output": (heads, WIDTH),
        "ffn_gate": (WIDTH, FEED_FORWARD), "ffn_up": (WIDTH, FEED_FORWARD), "ffn_down": (FEED_FORWARD, WIDTH),
    }  # fmt: skip
    for layer in range(LAYERS):
        place = f"blk.{layer}."
        tensors += [(f"{place}{name}_norm.weight", (WIDTH,), _ones(WIDTH)) for name in ("attn", "ffn")]
        tensors += [(f"{place}{name}.weight", shape, noise.take(shape, 0.4)) for name, shape in shapes.items()]
    return tensors


class _Noise:
    """Normal numbers out of one seeded pool, each tensor from another place of it: making millions takes seconds."""

    POOL = 65_537

    def __init__(self) -> None:
        chosen = random.Random(0)
        self._pool = array("f", (chosen.gauss(0, 1) for _ in range(self.POOL)))
        self._at = 0

    def take(self, shape: Sequence[int], scale: float) -> bytes:
        count = shape[0] * shape[1]
        turned = self._pool[self._at :] + self._pool[: self._at]
        self._at = (self._at + count + 7919) % self.POOL
        values = (turned * (count // self.POOL + 1))[:count]
        return array("f", (scale * value for value in values)).tobytes()


def _ones(count: int) -> bytes:
    return struct.pack("<f", 1.0) * count


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _key(name: str, kind: int, value: bytes) -> bytes:
    return _string(name) + struct.pack("<I", kind) + value


def _array(kind: int, items: Sequence[bytes]) -> bytes:
    return struct.pack("<IQ", kind, len(items)) + b"".join(items)
