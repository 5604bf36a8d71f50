"""Split a file of JSON lines in two by the hash of each line: on one half models are chosen, on the other reported.

python experiments/split_by_hash.py valid.jsonl choose.jsonl report.jsonl
"""

import sys
from hashlib import sha256
from pathlib import Path


def main(source: str, *halves: str) -> None:
    """Write every line to the half that the last bit of its hash names."""
    lines = Path(source).read_bytes().splitlines(keepends=True)
    for bit, half in enumerate(halves):
        chosen = [line for line in lines if sha256(line.strip()).digest()[-1] % 2 == bit]
        Path(half).write_bytes(b"".join(chosen))
        print(f"{half}: {len(chosen):,} of {len(lines):,} lines")


if __name__ == "__main__":
    main(*sys.argv[1:])
