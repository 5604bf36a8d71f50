"""From the messages of a chat to the one text that a language model goes on from.

Our models continue texts: they know no roles. So the plain template is the messages themselves, one after the other
with a blank line between them, and the model goes on where the last one ends. A checkpoint folder with a
chat_template.jinja, which is where Hugging Face keeps one, has its own way.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from memory_mosaics.apps.serve.requests import Message
from memory_mosaics.errors import UserError, one_line
from memory_mosaics.files import read_text
from memory_mosaics.text.chat import MAX_TEMPLATE_BYTES, ChatTemplate

FILE = "chat_template.jinja"


@dataclass(frozen=True)
class Template:
    """The template of a folder; None is the plain way."""

    own: ChatTemplate | None = None

    @classmethod
    def of(cls, folder: Path) -> "Template":
        """That of a checkpoint folder."""
        file = folder / FILE
        if not file.exists():
            return cls()
        try:
            return cls(ChatTemplate(read_text(file, MAX_TEMPLATE_BYTES)))
        except (OSError, ValueError) as error:
            raise UserError(f"{file} is no template: {one_line(error)}") from error

    def fill(self, messages: Sequence[Message]) -> str:
        """The text to go on from."""
        if self.own is None:
            return "\n\n".join(message.content for message in messages)
        try:
            return self.own.render([{"role": message.role, "content": message.content} for message in messages])
        except UserError as error:
            raise UserError(f"these messages do not fit the model's template: {one_line(error)}") from error
