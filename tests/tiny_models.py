"""Write tiny random-weight GGUF models that llama.cpp loads, one per kind of memory.

    write(folder, "llama")            # tiny-llama.gguf
    write(folder, "llama", seed=7)    # same shapes and size, other weights

Families, by what their state can do:
    llama     attention only: rewinds to any token
    gemma3    sliding window (iSWA): cannot rewind past its window
    lfm2      hybrid: attention and recurrent (short convolution) layers
    mamba     recurrent only: cannot rewind at all
    fat       attention only with the K/V geometry of an 8B model, 128 KiB a token, and next to no
              weights: a large state from a short prefill, for measuring input and output
    lora      not a model: an adapter for `llama`

Weights are random and large, the output matrix is its own, so greedy replies are varied noise that depends on
the whole prompt: the models show exact state behaviour, sizes and errors, never quality. A third and more of
the noise is no valid UTF-8, so compare token ids. The tokenizer is byte-level (259 pieces) plus ChatML
markers: any text has tokens and many characters take several. Heads are 32 wide, so that quantised cache
types open. Needs `gguf` and `numpy`; files are 0.1 to 18 MB.
"""

from pathlib import Path

import gguf
import numpy as np

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MARKERS = ["<|im_start|>", "<|im_end|>", "<think>", "</think>"]
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6
WEIGHT, EMBEDDING, OUTPUT = 0.4, 0.5, 0.5  # standard deviations that keep replies varied


def add_tokenizer(w: gguf.GGUFWriter, template: str) -> int:
    """Byte-fallback SentencePiece vocabulary; returns its size."""
    pieces = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)] + MARKERS + ["\u2581"]
    kinds = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [CONTROL] * len(MARKERS) + [NORMAL]
    w.add_tokenizer_model("llama")
    w.add_token_list(pieces)
    w.add_token_scores([0.0] * len(pieces))
    w.add_token_types(kinds)
    w.add_bos_token_id(1)
    w.add_eos_token_id(pieces.index("<|im_end|>"))
    w.add_unk_token_id(0)
    w.add_add_bos_token(False)
    w.add_add_eos_token(False)
    w.add_add_space_prefix(False)
    w.add_chat_template(template)
    return len(pieces)


class Model:
    """One GGUF being written: hyper-parameters first, then tensors drawn from one seeded generator."""

    def __init__(self, path: Path, arch: str, seed: int, template: str) -> None:
        self.w = gguf.GGUFWriter(str(path), arch)
        self.rng = np.random.default_rng(seed)
        self.vocab = add_tokenizer(self.w, template)
        self.w.add_vocab_size(self.vocab)
        self.w.add_context_length(131072)
        self.w.add_layer_norm_rms_eps(1e-5)

    def random(self, name: str, *shape: int, scale: float = WEIGHT) -> None:
        self.w.add_tensor(name, (self.rng.standard_normal(shape) * scale).astype(np.float32))

    def ones(self, name: str, *shape: int) -> None:
        self.w.add_tensor(name, np.ones(shape, np.float32))

    def ffn(self, prefix: str, d: int, ff: int) -> None:
        self.ones(prefix + "ffn_norm.weight", d)
        self.random(prefix + "ffn_gate.weight", ff, d)
        self.random(prefix + "ffn_up.weight", ff, d)
        self.random(prefix + "ffn_down.weight", d, ff)

    def attention(self, prefix: str, d: int, heads: int, kv_heads: int, head: int, scale: float = WEIGHT) -> None:
        self.random(prefix + "attn_q.weight", heads * head, d)
        self.random(prefix + "attn_k.weight", kv_heads * head, d)
        self.random(prefix + "attn_v.weight", kv_heads * head, d, scale=scale)
        self.random(prefix + "attn_output.weight", d, heads * head, scale=scale)

    def close(self) -> None:
        self.w.write_header_to_file()
        self.w.write_kv_data_to_file()
        self.w.write_tensors_to_file()
        self.w.close()


def llama(path: Path, seed: int, template: str, layers=4, d=64, heads=4, kv_heads=2, head=32, ff=128) -> None:
    m = Model(path, "llama", seed, template)
    m.w.add_block_count(layers)
    m.w.add_embedding_length(d)
    m.w.add_feed_forward_length(ff)
    m.w.add_head_count(heads)
    m.w.add_head_count_kv(kv_heads)
    m.w.add_key_length(head)
    m.w.add_value_length(head)
    m.w.add_rope_dimension_count(head)
    m.w.add_rope_freq_base(1e6)
    m.random("token_embd.weight", m.vocab, d, scale=EMBEDDING)
    m.random("output.weight", m.vocab, d, scale=OUTPUT)
    m.ones("output_norm.weight", d)
    for i in range(layers):
        p = f"blk.{i}."
        m.ones(p + "attn_norm.weight", d)
        m.attention(p, d, heads, kv_heads, head)
        m.ffn(p, d, ff)
    m.close()


def fat(path: Path, seed: int, template: str) -> None:
    llama(path, seed, template, layers=32, d=32, heads=8, kv_heads=8, head=128, ff=32)


