"""The memory of this machine, and the check that something fits into it before it is built."""

import os
from pathlib import Path

import torch

from memory_mosaics.errors import UserError

# What a container may have: of version 2 of control groups, and of version 1.
LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def memory_of(device: str | torch.device = "cpu") -> int:
    """The bytes of memory of a device in all, used or free."""
    device = torch.device(device)
    if device.type == "cuda" and torch.cuda.is_available():
        return torch.cuda.get_device_properties(device).total_memory
    if not hasattr(os, "sysconf"):  # Windows
        return 1 << 62
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for file in LIMITS:
        text = file.read_text().strip() if file.exists() else "max"
        found += [int(text)] if text.isdigit() else []
    return min(found)


def check_memory(
    what: str, need: int, device: str | torch.device = "cpu", advice: str = "choose smaller sizes"
) -> None:
    """Refuse what needs more bytes than the device has."""
    have = memory_of(device)
    if need > have:
        needs = f"{what} needs at least {need / 1e9:,.1f} GB of memory"
        raise UserError(f"{needs}, and {torch.device(device)} has {have / 1e9:,.1f} GB; {advice}")
