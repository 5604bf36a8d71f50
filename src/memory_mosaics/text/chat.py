"""Chat templates: the Jinja program of a model that makes one text of the messages of a chat.

It comes with the model, so it runs in a process of its own (isolation.py), in Jinja's sandbox.
"""

from collections.abc import Mapping, Sequence

from memory_mosaics.errors import UserError
from memory_mosaics.isolation import IsolatedFunction

MAX_TEMPLATE_BYTES = 1 << 20

# As transformers renders them. Jinja2 comes with torch.
RENDER = """
import datetime
from jinja2.sandbox import ImmutableSandboxedEnvironment
def refuse(message):
    raise ValueError(message)
extensions = ["jinja2.ext.loopcontrols"]
environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
environment.globals["raise_exception"] = refuse
environment.globals["strftime_now"] = lambda layout: datetime.datetime.now().strftime(layout)
known = {}
def function(argument):
    source, values = argument
    if source not in known:
        known.clear()
        known[source] = environment.from_string(source)
    return values if values is None else known[source].render(add_generation_prompt=True, **values)
"""


class ChatTemplate:
    """Renders messages, which have `role` and `content`. A source that cannot be parsed is a UserError at once."""

    def __init__(self, source: str):
        if len(source) > MAX_TEMPLATE_BYTES:
            raise UserError(f"it has {len(source):,} characters, and may have {MAX_TEMPLATE_BYTES:,}")
        self.source, self.function = source, IsolatedFunction(RENDER, seconds=2)
        self.function([source, None])

    def render(self, messages: Sequence[Mapping[str, str]], **tokens: str) -> str:
        """Return the text for the model to continue; `tokens` are special ones, such as bos_token."""
        values = {"messages": list(messages), "bos_token": "", "eos_token": "", **tokens}
        return self.function([self.source, values])
