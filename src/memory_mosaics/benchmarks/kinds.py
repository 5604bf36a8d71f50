"""What a kernel or an operator is for: a dozen kinds that a reader of the paper knows, told by names and by order.

On CUDA a step is replayed as one graph, and all that is known of a kernel is its name and when it ran. Where names do
not tell, order does: each block recalls from its context first and from its persistent memory second, and the backward
pass goes the other way. One token at a time, recall is a product, a softmax and a product.
"""

import re
from collections.abc import Sequence

PRODUCTS, CONTEXT, PERSISTENT = "matrix products", "recall from the context", "persistent recall"
KEYS, VALUES, POINTWISE = "keys (leaky average)", "values (taps)", "norms, residuals and the like"
LOSS, OPTIMISER, COPIES, REST = "loss over the vocabulary", "optimiser", "copies and casts", "the rest"
IDLE = "idle"
KINDS = (PRODUCTS, CONTEXT, PERSISTENT, KEYS, VALUES, POINTWISE, LOSS, OPTIMISER, COPIES, REST, IDLE)

Patterns = tuple[tuple[re.Pattern[str], str], ...]


def _patterns(*rows: tuple[str, str]) -> Patterns:
    return tuple((re.compile(pattern), kind) for pattern, kind in rows)


# The first that is found counts. What PyTorch's compiler fuses it names after all the operators in it.
KERNELS = _patterns(
    (r"^(Memcpy|Memset)", COPIES),
    (r"^(gated_)?key_(forward|backward)", KEYS),
    (r"^value_(forward|backward)", VALUES),
    (r"loss_and_gradient|log_?softmax|LogSoftMax|nll_loss|cross_entropy", LOSS),
    (r"^contextual_(forward|backward)|^scan_(forward|backward)", CONTEXT),  # and what Mamba has in its place
    (r"^triton_(?!.*softmax).*attention", POINTWISE),  # what prepares its inputs
    (r"flash|fmha|sdpa|[Aa]ttention|recall|dot_do_o|convert_dq|[Ss]oft_?[Mm]ax", CONTEXT),
    (r"multi_tensor_apply.*Copy", COPIES),
    (r"multi_tensor_apply|lpnorm_cleanup|[Aa]dam", OPTIMISER),
    (r"^triton_(per|red)_fused_(\w+_)?(mm|addmm|bmm)_(\w+_)?t_", PRODUCTS),  # of one row: a sum over a matrix
    (r"gemm|nvjet|gemv|cutlass|cublas|xmma|splitK|^triton_(tem_fused_)?_?(mm|bmm|addmm|baddbmm)_", PRODUCTS),
    (r"^triton_\w+?_fused_((_to_copy|_unsafe_view|clone|copy_?|cat|t|transpose|view|slice|zeros)_)+\d+$", COPIES),
    (r"^triton_", POINTWISE),
    (r"copy_kernel|CatArray|FillFunctor", COPIES),
    (r"[Ii]ndex|ArgM|[Ss]ort|[Ss]can|embedding|gather|scatter", REST),
    (r"elementwise_kernel|reduce_kernel|layer_?norm|LayerNorm|GammaBeta", POINTWISE),
)
BACKWARD = re.compile(r"bwd|bprop|backward|cutlassB")
BEFORE = re.compile(r"dot_do_o|preprocess|^triton_\w+_recall_few")
AFTER = re.compile(r"convert_dq|combine|^recall_merge$|postprocess")
SOFTMAX = re.compile(r"[Ss]oft_?[Mm]ax")
NOT_KERNELS = re.compile(  # what the profiler says of itself and of waiting, on the line of the device
    r"^(Activity Buffer|Command Buffer|Buffer Flush|Lazy |Runtime |Resource|Instrumentation"
    r"|(Context|Device|Stream|Event) (Sync|Wait|Record))"
)

