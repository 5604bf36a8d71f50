"""Triton kernels of the selective scan. `selective_scan.py` beside this file says what they compute.

A program owns W channels of one row of the batch, their N states in registers, and walks time. Forward it leaves the
states of every so many steps; backward it walks each such stretch again from there, leaving a trail of states that
never goes farther than the cache, and then comes back along it.
"""

# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false, reportArgumentType=false
# pyright: reportIndexIssue=false, reportCallIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def scan_step(u, dt, B, h, rate, e, n, at, E, N, some, states):
    """The states one step on, and what of the step the way back needs: dt, u, B, and by how much the states decay."""
    step = tl.load(dt + at * E + e, mask=some, other=0.0)
    x = tl.load(u + at * E + e, mask=some, other=0.0)
    into = tl.load(B + at * N + n, mask=states, other=0.0)
    fade = tl.exp2(step[:, None] * rate)
    return fade * h + (step * x)[:, None] * into[None, :], step, x, into, fade


@triton.jit
def scan_forward(
    u, dt, A, B, C, start, y, last, kept, T, E, N, EVERY,
    W: tl.constexpr, WN: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    b, e, n = tl.program_id(0).to(tl.int64), tl.program_id(1) * W + tl.arange(0, W), tl.arange(0, WN)
    some, states = e < E, n < N
    inside, place = some[:, None] & states[None, :], e[:, None] * N + n[None, :]
    rate = tl.load(A + place, mask=inside, other=0.0) * LOG2E
    h = tl.load(start + b * E * N + place, mask=inside, other=0.0)
    stretches = tl.cdiv(T, EVERY)
    for stretch in range(stretches):
        tl.store(kept + (b * stretches + stretch) * E * N + place, h, mask=inside)
        for t in tl.range(stretch * EVERY, tl.minimum((stretch + 1) * EVERY, T), num_stages=STAGES):
            at = b * T + t
            h, _, _, _, _ = scan_step(u, dt, B, h, rate, e, n, at, E, N, some, states)
            out = tl.load(C + at * N + n, mask=states, other=0.0)
            tl.store(y + at * E + e, tl.sum(h * out[None, :], axis=1), mask=some)
    tl.store(last + b * E * N + place, h, mask=inside)


@triton.jit
def scan_backward(
    u, dt, A, B, C, kept, d_y, d_last, d_u, d_dt, d_A, d_B, d_C, d_start, trail, T, E, N, EVERY, BLOCKS,
    W: tl.constexpr, WN: tl.constexpr, STAGES: tl.constexpr, HAS_LAST: tl.constexpr,
):  # fmt: skip
    """What many programs add to, d_A of a row and d_B, d_C of W channels, they leave each by itself."""
    b, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    e, n = block * W + tl.arange(0, W), tl.arange(0, WN)
    some, states = e < E, n < N
    inside, place = some[:, None] & states[None, :], e[:, None] * N + n[None, :]
    A_here = tl.load(A + place, mask=inside, other=0.0)
    rate = A_here * LOG2E
    trail += (b * BLOCKS + block) * EVERY * W * WN + tl.arange(0, W)[:, None] * WN + n[None, :]
    d_B += (b * BLOCKS + block) * T * N + n
    d_C += (b * BLOCKS + block) * T * N + n
    gradient, to_A = tl.zeros([W, WN], tl.float32), tl.zeros([W, WN], tl.float32)
    if HAS_LAST:
        gradient += tl.load(d_last + b * E * N + place, mask=inside, other=0.0)
    stretches = tl.cdiv(T, EVERY)
    for back in range(stretches):
        stretch = stretches - 1 - back
        first, stop = stretch * EVERY, tl.minimum((stretch + 1) * EVERY, T)
        h = tl.load(kept + (b * stretches + stretch) * E * N + place, mask=inside, other=0.0)
        for t in tl.range(first, stop, num_stages=STAGES):
            tl.store(trail + (t - first) * W * WN, h)
            h, _, _, _, _ = scan_step(u, dt, B, h, rate, e, n, b * T + t, E, N, some, states)
        tl.debug_barrier()  # what is on the trail is there
        for i in range(stop - first):
            t = stop - 1 - i
            at = b * T + t
            before = tl.load(trail + (t - first) * W * WN)
            h, step, x, into, fade = scan_step(u, dt, B, before, rate, e, n, at, E, N, some, states)
            out = tl.load(C + at * N + n, mask=states, other=0.0)
            dy = tl.load(d_y + at * E + e, mask=some, other=0.0)
            gradient += dy[:, None] * out[None, :]
            tl.store(d_C + t * N, tl.sum(dy[:, None] * h, axis=0), mask=states)
            tl.store(d_B + t * N, tl.sum(gradient * (step * x)[:, None], axis=0), mask=states)
            arriving = tl.sum(gradient * into[None, :], axis=1)
            gradient *= fade
            decayed = gradient * before  # what reaches dt A
            tl.store(d_u + at * E + e, arriving * step, mask=some)
            tl.store(d_dt + at * E + e, arriving * x + tl.sum(decayed * A_here, axis=1), mask=some)
            to_A += decayed * step[:, None]
        tl.debug_barrier()  # before it is walked over
    tl.store(d_A + b * E * N + place, to_A, mask=inside)
    tl.store(d_start + b * E * N + place, gradient, mask=inside)
