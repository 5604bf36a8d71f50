"""The mark of files that only a GPU can test: `pytestmark = ON_CUDA`."""

import pytest
import torch

ON_CUDA = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore"),  # compilers give advice, and turned into an error it is one of theirs
]
