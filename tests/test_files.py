import os

import pytest

from memory_mosaics.errors import UserError, within_memory
from memory_mosaics.files import written_whole


def test_what_is_no_file_is_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UserError, match="it is there, and no file"), written_whole(pipe) as aside:
        aside.write_text("never")
    assert pipe.is_fifo()


@pytest.mark.parametrize(
    "words", ["CUDA out of memory. Tried to allocate", "DefaultCPUAllocator: can't allocate memory"]
)
def test_too_little_memory_is_told_in_one_line(words):
    with pytest.raises(UserError, match="out of memory: take less"), within_memory("take less"):
        raise RuntimeError(words)
    with pytest.raises(RuntimeError, match="other"), within_memory("take less"):
        raise RuntimeError("other")
