"""From the messages of a chat to the one text that a language model goes on from.

Our models continue texts: they know no roles. So the plain template is the messages themselves, one after the other
with a blank line between them, and the model goes on where the last one ends. A checkpoint folder with a
chat_template.jinja, which is where Hugging Face keeps one, has its own way.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memory_mosaics.errors import UserError, one_line
from memory_mosaics.serving.requests import Message

FILE = "chat_template.jinja"


@dataclass(frozen=True)
class Template:
    """`render` takes messages as dictionaries; None is the plain way."""

    render: Callable[..., str] | None = None

    @classmethod
    def of(cls, folder: Path) -> "Template":
        """That of a checkpoint folder."""
        file = folder / FILE
        if not file.exists():
            return cls()
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment  # comes with torch; a template is not to be trusted

        try:
            environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
            environment.globals["raise_exception"] = _refuse
            return cls(environment.from_string(file.read_text(encoding="utf-8")).render)
        except (OSError, ValueError, TemplateError) as error:
            raise UserError(f"{file} is no template: {one_line(error)}") from error

    def fill(self, messages: Sequence[Message]) -> str:
        """The text to go on from."""
        if self.render is None:
            return "\n\n".join(message.content for message in messages)
        plain: list[dict[str, Any]] = [{"role": message.role, "content": message.content} for message in messages]
        try:
            return self.render(messages=plain, add_generation_prompt=True, bos_token="", eos_token="")
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"these messages do not fit the model's template: {one_line(error)}") from error


def _refuse(message: str) -> None:
    raise UserError(message)
