"""Answers from a model on this machine: any causal language model of transformers, one of ours included."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from memory_mosaics.babistories.prompts import Request
from memory_mosaics.babistories.writer import Answer, Writer
from memory_mosaics.errors import UserError, one_line, within_memory
from memory_mosaics.files import check_folder
from memory_mosaics.text.chat import ChatTemplate
from memory_mosaics.text.vocabulary import check_tokenizer, read_json
from memory_mosaics.training.parallel import find_device


class Local:
    """The model, and how it is asked: several prompts at a time, side by side."""

    def __init__(self, writer: Writer):
        assert writer.model is not None
        try:
            from transformers import AutoModelForCausalLM, AutoTokenizer

            import memory_mosaics.huggingface  # noqa: F401  registers our models
        except ImportError:
            raise UserError("a model on this machine needs transformers: pip install 'memory-mosaics[hf]'") from None
        self.writer, self.device = writer, find_device(writer.device)
        folder = _checkpoint(Path(writer.model))
        try:
            check_folder(folder)
            if (folder / "tokenizer.json").exists():
                layout = read_json(folder / "tokenizer.json")
                check_tokenizer(layout, json.dumps(layout))  # the library may crash, or never end
            self.tokenizer: Any = AutoTokenizer.from_pretrained(folder, padding_side="left", local_files_only=True)
            model: Any = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype="auto")
        except (OSError, ValueError, LookupError, RuntimeError, TypeError, AttributeError, MemoryError) as error:
            raise UserError(f"cannot open {writer.model}: {one_line(error)}") from error
        self.model = model.to(self.device).eval()
        if self.tokenizer.pad_token is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        if writer.ask == "chat" and not self.tokenizer.chat_template:
            raise UserError(f"{writer.model} has no chat template; give --ask completion or opening")
        self.template = ChatTemplate(self.tokenizer.get_chat_template()) if writer.ask == "chat" else None

    def ask(self, requests: Sequence[Request]) -> list[Answer]:
        """Answers to several requests."""
        import torch

        prompts = [self._prompt(request) for request in requests]
        chat = self.writer.ask == "chat"  # its template has the special tokens already
        rows = self.tokenizer(prompts, return_tensors="pt", padding=True, add_special_tokens=not chat)
        inputs = {name: rows[name].to(self.device) for name in ("input_ids", "attention_mask")}
        torch.manual_seed(requests[0].seed)
        drawn = self.writer.temperature > 0
        how = {"temperature": self.writer.temperature, "top_p": self.writer.top_p, "top_k": 0} if drawn else {}
        with torch.inference_mode(), within_memory("give a smaller --concurrency"):
            out = self.model.generate(
                **inputs,
                max_new_tokens=self.writer.length,
                do_sample=drawn,
                pad_token_id=self.tokenizer.pad_token_id,
                **how,
            )
        lengths = inputs["attention_mask"].sum(1).tolist()
        return [
            self._answer(row, read) for row, read in zip(out[:, rows["input_ids"].shape[1] :], lengths, strict=True)
        ]

    def _prompt(self, request: Request) -> str:
        if self.template is None:
            return request.prompt
        tokens = {name: token for name, token in self.tokenizer.special_tokens_map.items() if isinstance(token, str)}
        return self.template.render([{"role": "user", "content": request.text}], **tokens)

    def _answer(self, row: Any, read: int) -> Answer:
        ends = self.model.generation_config.eos_token_id
        ends = set(ends) if isinstance(ends, list) else {ends, self.tokenizer.eos_token_id}
        ids = row.tolist()
        end = next((at for at, token in enumerate(ids) if token in ends), None)
        text = self.tokenizer.decode(ids[:end], skip_special_tokens=True)
        return Answer(text, "length" if end is None else "stop", (read, len(ids) if end is None else end + 1))


def _checkpoint(folder: Path) -> Path:
    """The newest checkpoint of a training run of ours, or the folder itself."""
    from memory_mosaics.checkpoint import newest

    return folder if (folder / "config.json").exists() else Path(newest(folder))
