"""The engine: llama.cpp through its low-level C API. The only package that imports llama_cpp, and only when used.

`load` gives an `engine.Engine`; `load_vocabulary` only the tokenizer. A reader finds the binding and its log in
`binding`, what can go wrong while loading in `loading`, text and tokens in `vocabulary` and `template`, the choice
of tokens in `sampler`, and the live sequence in `live`.
"""

from .gguf import check_gguf
from .loading import load, load_vocabulary

__all__ = ["check_gguf", "load", "load_vocabulary"]
