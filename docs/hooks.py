"""What `make docs` adds to mkdocs.

Pages have the paths of the repository, so that their links work here and on the site: the files of the site are those
that the links of the navigation's pages lead to. A folder is its README or a list of its files, source is shown as a
page, anything else is copied. Tutorials are executed, formulas become MathML, and at the end all links of the site are
checked, and that it loads nothing from another host.
"""

import hashlib
import html
import os
import posixpath
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import griffe
from latex2mathml.converter import convert
from markdown import Extension, Markdown
from markdown.inlinepatterns import SimpleTextInlineProcessor
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
TUTORIALS = "docs/tutorials"
SHOWN = {".py": "python", ".yaml": "yaml", ".sh": "bash", ".cff": "yaml"}  # source that has a page
LINK = re.compile(r"(\]\()([^)\s#:]+)(?=[)#])")
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}


class NoUnderscores(Extension):
    """`_` is a subscript in docstrings; emphasis is written with `*`."""

    def extendMarkdown(self, md: Markdown) -> None:
        md.inlinePatterns.register(SimpleTextInlineProcessor("(_+)"), "underscores", 65)  # before emphasis


class Documented(griffe.Extension):
    """Leaves out what a constructor assigns, fields that are in the signature, declarations and constants."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        assigned = attr.labels == {"instance-attribute"} and attr.value is not None
        field = attr.parent is not None and "dataclass" in attr.parent.labels
        declared = attr.name in ("init_roles", "param_specs", "extractor")
        constant = attr.name.isupper() and attr.name not in ("PRESETS", "CHECKS")
        if attr.docstring is None and (assigned or field or declared or constant):
            attr.public = False


def on_config(config: Any) -> None:
    config.markdown_extensions.append(NoUnderscores())


def on_files(files: Files, config: Any) -> Files:
    """Replace the files of docs/ by those of the navigation and all that their links lead to."""
    for file in [file for file in files if file.src_dir == config.docs_dir]:
        files.remove(file)
    assets = [*map(str, config.extra_css), *config.extra.get("polyfills", ())]
    waiting, found = [*_strings(config.nav), *(path for path in assets if (ROOT / path).exists())], set()
    while waiting:
        if (path := waiting.pop()) not in found:
            found.add(path)
            files.append(file := _read(path, config))
            if file.is_documentation_page():
                waiting += [_in_site(target) for target in _targets(file)]
    for file in _executed(found, config):
        if file.src_uri in found:
            files.remove(files.get_file_from_path(file.src_uri))  # type: ignore[arg-type]
        files.append(file)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead the links to folders and to source to their pages."""
    folder = posixpath.dirname(page.file.src_uri)

    def lead(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, link[2]))
        return link[0] if path.startswith("..") else link[1] + posixpath.relpath(_in_site(path), folder or ".")

    return LINK.sub(lead, markdown)


def on_page_content(content: str, **_: Any) -> str:
    """Write formulas as MathML, which browsers draw without a script."""
    displays = {"span": "inline", "div": "block"}
    return FORMULA.sub(lambda found: convert(html.unescape(found[2]), display=displays[found[1]]), content)


def on_post_build(config: Any) -> None:
    """Raise an error that lists all links without a target, and all that would be loaded from other hosts."""
    site = Path(config.site_dir)
    pages = {file: _Page(file) for file in sorted(site.rglob("*.html"))}
    wrong = [f"{file.relative_to(site)}: {what}" for file, page in pages.items() for what in page.wrong(site, pages)]
    for file in site.rglob("*.css"):
        wrong += [
            f"{file.relative_to(site)}: {url}" for url in re.findall(r"url\([\"']?(\w+://[^)]*)", file.read_text())
        ]
    if wrong:
        raise PluginError("\n".join(["links without a target, or of things on other hosts:", *wrong]))


def _strings(nav: Any) -> Iterator[str]:
    """The paths of a navigation."""
    if isinstance(nav, str):
        yield nav
    else:
        for part in nav.values() if isinstance(nav, dict) else nav:
            yield from _strings(part)


