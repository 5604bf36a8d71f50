"""Stores in a file: safetensors with the pairs, and JSON in its header that describes them.

    save_stores    write stores of one model, or one, with further tensors
    load_stores    read them again, memory-mapped: pairs are read from the disk when they are first used

A file of any origin can be loaded: what is not a file of this form is refused in one line, before any pair is used.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Union

import torch
from torch import Tensor

from memory_mosaics.bounded_stores import EXACT, MAX_CAPACITY, POLICIES, AnyPolicy, BoundedStore, StorePolicy
from memory_mosaics.errors import UserError, one_line
from memory_mosaics.files import atomic_write, check_regular, parse_json
from memory_mosaics.indexed_store import INDEXED, IndexedStore, IndexPolicy
from memory_mosaics.ops.indexed_recall import Index
from memory_mosaics.stores import GrowingStore

FORMAT = 1
HEADER = "memory"  # the key of the JSON in the header
MAX_STORES = 4096
AnyStore = Union[GrowingStore, BoundedStore, IndexedStore]  # noqa: UP007 (NamedTuples in annotations that are checked at run time)
Loaded = tuple[list[AnyStore], dict[str, Any], dict[str, Tensor]]


def save_stores(
    file: Path, stores: Sequence[AnyStore], about: Mapping[str, Any], others: Mapping[str, Tensor] | None = None
) -> None:
    """Write stores of one kind to a file, atomically, with other tensors and a description of them."""
    from safetensors.torch import save_file

    policy = getattr(stores[0], "policy", None)
    if isinstance(policy, IndexPolicy):
        described = [policy.kind, policy.read, policy.lists]
    else:
        described = None if policy is None else [policy.kind, policy.capacity, policy.keep_norm]
    header = dict(about) | {
        "format": FORMAT,
        "stores": len(stores),
        "policy": described,
        "others": sorted(others or ()),
    }
    tensors = dict(others or {})
    for number, store in enumerate(stores):
        tensors |= _tensors(f"stores.{number}.", store)
    tensors = {name: x.detach().cpu().clone(memory_format=torch.contiguous_format) for name, x in tensors.items()}
    with atomic_write(file) as tmp:
        tmp.touch()
        mode = tmp.stat().st_mode
        save_file(tensors, tmp, {HEADER: json.dumps(header)})
        tmp.chmod(mode)  # safetensors lets only the owner read


def load_stores(file: Path) -> Loaded:
    """Return the stores of a file, its description, and its other tensors."""
    from safetensors import SafetensorError, safe_open

    try:
        check_regular(file)
        with safe_open(file, framework="pt") as opened:
            header = parse_json((opened.metadata() or {})[HEADER])
            number, policy = header["stores"], _policy(header["policy"])
            fields = _fields(policy, indexed="stores.0.indexed.keys" in opened.keys())  # noqa: SIM118
            names = [f"stores.{i}.{field}" for i in range(min(number, MAX_STORES)) for field in fields]
            if header["format"] != FORMAT:
                raise ValueError(f"its format is {header['format']}, and {FORMAT} can be read")
            if not 1 <= number <= MAX_STORES or sorted([*names, *header["others"]]) != sorted(opened.keys()):
                raise ValueError("its tensors are not those that it lists")
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (not a dictionary)
        stores: list[AnyStore] = []
        for i in range(number):
            stores.append(_store(policy, {field: tensors[f"stores.{i}.{field}"] for field in fields}))
            _check(stores[-1], stores[0])
        return stores, header, {name: tensors[name] for name in header["others"]}
    except FileNotFoundError:
        raise UserError(f"there is no memory file {file}; mosaics read makes one") from None
    except UserError:
        raise
    except (SafetensorError, OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{file} is damaged or not a memory file: {one_line(error)}") from error


def _tensors(prefix: str, part: Any) -> dict[str, Tensor]:
    """The tensors of a store, by the names of its fields and theirs."""
    if isinstance(part, Tensor):
        return {prefix[:-1]: part}
    parts = part._asdict() if hasattr(part, "_asdict") else {}
    return {name: x for field, each in parts.items() for name, x in _tensors(f"{prefix}{field}.", each).items()}


def _fields(policy: AnyPolicy | None, *, indexed: bool) -> list[str]:
    """The names of the tensors of a store."""
    if not isinstance(policy, IndexPolicy):
        return list(GrowingStore._fields if policy is None else BoundedStore._fields[1:])
    index = [f"indexed.{field}" for field in Index._fields] if indexed else []
    return [*index, *(f"newest.{field}" for field in GrowingStore._fields), "recent"]


def _store(policy: AnyPolicy | None, tensors: dict[str, Tensor]) -> AnyStore:
    if policy is None:
        return GrowingStore(**tensors)
    if isinstance(policy, StorePolicy):
        return BoundedStore(policy=policy, **tensors)
    index = Index(*(tensors[f"indexed.{field}"] for field in Index._fields)) if "indexed.keys" in tensors else None
    newest = GrowingStore(*(tensors[f"newest.{field}"] for field in GrowingStore._fields))
    return IndexedStore(policy, index, newest, tensors["recent"])


def newest_pairs(store: AnyStore) -> Any:
    """The pairs of a store, or of an indexed one those that are not in the index."""
    return store.newest if isinstance(store, IndexedStore) else store


def _policy(described: Any) -> AnyPolicy | None:
    if described is None:
        return None
    kind, capacity, keep_norm = described
    if kind == INDEXED:
        if type(capacity) is not int or type(keep_norm) not in (int, type(None)):
            raise ValueError(f"there is no store {described!r}")
        return IndexPolicy(read=capacity, lists=keep_norm)
    known = kind in POLICIES or (kind == EXACT and capacity == MAX_CAPACITY)
    if not known or type(capacity) is not int or not 1 <= capacity <= MAX_CAPACITY:
        raise ValueError(f"there is no store {kind!r} of {capacity!r} pairs")
    return StorePolicy(kind=kind, capacity=capacity, keep_norm=bool(keep_norm))


def _check(store: AnyStore, first: AnyStore) -> None:
    """Refuse tensors that are not of a store, or not of as many pairs as the first."""
    index = store.indexed if isinstance(store, IndexedStore) else None
    if isinstance(store, IndexedStore):
        assert isinstance(first, IndexedStore)
        if store.recent.shape != store.newest.keys.shape[:1] or store.recent.dtype != torch.int64:
            raise ValueError(f"recent is {tuple(store.recent.shape)} {store.recent.dtype}")
        if not (store.recent >= 0).all() or store.num_indexed != first.num_indexed:
            raise ValueError("its layers have indexes of different sizes")
        store, first = store.newest, first.newest
    keys, values = store.keys, store.values
    empty = not keys.numel() and (index is None or 0 in keys.shape[2:])
    if keys.ndim != 4 or values.ndim != 4 or keys.shape[:3:2] != values.shape[:3:2] or empty:
        raise ValueError(f"keys {tuple(keys.shape)} and values {tuple(values.shape)} are not pairs")
    if not values.shape[1] <= keys.shape[1] or not keys.is_floating_point() or keys.dtype != values.dtype:
        raise ValueError(f"keys {tuple(keys.shape)} {keys.dtype} have values {tuple(values.shape)} {values.dtype}")
    if (keys.shape[:2], values.shape[:2]) != (first.keys.shape[:2], first.values.shape[:2]):
        raise ValueError("its layers have different numbers of pairs")
    if not (keys.isfinite().all() and values.isfinite().all()):
        raise ValueError("a key or value is NaN or Inf")
    if index is not None:
        _check_index(index, keys, values)
    if isinstance(store, GrowingStore):
        if store.key_padding_mask.shape != (len(keys), 0) or store.key_padding_mask.dtype != torch.bool:
            raise ValueError(f"its mask is {tuple(store.key_padding_mask.shape)} {store.key_padding_mask.dtype}")
        return
    wanted = {"times": torch.int64, "mass": torch.float32, "used": torch.int64}
    for name, dtype in wanted.items():
        if getattr(store, name).shape != keys.shape[:3] or getattr(store, name).dtype != dtype:
            raise ValueError(f"{name} is {tuple(getattr(store, name).shape)} {getattr(store, name).dtype}")
    if store.now.shape != keys.shape[:1] or store.now.dtype != torch.int64:
        raise ValueError(f"now is {tuple(store.now.shape)} {store.now.dtype}")
    if not ((store.mass >= 0) & (store.mass < torch.inf)).all():
        raise ValueError("a mass is negative, NaN or Inf")
    if not ((store.times >= 0) & (store.times < store.now[:, None, None])).all():
        raise ValueError("a pair was stored after the last token")


def _check_index(index: Index, keys: Tensor, values: Tensor) -> None:
    """Refuse an index that is not one of such keys and values."""
    (B, _, H, D), V, N, L = keys.shape, values.shape[3], index.keys.shape[-2], index.counts.shape[-1]
    S = index.sample_radius.shape[-1]
    shapes = {"keys": (N, D), "values": (N, V), "times": (N,), "starts": (L + 1,), "key_means": (L, D)}
    shapes |= {"value_means": (L, V), "covariances": (D * (D + 1) // 2, L), "slopes": (L, D, V)}
    shapes |= {"sample_keys": (L, S, D), "sample_values": (L, S, V), "sample_radius": (L, S)}
    shapes |= dict.fromkeys(("value_norm", "slack", "clustered"), ())
    dtypes = {"keys": keys.dtype, "values": keys.dtype}
    dtypes |= dict.fromkeys(("covariances", "slopes", "sample_keys", "sample_values", "sample_radius"), torch.float32)
    dtypes |= dict.fromkeys(("times", "starts", "clustered"), torch.int64)
    for name, x in index._asdict().items():
        if x.shape != (B, H, *shapes.get(name, (L,))) or x.dtype != dtypes.get(name, torch.float64):
            raise ValueError(f"{name} of its index is {tuple(x.shape)} {x.dtype}")
        if x.is_floating_point() and not x.isfinite().all():
            raise ValueError(f"{name} of its index is NaN or Inf")
    positions = torch.where(index.times < 0, -1 - index.times, index.times).sort(dim=-1).values
    sizes = index.starts.diff(dim=-1)
    if not (positions == torch.arange(N)).all() or not (index.starts[..., 0] == 0).all():
        raise ValueError("its index does not have each pair once")
    if not (sizes >= 0).all() or not (index.starts[..., -1] <= N).all() or not (sizes == index.counts).all():
        raise ValueError("the lists of its index do not have its pairs")
