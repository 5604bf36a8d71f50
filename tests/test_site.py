"""The hooks of the site: tutorials are executed, links are checked, nothing comes from another host."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

pytest.importorskip("mkdocs", reason="the site needs the extra docs")
DOCS = Path(__file__).parents[1] / "docs"


def module(path: Path):
    spec = importlib.util.spec_from_file_location(f"docs_{path.stem}", path)
    spec.loader.exec_module(found := importlib.util.module_from_spec(spec))
    return found


hooks, tutorial = module(DOCS / "hooks.py"), module(DOCS / "tutorials" / "execute.py")

PAGE = """# Page

```python
from matplotlib import pyplot as plt
answer = 6 * 7
print("answer", answer)
plt.figure().set_label("nothing")
```

and then

```console
mosaics info memory-mosaic-tiny  # a comment
```
"""


def test_a_tutorial_gets_its_outputs_as_a_page_and_as_a_notebook(tmp_path):
    (tmp_path / "page.md").write_text(PAGE)
    (out := tmp_path / "out").mkdir()
    tutorial.execute(tmp_path / "page.md", out)
    written = (out / "page.md").read_text()
    assert "```{.text .output}\nanswer 42\n```" in written
    assert "![nothing](page-1.svg)" in written
    assert written.index("answer 42") < written.index("and then") < written.index("contextual_memory")
    cells = json.loads((out / "page.ipynb").read_text())["cells"]
    assert [cell["cell_type"] for cell in cells] == ["markdown", "code", "markdown", "code"]
    assert cells[1]["outputs"][0]["text"] == "answer 42\n"
    assert cells[3]["source"].startswith("!mosaics info")


@pytest.mark.parametrize(
    ("block", "error"),
    [
        ("```python\nraise LookupError('x')\n```\n", LookupError),
        ("```console\nmosaics info no-such\n```\n", SystemExit),
    ],
)
def test_an_error_in_a_tutorial_is_an_error(block, error, tmp_path, capsys):
    (tmp_path / "page.md").write_text(block)
    with pytest.raises(error):
        tutorial.execute(tmp_path / "page.md", tmp_path)


def test_what_leads_nowhere_is_found(tmp_path):
    (tmp_path / "other.html").write_text("<h2 id='there'>There</h2>")
    good = "<a href='other.html#there'>1</a> <a href='https://example.org'>2</a> <a href='#'>3</a> <img src='data:,'>"
    bad = [
        "<a href='gone.html'>",
        "<a href='other.html#gone'>",
        "<img src='gone.png'>",
        "<script src='//cdn.org/x.js'>",
    ]
    (tmp_path / "page.html").write_text(good)
    hooks.on_post_build(config := type("Config", (), {"site_dir": str(tmp_path)}))
    (tmp_path / "page.html").write_text(good + "".join(bad))
    (tmp_path / "site.css").write_text("@font-face { src: url(https://fonts.example.org/a.woff2) }")
    with pytest.raises(hooks.PluginError) as error:
        hooks.on_post_build(config)
    assert len(str(error.value).splitlines()) == 1 + len(bad) + 1


def test_links_lead_to_pages_of_folders_and_source():
    page = type("Page", (), {"file": type("File", (), {"src_uri": "docs/training.md"})})
    text = (
        "[a](../experiments/regbench) [b](../src/memory_mosaics/memory.py) [c](serve.md#limits) [d](https://x.org/y.py)"
    )
    found = re.findall(r"\]\((.*?)\)", hooks.on_page_markdown(text, page))
    expected = ["../experiments/regbench/README.md", "../src/memory_mosaics/memory.py.md", "serve.md#limits"]
    assert found == [*expected, "https://x.org/y.py"]


def test_formulas_become_mathml():
    written = hooks.on_page_content(r'<p><span class="arithmatex">\(a &lt; \beta\)</span></p>')
    assert written.startswith("<p><math")
    assert "arithmatex" not in written
    assert "&lt;" in written or "&#x0003C;" in written