# On the CPU a layer says which operators are its own, `region`, so that names need not tell the rest apart.
_POINTWISE = (
    r"add_?|mul_?|sub_?|div_?|rsub|neg|pow_?|exp_?|sum|mean|abs|clamp\w*|norm|sgn|sigmoid|tanh\w*|where|masked_fill"
)
OPERATORS = _patterns(
    (r"^aten::_?(mm|addmm|linear|matmul)$", PRODUCTS),
    (r"scaled_dot_product|flash_attention", CONTEXT),
    (r"log_softmax|nll_loss|cross_entropy", LOSS),
    (r"_foreach_|_fused_adam|Optimizer", OPTIMISER),
    (r"^aten::(copy_|_?to_copy|to|clone|contiguous|cat|stack|pad|constant_pad_nd|fill_|zero_|zeros\w*)$", COPIES),
    (rf"^aten::(native_)?(layer_norm\w*|gelu\w*|linalg_vector_norm|{_POINTWISE})$", POINTWISE),
    (r"^aten::(bmm|baddbmm)$", PRODUCTS),
)


def of_kernel(name: str) -> str:
    """By the name alone: the two recalls are not told apart."""
    return _first(KERNELS, name)


def of_operator(name: str, region: str | None) -> str:
    """Of an operator in a layer that makes keys or values, or recalls: of that, unless it multiplies by a matrix."""
    kind = _first(OPERATORS, name)
    if region in (KEYS, VALUES, OPTIMISER):
        products = kind == PRODUCTS and not name.endswith("bmm")  # a leaky average is a product over time
        return kind if products else region
    return region if kind == CONTEXT and region else kind


def _first(patterns: Patterns, name: str) -> str:
    return next((kind for pattern, kind in patterns if pattern.search(name)), REST)


def of_kernels(names: Sequence[str], *, persistent: int = 0) -> list[str]:
    """Of the kernels of one step, in the order in which they ran; `persistent` is how many layers have fixed pairs."""
    kinds = [of_kernel(name) for name in names]
    losses = [place for place, kind in enumerate(kinds) if kind == LOSS]
    for place in range(losses[0], losses[-1]) if losses else ():  # a loss in chunks adds up in between
        kinds[place] = kinds[place] if kinds[place] == PRODUCTS else LOSS
    recalls = _recalls(names, kinds)
    for recall in recalls:
        for place in recall:
            kinds[place] = CONTEXT
    if persistent:
        unnamed = [recall for recall in recalls if not names[recall[0]].startswith("contextual_")]
        for recall in _second(names, recalls, persistent) if len(unnamed) == len(recalls) else unnamed:
            for place in recall:
                kinds[place] = PERSISTENT
    return kinds


def _second(names: Sequence[str], recalls: list[list[int]], layers: int) -> list[list[int]]:
    """Every other recall: the second of each block going forward, the first going back."""
    found = []
    for backward in (False, True):
        way = [recall for recall in recalls if any(BACKWARD.search(names[place]) for place in recall) is backward]
        each, odd = divmod(len(way), 2 * layers)  # launches of one recall
        if not odd:
            found += [recall for turn, recall in enumerate(way) if turn // each % 2 == (0 if backward else 1)]
    return found


def _recalls(names: Sequence[str], kinds: Sequence[str]) -> list[list[int]]:
    """Places of the kernels of every recall: the main one, what prepares it and what follows up."""
    recalls: list[list[int]] = []
    before: list[int] = []
    for place in (place for place, kind in enumerate(kinds) if kind == CONTEXT):
        if BEFORE.search(names[place]):
            before.append(place)
        elif AFTER.search(names[place]) and recalls:
            recalls[-1].append(place)
        elif not SOFTMAX.search(names[place]):
            recalls.append([*before, place])
            before = []
        elif not recalls or place > recalls[-1][-1]:  # else it is between products that are counted already
            places = _with_products(names, kinds, place)
            recalls.append([place for place in places if kinds[place] in (CONTEXT, PRODUCTS)])
    return recalls


def _with_products(names: Sequence[str], kinds: Sequence[str], place: int) -> range:
    """From the product before a softmax to the one after. A product may be two kernels: parts, and their sum."""
    products = [other for other, kind in enumerate(kinds) if kind == PRODUCTS]
    first = max((other for other in products if other < place), default=place)
    last = min((other for other in products if other > place), default=place)
    first -= "splitK" in names[first]
    last += last + 1 < len(names) and "splitK" in names[last + 1]
    return range(first, last + 1)
