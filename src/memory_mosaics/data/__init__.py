"""Data sets, one file each. Whatever the data, what comes out is a `Batch`, a pure function of (seed, step)."""
