"""The chat template of a model, rendered by llama-cpp-python's sandboxed Jinja.

Owns which template is used, and the fallback where a model has none or a broken one. What is put into it, and how
the result becomes tokens, is `prompt`.
"""

import threading
from collections.abc import Sequence
from datetime import date
from typing import Any

from blake3 import blake3

from ..engine import Message
from ..errors import Refused

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class JinjaTemplate:
    """Implements `engine.Template`."""

    def __init__(self, text: str, origin: str, bos: str, eos: str) -> None:
        """Raises jinja2.TemplateError where the text is no template."""
        from llama_cpp.llama_chat_format import Jinja2ChatFormatter

        self.text, self.origin = text, origin
        self.digest = "b3:" + blake3(text.encode()).hexdigest()[:32]
        self._formatter = Jinja2ChatFormatter(text, eos_token=eos, bos_token=bos)
        self._rendering = threading.Lock()

    def render(self, messages: Sequence[Message], *, tools: Sequence[Any] | None, generation: bool, day: date) -> str:
        """The prompt's text. Raises Refused with the template's own complaint."""
        import jinja2

        plain: Any = [dict(message) for message in messages]
        try:
            # The formatter keeps its settings, and the service renders on more than one thread.
            with self._rendering:
                self._formatter.add_generation_prompt = generation
                # A date in the system block would change every prompt at midnight: the conversation's own is used.
                self._formatter.strftime_now = day.strftime
                return str(self._formatter(messages=plain, tools=list(tools) if tools else None).prompt)
        except (jinja2.TemplateError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise Refused(f"the chat template refuses these messages: {error}", reason="template") from error


def choose_template(text: str | None, bos: str, eos: str) -> JinjaTemplate:
    """The model's own template, or ChatML where it has none or one that Jinja cannot parse."""
    import jinja2

    if not text:
        return JinjaTemplate(CHATML, "fallback chatml: the model has no chat template", bos, eos)
    try:
        return JinjaTemplate(text, "model", bos, eos)
    except jinja2.TemplateError as error:
        return JinjaTemplate(CHATML, f"fallback chatml: the model's chat template is broken ({error})", bos, eos)
