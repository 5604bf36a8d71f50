"""Forms of the ops for CUDA. Triton is imported where a kernel is launched, never before."""