def gemma3(
    path: Path, seed: int, template: str, layers=6, d=64, heads=4, kv_heads=2, head=32, ff=128, window=64
) -> None:
    m = Model(path, "gemma3", seed, template)
    m.w.add_block_count(layers)
    m.w.add_embedding_length(d)
    m.w.add_feed_forward_length(ff)
    m.w.add_head_count(heads)
    m.w.add_head_count_kv(kv_heads)
    m.w.add_key_length(head)
    m.w.add_value_length(head)
    m.w.add_rope_freq_base(1e6)
    m.w.add_sliding_window(window)
    m.random("token_embd.weight", m.vocab, d, scale=EMBEDDING)
    m.random("output.weight", m.vocab, d, scale=OUTPUT)
    m.ones("output_norm.weight", d)
    for i in range(layers):
        p = f"blk.{i}."
        m.ones(p + "attn_norm.weight", d)
        m.attention(p, d, heads, kv_heads, head)
        m.ones(p + "attn_q_norm.weight", head)
        m.ones(p + "attn_k_norm.weight", head)
        m.ones(p + "post_attention_norm.weight", d)
        m.ffn(p, d, ff)
        m.ones(p + "post_ffw_norm.weight", d)
    m.close()


def lfm2(path: Path, seed: int, template: str, layers=6, d=128, heads=4, kv_heads=2, ff=128, conv=3) -> None:
    m = Model(path, "lfm2", seed, template)
    kv = [kv_heads if i % 3 == 2 else 0 for i in range(layers)]
    head = d // heads
    m.w.add_block_count(layers)
    m.w.add_embedding_length(d)
    m.w.add_feed_forward_length(ff)
    m.w.add_head_count(heads)
    m.w.add_head_count_kv(kv)
    m.w.add_rope_freq_base(1e6)
    m.w.add_shortconv_l_cache(conv)
    m.random("token_embd.weight", m.vocab, d, scale=EMBEDDING)
    m.random("output.weight", m.vocab, d, scale=OUTPUT)
    m.ones("token_embd_norm.weight", d)
    for i in range(layers):
        p = f"blk.{i}."
        m.ones(p + "attn_norm.weight", d)
        if kv[i]:
            # Louder than elsewhere: else the convolutions drown what stands further back in the prompt.
            m.attention(p, d, heads, kv_heads, head, scale=1.0)
            m.ones(p + "attn_q_norm.weight", head)
            m.ones(p + "attn_k_norm.weight", head)
        else:
            m.random(p + "shortconv.conv.weight", d, conv)
            m.random(p + "shortconv.in_proj.weight", 3 * d, d)
            m.random(p + "shortconv.out_proj.weight", d, d)
        m.ffn(p, d, ff)
    m.close()


def mamba(path: Path, seed: int, template: str, layers=4, d=64, state=16, conv=4) -> None:
    m = Model(path, "mamba", seed, template)
    inner, rank = 2 * d, max(1, d // 16)
    m.w.add_block_count(layers)
    m.w.add_embedding_length(d)
    m.w.add_feed_forward_length(0)
    m.w.add_head_count(0)
    m.w.add_ssm_conv_kernel(conv)
    m.w.add_ssm_inner_size(inner)
    m.w.add_ssm_state_size(state)
    m.w.add_ssm_time_step_rank(rank)
    m.random("token_embd.weight", m.vocab, d, scale=EMBEDDING)
    m.random("output.weight", m.vocab, d, scale=OUTPUT)
    m.ones("output_norm.weight", d)
    for i in range(layers):
        p = f"blk.{i}."
        m.ones(p + "attn_norm.weight", d)
        m.random(p + "ssm_in.weight", 2 * inner, d)
        m.random(p + "ssm_conv1d.weight", inner, conv)
        m.random(p + "ssm_conv1d.bias", inner)
        m.random(p + "ssm_x.weight", rank + 2 * state, inner)
        m.random(p + "ssm_dt.weight", inner, rank)
        m.random(p + "ssm_dt.bias", inner)
        m.w.add_tensor(p + "ssm_a", -np.tile(np.arange(1, state + 1, dtype=np.float32), (inner, 1)))
        m.ones(p + "ssm_d", inner)
        m.random(p + "ssm_out.weight", d, inner)
    m.close()


def lora(path: Path, seed: int, template: str, layers=4, d=64, heads=4, head=32, rank=2) -> None:
    w, rng = gguf.GGUFWriter(str(path), "llama"), np.random.default_rng(seed)
    w.add_type("adapter")
    w.add_string("adapter.type", "lora")
    w.add_float32("adapter.lora.alpha", float(rank))
    for i in range(layers):
        name = f"blk.{i}.attn_q.weight"
        w.add_tensor(name + ".lora_a", (rng.standard_normal((rank, d)) * WEIGHT).astype(np.float32))
        w.add_tensor(name + ".lora_b", (rng.standard_normal((heads * head, rank)) * WEIGHT).astype(np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


FAMILIES = {f.__name__: f for f in (llama, gemma3, lfm2, mamba, fat, lora)}


def write(out: Path, family: str, seed: int = 0, template: str = CHATML) -> Path:
    """Write one model into the folder `out` and return its path."""
    path = out / (f"tiny-{family}.gguf" if seed == 0 else f"tiny-{family}-{seed}.gguf")
    FAMILIES[family](path, seed, template)
    return path
