"""The page: one file, nothing from elsewhere, and data that cannot break out of it."""

import json
import re
import shutil
import subprocess
from importlib import resources

import pytest

from monograph.report.page import fill_template, make_page

TEMPLATES = ("page.html", "pipeline_page.html", "plan_page.html", "run_page.html")
HOSTILE = "</script><script>alert('no')</script>"


def make_report():
    return {"run": {"recipe": HOSTILE}, "captured": {"saved": [1]}, "passes": [], "final": {"saved": [1]}}


def test_the_page_needs_no_other_file():
    page = make_page(make_report())
    assert not re.findall(r"(?:src|href)\s*=|@import|url\(", page)
    assert all(link.startswith("`#") or link.startswith('"#') for link in re.findall(r"href: (\S+)", page))
    assert set(re.findall(r"https?://[^\"']+", page)) == {"http://www.w3.org/2000/svg"}, "a name, not an address"


def test_what_the_report_says_cannot_end_the_script_it_stands_in():
    page = make_page(make_report())
    assert page.count("<script>") == page.count("</script>") == 1


def test_the_page_holds_the_report_without_the_long_list_of_saved_values():
    page = make_page(make_report())
    data = json.loads(re.search(r"const report = (.*);\n", page)[1])
    assert data == {"run": {"recipe": HOSTILE}, "captured": {}, "passes": [], "final": {}}


def test_the_page_serves_light_and_dark_and_small_screens():
    page = make_page(make_report())
    assert "prefers-color-scheme: dark" in page
    assert "max-width: 900px" in page


@pytest.mark.skipif(shutil.which("node") is None, reason="no Node.js here")
@pytest.mark.parametrize("name", TEMPLATES)
def test_the_script_of_every_page_is_valid_javascript(name, tmp_path):
    script = tmp_path / "page.js"
    script.write_text(re.search(r"<script>(.*)</script>", fill_template(name, {}), re.DOTALL)[1], encoding="utf-8")
    done = subprocess.run(["node", "--check", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_no_script_makes_elements_from_text():
    files = [file for file in resources.files("monograph.report").iterdir() if file.name.endswith((".js", ".html"))]
    assert {file.name for file in files} >= set(TEMPLATES)
    unsafe = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(")
    assert [file.name for file in files if unsafe.search(file.read_text(encoding="utf-8"))] == []


def read_colors(css, dark):
    """Names and values of the colors, in the light or in the dark."""
    light, rest = css.split("@media (prefers-color-scheme: dark)")
    pattern = r"--([\w-]+): (#[0-9a-f]{6})"
    return dict(re.findall(pattern, light)) | (dict(re.findall(pattern, rest)) if dark else {})


def compute_contrast(first, second):
    """As WCAG 2 defines it."""

    def luminance(color):
        parts = [int(color[index : index + 2], 16) / 255 for index in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted(map(luminance, (first, second)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_text_has_the_contrast_that_accessible_pages_need(dark):
    colors = read_colors((resources.files("monograph.report") / "shared.css").read_text(), dark)
    pairs = [(text, ground) for text in ("ink", "quiet", "accent") for ground in ("page", "card")] + [
        ("page", "accent")
    ]
    pairs += [(f"{kind}-ink", kind) for kind in ("added", "removed", "moved")]
    pairs += [(f"{kind}-ink", "card") for kind in ("added", "removed")] + [(f"run-{n}", "card") for n in range(1, 7)]
    kinds = ("forward", "backward", "input_grad", "weight_grad", "forward_backward")
    pairs += [("label", kind) for kind in kinds]
    weak = [pair for pair in pairs if compute_contrast(*(colors[name] for name in pair)) < 4.5]
    assert weak == []
