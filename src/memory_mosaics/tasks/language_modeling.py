"""Language modeling: predict every next token of a corpus.

An epoch tiles the tokens with windows of one length, from an offset and in an order drawn for that epoch: each token is
trained on once per epoch, each time at another position of a window. Training can resume at any step without stored
state, and the rows of a batch can be distributed over any number of processes.

A window has the ends of some documents and the starts of others. With `documents` each is read apart: it starts at the
end-of-text token before it, from which its first token is predicted, and the last that is predicted is its own end of
text. So the same tokens are trained on as without.
"""

from collections.abc import Iterable
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np
import torch

from memory_mosaics.decoding import Sampler, generate
from memory_mosaics.errors import UserError
from memory_mosaics.evaluation import check_window
from memory_mosaics.language_model import LanguageModel
from memory_mosaics.runtime import Runtime
from memory_mosaics.tasks.task import EAGER, Batch, TokenTask
from memory_mosaics.text.corpus import Corpus, TokenFile


class Windows:
    """Windows of `length` tokens of a corpus, and the token that follows each of them. T is that length.

    A document starts at each token `start_of_text`, if one is given.
    """

    def __init__(
        self,
        tokens: np.ndarray | TokenFile,
        length: int,
        *,
        seed: int = 0,
        name: str = "the corpus",
        start_of_text: int | None = None,
    ):
        self.tokens, self.length, self.seed, self.start_of_text = tokens, length, seed, start_of_text
        check_window(tokens, length, name)
        self.adjacent = (len(tokens) - 1) // length  # windows from the first token on
        self.per_epoch = max(1, (len(tokens) - length) // length)  # windows from any offset on
        self._epoch = lru_cache(maxsize=2)(self._draw_epoch)

    def batch(self, step: int, size: int, rows: slice = slice(None)) -> Batch:
        """Return some `rows` of the `size` windows of a step."""
        numbers = range(step * size, (step + 1) * size)[rows]
        return self._at([self._start(number) for number in numbers])

    def evenly_spaced(self, indices: Iterable[int], count: int) -> Batch:
        """Return windows by their index among `count` that are evenly spaced; all `adjacent` ones cover every token."""
        return self._at([index * self.adjacent // count * self.length for index in indices])

    def _start(self, number: int) -> int:
        epoch, index = divmod(number, self.per_epoch)
        offset, order = self._epoch(epoch)
        return offset + int(order[index]) * self.length

    def _draw_epoch(self, epoch: int) -> tuple[int, np.ndarray]:
        random = np.random.default_rng([self.seed, epoch])
        offsets = min(self.length, len(self.tokens) - self.per_epoch * self.length)
        return int(random.integers(offsets)), random.permutation(self.per_epoch)

    def _at(self, starts: list[int]) -> Batch:
        rows = np.stack([self.tokens[start : start + self.length + 1] for start in starts])
        rows = torch.from_numpy(rows.astype(np.int64))
        inputs, targets = rows[:, :-1], rows[:, 1:]
        return Batch(inputs, targets, starts=None if self.start_of_text is None else inputs == self.start_of_text)


def openings(tokens: np.ndarray | TokenFile, end: int, *, count: int, length: int = 12) -> list[torch.Tensor]:
    """Return the first tokens of the first documents; a document starts after each `end`."""
    tokens = np.asarray(tokens[:1_000_000], dtype=np.int64)
    starts = [0, *np.flatnonzero(tokens[: len(tokens) - length] == end) + 1]
    rows = (tokens[start : start + length] for start in starts if tokens[start] != end)
    found = (row[: np.argmax(row == end)] if (row == end).any() else row for row in rows)
    return [torch.from_numpy(row.copy()) for row in islice(found, count)]


class LanguageModeling(TokenTask):
    """Windows of a prepared corpus; measured by the loss on its training and on its validation text."""

    def __init__(
        self,
        corpus: Corpus,
        *,
        context: int,
        batch_size: int = 1,
        seed: int = 0,
        evaluate_windows: int | None = None,
        documents: bool = False,
    ):
        self.corpus, self.tokenizer = corpus, corpus.tokenizer()
        if not len(corpus.tokens("valid")):
            raise UserError(
                f"{corpus.folder} has nothing to validate on; prepare it with --valid, or a --valid_share above 0"
            )
        self.documents = documents
        self.windows = {
            split: self._windows(corpus.tokens(split), context, seed, f"the {split} split of {corpus.folder}")
            for split in ("train", "valid")
        }
        self.batch_size, self.evaluate_windows = batch_size, evaluate_windows
        self.tokens_per_step, self.train_tokens = batch_size * context, len(corpus.tokens("train"))

    def _windows(self, tokens: np.ndarray | TokenFile, length: int, seed: int, name: str) -> Windows:
        start = self.corpus.end_of_text if self.documents else None
        return Windows(tokens, length, seed=seed, name=name, start_of_text=start)

    def batch(self, step: int, rows: slice = slice(None)) -> Batch:
        return self.windows["train"].batch(step, self.batch_size, rows)

    @torch.no_grad()
    def evaluate(self, model: LanguageModel, runtime: Runtime = EAGER) -> dict[str, float]:
        return {f"{split}_loss": self.evaluate_split(model, split, runtime) for split in self.windows}

    @torch.no_grad()
    def evaluate_split(self, model: LanguageModel, split: str, runtime: Runtime = EAGER) -> float:
        """Return the mean loss over windows from all of a split, divided among the processes.

        Every process computes the same number of batches of one size, as compiled and sharded models require. Rows
        beyond the last window repeat it and do not count.
        """
        windows, size = self.windows[split], runtime.micro_batch or self.batch_size
        count = min(windows.adjacent, self.evaluate_windows or self.windows["valid"].adjacent)
        together, total = size * runtime.size, 0.0
        for first in range(runtime.rank * size, -(-count // together) * together, together):
            real = max(0, min(size, count - first))
            batch = windows.evenly_spaced((min(index, count - 1) for index in range(first, first + size)), count)
            targets = batch.targets.clone()
            targets[real:] = -100
            with runtime.autocast():
                inputs, targets = batch.inputs.to(runtime.device), targets.to(runtime.device)
                loss = model.loss(inputs, targets, starts=batch.starts, block_fn=runtime.block_fn)
            total += loss.item() * real if real else 0.0
        return runtime.sum(total)[0] / count

    def samples(self, model: LanguageModel, count: int, *, seed: int) -> list[tuple[str, str]]:
        """Continue the openings of the first validation documents."""
        end, decode = self.corpus.end_of_text, self.corpus.tokenizer().decode
        generator = torch.Generator().manual_seed(seed)
        prompts = openings(self.windows["valid"].tokens, end, count=count)
        texts = generate(model, prompts, 200, sampler=Sampler(temperature=0.8), eos=end, generator=generator)
        return [(decode(prompt.tolist()), decode(text.tolist())) for prompt, text in zip(prompts, texts, strict=True)]

    @property
    def fingerprint(self) -> dict[str, Any]:
        return self.corpus.fingerprint
