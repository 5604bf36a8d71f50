"""The README without images and relative links, which a package index cannot follow; all else is in pyproject.toml."""

import re
from pathlib import Path

from setuptools import setup

README = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
README = re.sub(r"^!\[.*?\]\(.*?\)\n+", "", README, flags=re.MULTILINE)
README = re.sub(r"(: \[how[^\]]*\]| \(\[[^\]]+\])\((?!https?://)[^)]*\)\)?", "", README)
README = README.replace("'.[", "'memory-mosaics[")
README = re.sub(r"\[([^\]]+)\]\((?!https?://)[^)]*\)", r"\1", README)

setup(long_description=README, long_description_content_type="text/markdown")
