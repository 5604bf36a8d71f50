"""Kernels are told by their names and their order, operators by the layer that they are of."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.autograd import DeviceType

from benchmarks.conftest import CEILINGS, SIZE, WORK
from memory_mosaics.benchmarks import bench, profile, throughput
from memory_mosaics.benchmarks.profile import COPIES, KEYS, LOSS, OPTIMISER, POINTWISE, PRODUCTS, REST, VALUES, Slice
from memory_mosaics.benchmarks.timing import TABLES, Timer
from memory_mosaics.errors import UserError
from memory_mosaics.experiments.figures import LABELS, STYLE, speed
from memory_mosaics.ops import common

C, P = profile.CONTEXT, profile.PERSISTENT
FORWARD = "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_kernel0_0"
BACKWARD = "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_31_64x64x64_4x1x1_kernel0_0"
DOT = "void cudnn::fusion::compute_dot_do_o_specialized<true, __nv_bfloat16, 128, 256, 64>(...)"
CONVERT = "void cudnn::fusion::convert_dq_to_16bits<false, __nv_bfloat16, 512, 64, 64>(...)"
GEMM, SPLIT = "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT", "void cublasLt::splitKreduce_kernel<32, 16, int, ...>(...)"
GEMV = "void gemvNSP_kernel<__nv_bfloat16, __nv_bfloat16, __nv_bfloat16, float, 1, 32, 4, 1024, ...>(...)"
NORM = "triton_per_fused__to_copy_add_native_layer_norm_0"
LOSSES, CPU = "loss_and_gradient", Timer(torch.device("cpu"))

NAMES = {
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off": PRODUCTS,
    "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NTN": PRODUCTS,
    "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn_align8>(...)": PRODUCTS,
    "ampere_bf16_s16816gemm_bf16_64x64_sliced1x2_ldg8_f2f_stages_64x5_tn": PRODUCTS,
    "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, __nv_bfloat16, float>(...)": PRODUCTS,
    "void gemv2T_kernel_val<int, int, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16, float, 128, 16>(...)": PRODUCTS,
    "triton_tem_fused_mm_t_4": PRODUCTS,
    SPLIT: PRODUCTS,
    FORWARD: C,
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, false, false>, ...>(...)": C,
    "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<64>>(...)": C,
    "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<...>::Params)": C,
    "void cutlass::device_kernel<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2, ...>>>(...)": C,
    "key_forward_sums": KEYS,
    "gated_key_backward": KEYS,
    "value_backward": VALUES,
    LOSSES: LOSS,
    "triton_red_fused__log_softmax_nll_loss_forward_2": LOSS,
    "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, float, LogSoftMaxForwardEpilogue>(...)": LOSS,
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>, "
    "at::native::(anonymous namespace)::FusedAdamMathFunctor<float, 4, ADAM_MODE::ADAMW, false>>(...)": OPTIMISER,
    "void at::native::lpnorm_cleanup<float, (at::native::NormType)1, float, float, 4>(...)": OPTIMISER,
    "Memcpy DtoD (Device -> Device)": COPIES,
    "Memset (Device)": COPIES,
    "triton_poi_fused__to_copy_1": COPIES,
    "triton_poi_fused__to_copy_t_12": COPIES,
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(...)::lambda, ...>(...)": COPIES,
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, ...>(int, ...)": COPIES,
    "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 1, 128, 1>(...)": COPIES,
    NORM: POINTWISE,
    "triton_poi_fused__to_copy_mul_2": POINTWISE,
    "triton_red_fused_native_layer_norm_native_layer_norm_backward_5": POINTWISE,
    "triton_poi_fused__scaled_dot_product_cudnn_attention_clone_transpose_6": POINTWISE,
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float, false>(...)": POINTWISE,
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, ...>(...)": POINTWISE,
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::sum_functor<...>>>(...)": POINTWISE,
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>>>(...)": REST,
    "void at::native::index_elementwise_kernel<128, 4, at::native::gpu_index_kernel<...>>(...)": REST,
    "void at_cuda_detail::cub::DeviceRadixSortOnesweepKernel<...>(...)": REST,
}


@pytest.mark.parametrize("name", NAMES)
def test_names_of_kernels(name):
    assert profile.kernel_kind(name) == NAMES[name]
    assert not profile.NOT_KERNELS.search(name)


def test_all_kernels_of_ours_are_known():
    files = [file.read_text() for file in Path(common.__file__).parent.glob("*.py")]
    kernels = [(name, text) for text in files for name in re.findall(r"^@triton\.jit\ndef (\w+)\(", text, re.M)]
    launched = {name for name, text in kernels if f"    {name}[" in text}
    assert {"key_forward", "value_backward", LOSSES} <= launched
    assert not [name for name in launched if profile.kernel_kind(name) == REST]


def test_persistent_recall_is_the_second_of_a_block_forward_and_the_first_backward():
    block, back = [GEMM, NORM, FORWARD, GEMM, FORWARD, SPLIT], [GEMM, DOT, BACKWARD, CONVERT]
    names = [*block, *block, LOSSES, *back * 4]
    forward = [PRODUCTS, POINTWISE, C, PRODUCTS, P, PRODUCTS]
    backward = [PRODUCTS, P, P, P, PRODUCTS, C, C, C]
    assert profile.kernel_kinds(names, persistent=2) == [*forward * 2, LOSS, *backward * 2]
    assert P not in profile.kernel_kinds(names)
    assert P not in profile.kernel_kinds([*names, *back], persistent=2), "of something else, in no known order"


def test_recall_from_the_context_may_have_kernels_of_its_own():
    first, second = "contextual_backward_queries", "contextual_backward_pairs"
    names = [
        GEMM,
        "contextual_forward",
        GEMM,
        FORWARD,
        LOSSES,
        GEMM,
        DOT,
        "Memset (Device)",
        BACKWARD,
        GEMM,
        first,
        second,
    ]
    found = profile.kernel_kinds(names, persistent=1)
    assert [kind for kind in found if kind in (C, P)] == [C, P, P, P, C, C]


def test_recall_in_two_launches():
    answer, merge, ready = "recall_answer", "recall_merge", "triton_per_fused__to_copy_add_mm_mul_recall_few_view_2"
    names = [ready, answer, merge, GEMV, answer, NORM, GEMV, ready, answer, merge, GEMV, answer]
    expected = [C, C, C, PRODUCTS, P, POINTWISE, PRODUCTS, C, C, C, PRODUCTS, P]
    assert profile.kernel_kinds(names, persistent=2) == expected


def test_products_of_one_row_are_products_whatever_is_fused_with_them():
    products = [
        "per_fused_mm_native_layer_norm_t_view_1",
        "red_fused__unsafe_view_add_gelu_mm_t_view_7",
        "per_fused_mm_t_view_7",
    ]
    assert {profile.kernel_kind(f"triton_{name}") for name in products} == {PRODUCTS}
    others = [
        "per_fused__unsafe_view_add_mm_native_layer_norm_view_8",
        "poi_fused_add_2",
        "per_fused_native_layer_norm_0",
    ]
    assert {profile.kernel_kind(f"triton_{name}") for name in others} == {POINTWISE}


def test_states_that_are_copied_are_no_optimiser():
    start = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
    assert (
        profile.kernel_kind(f"{start}TensorListMetadata<2>, at::native::(anonymous namespace)::CopyFunctor<")
        == profile.COPIES
    )
    assert profile.kernel_kind(f"{start}FusedOptimizerTensorListMetadata<4>, at::native::") == profile.OPTIMISER


def test_a_loss_in_chunks_keeps_its_products():
    add = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, ...>(...)"
    names = [GEMM, LOSSES, GEMM, GEMM, add, GEMM, LOSSES, GEMM, GEMM, add]
    found = profile.kernel_kinds(names)
    assert [name for name, kind in zip(names, found, strict=True) if kind == LOSS] == [LOSSES, add, LOSSES]
    assert found[-1] == POINTWISE


def event(name, start, time, device=DeviceType.CUDA, note=False):
    span = SimpleNamespace(start=float(start), end=float(start + time))
    return SimpleNamespace(name=name, time_range=span, device_type=device, is_user_annotation=note)


def test_kernels_are_what_ran_on_the_device():
    events = [
        event(FORWARD, 50, 7),
        event("aten::mm", 0, 99, DeviceType.CPU),
        event("Optimizer.step#AdamW.step", 0, 99, note=True),
        event("Activity Buffer Request", 0, 99),
        event("Context Sync", 0, 99),
        event(GEMM, 20, 5),
    ]
    assert profile.kernel_slices(events, persistent=0) == [
        Slice(GEMM, PRODUCTS, 20.0, 5.0),
        Slice(FORWARD, C, 50.0, 7.0),
    ]
    with pytest.raises(UserError, match="sees no kernels"):
        profile.kernel_slices(events[1:3], persistent=0)


def test_idle_is_what_no_kernel_fills():
    spans = ((PRODUCTS, 0.0, 400.0), (C, 300.0, 200.0), (C, 320.0, 100.0), (REST, 900.0, 50.0))
    slices = [Slice("a", *span) for span in spans]
    assert profile.busy_time(slices) == 550
    rows = {row["kind"]: row for row in profile.time_by_kind(slices, 1e-3)}
    assert rows[profile.IDLE]["ms"] == pytest.approx(0.45)
    assert (rows[C]["ms"], rows[C]["launches"]) == (0.3, 2)
    assert sum(row["share"] for row in rows.values()) == pytest.approx(1, abs=1e-3)
    assert profile.time_by_kind(slices, 1e-6)[-1] == {"kind": profile.IDLE, "ms": 0.0, "share": 0.0, "launches": 0}
    assert profile.IDLE not in {row["kind"] for row in profile.time_by_kind(slices, None)}


def test_the_longest_kernels():
    slices = [Slice(f"k{i}" + "x" * 500, REST, 0.0, float(i)) for i in range(20)] + [Slice("many", KEYS, 0.0, 15.0)] * 2
    found = profile.longest_kernels(slices)
    assert len(found) == 15
    assert found[0] == {"kernel": "many", "kind": KEYS, "ms": 0.03, "launches": 2}
    assert all(len(row["kernel"]) <= 160 for row in found)


def test_on_the_cpu_operators_are_of_their_layer_forward_and_backward(monkeypatch):
    monkeypatch.setattr(profile, "MAX_KERNELS", 1000)
    found = list(profile.measure(CPU, CEILINGS, WORK))
    kernels = [row for row in found if "kernel" in row]
    rows = {(row["step"], row["model"], row["kind"]): row for row in found if "kernel" not in row}
    blocks, mosaic, twin = SIZE.blocks, "memory-mosaic", "transformer"
    recall = {(row["kind"], "backward" in row["kernel"].lower()): row for row in kernels if _recalls(row, mosaic)}
    for kind in (C, P):
        assert recall[kind, False]["launches"] == recall[kind, True]["launches"] == blocks
        assert rows["decoding", mosaic, kind]["launches"] >= blocks
    assert rows["training", twin, C]["launches"] >= 2 * blocks
    for kind in (KEYS, VALUES, P):
        assert ("training", mosaic, kind) in rows
        assert ("training", twin, kind) not in rows
    for name in throughput.PAIR:
        assert {LOSS, OPTIMISER, PRODUCTS} <= {
            kind for step, model, kind in rows if (step, model) == ("training", name)
        }
        assert ("training", name, profile.IDLE) not in rows
        assert ("decoding", name, LOSS) not in rows
        for step in ("training", "decoding"):
            shares = [row["share"] for (*key, _), row in rows.items() if key == [step, name]]
            assert sum(shares) == pytest.approx(1, abs=0.01)


def _recalls(row, model):
    kept, fused = row["kernel"].startswith("_KeptWeights"), "scaled_dot_product_flash" in row["kernel"]
    return (row["step"], row["model"]) == ("training", model) and (kept or fused)


def section():
    about = {"size": "tiny", "batch": 2, "context": 12, "share": 0.1, "launches": 3}
    rows = [
        about | {"step": step, "model": name, "label": LABELS[name], "kind": kind, "ms": scale * (place + 1)}
        for step, scale in (("training", 2.0), ("decoding", 0.01))
        for name in throughput.PAIR
        for place, kind in enumerate(profile.KINDS)
        if name == "memory-mosaic" or kind not in (P, KEYS, VALUES)
    ]
    return {"hardware": "a machine", "ceilings": CEILINGS, "rows": rows}


def test_the_table_is_kinds_by_models():
    _, head, *lines = bench.table("profile", section()).splitlines()
    assert head.split() == ["step", "milliseconds", "Memory", "Mosaic", "transformer,", "learned", "positions"]
    assert len(lines) == 2 * (len(profile.KINDS) + 1)
    assert lines[2].split() == ["training", "persistent", "recall", "6", "-"]
    assert lines[11].split() == ["training", "total", "132", "108"]


def drawn():
    figure = speed.profile({"profile": section()})
    assert figure is not None
    return figure


def test_the_figure_has_a_bar_for_each_step_and_model():
    assert list(speed.KINDS) == list(profile.KINDS)
    assert {kind for table in ("kernels", "operators") for _, kind in TABLES[table]} <= set(profile.KINDS)
    assert set(STYLE["pale"]) <= set(speed.KINDS)
    figure = drawn()
    for axes, total in zip(figure.axes, ("132", "0.660"), strict=False):
        assert [label.get_text() for label in axes.get_yticklabels()] == [
            "Memory Mosaic",
            "transformer, learned positions",
        ]
        words = [text.get_text() for text in axes.texts]
        assert total in words
        assert len(axes.patches) == len(profile.KINDS) + len(profile.KINDS) - 3
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(profile.KINDS)
    assert speed.profile({"profile": {"rows": []}}) is None


def test_words_stay_inside_their_segments():
    figure = drawn()
    figure.draw_without_rendering()
    for axes in figure.axes:
        boxes = [patch.get_window_extent() for patch in axes.patches]
        for text in axes.texts:
            if text.get_fontweight() != "bold":
                box = text.get_window_extent()
                assert any(bar.x0 <= box.x0 and box.x1 <= bar.x1 and bar.y0 <= box.y0 for bar in boxes), text
