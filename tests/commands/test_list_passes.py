"""`monograph passes`: the table and the page come from the passes themselves."""

from pathlib import Path

from monograph import cli
from monograph.commands.list_passes import make_markdown
from monograph.passes.config import PassesConfig
from monograph.passes.order import ORDER
from monograph.passes.runner import build_passes

PAGE = Path(__file__).parent.parent.parent / "docs" / "passes.md"


def test_the_page_on_passes_is_up_to_date():
    written = PAGE.read_text(encoding="utf-8")
    config = PassesConfig()
    assert written == make_markdown(build_passes(config), config), "monograph passes --markdown > docs/passes.md"


def test_the_table_lists_every_pass_in_order_with_its_options(capsys):
    assert cli.main(["passes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [line.split()[0] for line in lines if line.startswith("  ") and line[2] != " "]
    assert names == list(ORDER)
    assert any("max_bytes = 268435456" in line for line in lines)


def test_the_page_says_of_each_pass_what_happens_to_the_numbers():
    page = PAGE.read_text(encoding="utf-8")
    for each in build_passes(PassesConfig()):
        promise = "low precision" if each.is_low_precision else "bitwise" if each.bitwise else "within rounding"
        assert f"| [{each.name()}](#{each.name()}) | {promise} |" in page
        assert f"\n## {each.name()}\n" in page
