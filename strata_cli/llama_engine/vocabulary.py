"""The tokenizer of a loaded model.

Owns text to ids and back. What a prompt looks like is decided in `prompt`.
"""

import ctypes
import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from blake3 import blake3

from .binding import llama

# Control tokens that carry meaning inside a reply: shown as text, where other control tokens print nothing.
SPOKEN = re.compile(rb"think|reason|tool|channel|python_tag", re.IGNORECASE)


class LlamaVocabulary:
    """Implements `engine.Vocabulary` on a llama_vocab pointer, which the model owns."""

    def __init__(self, vocab: Any) -> None:
        self._lc, self._vocab = llama(), vocab
        self._size = int(self._lc.llama_vocab_n_tokens(vocab))
        self.bos = int(self._lc.llama_vocab_bos(vocab))
        self.add_bos = bool(self._lc.llama_vocab_get_add_bos(vocab)) and self.bos >= 0
        self._pieces: dict[int, bytes] = {}

    def __len__(self) -> int:
        return self._size

    @cached_property
    def digest(self) -> str:
        """Names the tokenizer: every token's text, score-free, with its attributes, and the BOS rule."""
        lc, hasher = self._lc, blake3()
        for token in range(self._size):
            text = lc.llama_vocab_get_text(self._vocab, token) or b""
            hasher.update(b"%d %d " % (len(text), lc.llama_vocab_get_attr(self._vocab, token)) + text)
        hasher.update(b"%d %d %d" % (lc.llama_vocab_type(self._vocab), self.bos, self.add_bos))
        return "b3:" + hasher.hexdigest()[:32]

    @cached_property
    def specials(self) -> Sequence[str]:
        """Texts that the tokenizer reads as one token when special tokens are parsed, longest first."""
        return tuple(sorted(self._special_texts.values(), key=len, reverse=True))

    @cached_property
    def _special_texts(self) -> dict[int, str]:
        lc = self._lc
        wanted = lc.LLAMA_TOKEN_ATTR_CONTROL | lc.LLAMA_TOKEN_ATTR_USER_DEFINED | lc.LLAMA_TOKEN_ATTR_UNKNOWN
        found: dict[int, str] = {}
        for token in range(self._size):
            if lc.llama_vocab_get_attr(self._vocab, token) & wanted:
                text = (lc.llama_vocab_get_text(self._vocab, token) or b"").decode(errors="replace")
                if text:
                    found[token] = text
        return found

    def is_special(self, token: int) -> bool:
        return token in self._special_texts

    def special_text(self, token: int) -> str:
        """The text of a special token; empty for -1 (the model has none) and for ordinary ones."""
        return self._special_texts.get(token, "")

    def is_end(self, token: int) -> bool:
        return bool(self._lc.llama_vocab_is_eog(self._vocab, token))

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        """Token ids of `text`, without a BOS. Special tokens are parsed only when `special`."""
        raw = text.encode("utf-8", errors="surrogateescape")
        buffer = (ctypes.c_int32 * (len(raw) + 16))()
        count = self._lc.llama_tokenize(self._vocab, raw, len(raw), buffer, len(buffer), False, special)
        if count < 0:
            buffer = (ctypes.c_int32 * -count)()
            count = self._lc.llama_tokenize(self._vocab, raw, len(raw), buffer, len(buffer), False, special)
        return list(buffer[:count])

    def piece(self, token: int) -> bytes:
        """The bytes that a token prints: nothing for ends and other control tokens, half a character for some."""
        found = self._pieces.get(token)
        if found is None:
            found = self._pieces[token] = self._render(token)
        return found

    def _render(self, token: int) -> bytes:
        lc = self._lc
        text = lc.llama_vocab_get_text(self._vocab, token) or b""
        spoken = bool(SPOKEN.search(text)) and not self.is_end(token)
        buffer = ctypes.create_string_buffer(max(64, 4 * len(text)))
        count = lc.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, spoken)
        if count < 0:
            buffer = ctypes.create_string_buffer(-count)
            count = lc.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, spoken)
        return buffer.raw[:count]