def _in_site(path: str) -> str:
    """What shows a path of the repository in the site."""
    full = ROOT / path
    if full.is_dir():
        return posixpath.normpath(f"{path}/README.md" if (full / "README.md").exists() else f"{path}/index.md")
    return f"{path}.md" if full.suffix in SHOWN and full.exists() else path


def _read(path: str, config: Any) -> File:
    """The file of the site at this path, from the repository or made here."""
    full = ROOT / path
    if full.exists():
        return File.generated(config, path, abs_src_path=str(full))
    if full.name == "index.md" and full.parent.is_dir():
        names = sorted(file.name for file in full.parent.iterdir() if not file.name.startswith(("_", ".")))
        text = "\n".join([f"# {full.parent.relative_to(ROOT)}\n", *(f"- [{name}]({name})" for name in names)])
    elif (source := full.with_suffix("")).exists():
        text = f"# {source.relative_to(ROOT)}\n\n~~~~{SHOWN[source.suffix]}\n{source.read_text()}\n~~~~\n"
    else:
        raise PluginError(f"{path} is linked, and does not exist")
    return File.generated(config, path, content=f"---\nsearch:\n  exclude: true\n---\n{text}")


def _targets(file: File) -> Iterator[str]:
    """The paths in the repository that a page links to."""
    for _, target in LINK.findall(file.content_string):
        path = posixpath.normpath(posixpath.join(posixpath.dirname(file.src_uri), target))
        if (ROOT / path).exists() and not path.startswith(".."):
            yield path


def _executed(found: set[str], config: Any) -> list[File]:
    """The tutorials with what their code prints and draws, as pages and as notebooks.

    They are kept beside the site until a tutorial or the library changes.
    """
    execute = ROOT / TUTORIALS / "execute.py"
    library = hashlib.sha256(b"".join(file.read_bytes() for file in [execute, *sorted((ROOT / "src").rglob("*.py"))]))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}

    def outputs(path: str) -> list[Path]:
        checksum = library.copy()
        checksum.update((ROOT / path).read_bytes())
        folder = Path(config.site_dir).with_name("tutorials") / checksum.hexdigest()[:16]
        if not folder.exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
                (out := Path(temporary) / "out").mkdir()
                command = [sys.executable, str(execute), str(ROOT / path), str(out)]
                run = subprocess.run(command, env=environment, capture_output=True, text=True)
                if run.returncode:
                    raise PluginError(f"{path}: {run.stderr}")
                out.rename(folder)
        return sorted(folder.iterdir())

    tutorials = sorted(path for path in found if path.startswith(TUTORIALS) and path.endswith(".md"))
    with ThreadPoolExecutor(2) as pool:
        made = [file for files in pool.map(outputs, tutorials) for file in files]
    return [File.generated(config, f"{TUTORIALS}/{file.name}", content=file.read_bytes()) for file in made]


class _Page(HTMLParser):
    """The anchors of a page, what it links to and what it loads."""

    def __init__(self, file: Path):
        super().__init__()
        self.file, self.anchors, self.links, self.loads = file, {"", "__top"}, [], []
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if LOADS.get(tag) in found:
            self.loads.append(found[LOADS[tag]])

    def wrong(self, site: Path, pages: dict[Path, "_Page"]) -> Iterator[str]:
        for url in self.links + self.loads:
            parts = urlsplit(url)
            if parts.scheme or parts.netloc:
                if url in self.loads and parts.scheme != "data":
                    yield f"loads {url}"
                continue
            path = unquote(parts.path)
            target = site / path.lstrip("/") if path.startswith("/") else self.file.parent / path
            target = Path(os.path.normpath(self.file if not path else target))
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file() or not target.is_relative_to(site):
                yield f"{url} is not there"
            elif target in pages and unquote(parts.fragment) not in pages[target].anchors:
                yield f"{url}: there is no such anchor"
