"""What the README shows runs, and what the documents name is there."""

import re
from pathlib import Path

import pytest

from vivavoce.checkpoint.config import Generation
from vivavoce.frontend.text.tokenizer import PRONUNCIATION_TOKENS, SPECIAL_TOKENS
from vivavoce_bench.commands.plan import card_rows, planned_engine
from vivavoce_bench.planning import CARDS
from vivavoce_bench.random_checkpoint import release_config

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("deploy/**/README.md")])


@pytest.mark.parametrize(
    "code",
    # What asks a server is tried where there is one: tests/server/http/test_server_docs.py.
    [code for code in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "http://" not in code],
)
@pytest.mark.slow
def test_python_examples_run(code, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VIVAVOCE_HOME", str(tmp_path))
    exec(compile(code, "README.md", "exec"), {})
    assert (tmp_path / "hello.wav").stat().st_size > 1000
    assert "real-time factor" in capsys.readouterr().out


def anchors(page):
    """What GitHub calls the headings of a page."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\((?!http)([^)#\s]*)(?:#([^)]+))?\)", page.read_text(encoding="utf-8")):
        file = page.parent / target if target else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), f"{target}#{anchor}"


@pytest.mark.slow
def test_figures_of_cards_are_those_that_are_planned():
    page = (ROOT / "docs/install.md").read_text(encoding="utf-8")
    for row in card_rows(release_config(Generation.V2), "auto", list(CARDS)):
        assert f"\n| {' | '.join(map(str, row.values()))} |\n" in page
    for generation in Generation:
        config = release_config(generation)
        cells = [division(planned_engine(config, "auto", gigabytes)) for gigabytes in (8, 16, 24)]
        assert f" | {' | '.join(cells)} |\n" in page


def division(planned):
    """A cell of the table of small GPUs."""
    state = (
        "" if planned.memory.batch_frames is None else f" / {planned.state_s:.0f} s / {planned.memory.batch_frames:,}"
    )
    return f"{planned.memory.slots}{state}"


def test_marks_are_those_of_the_vocabulary():
    text = (ROOT / "docs/reading.md").read_text(encoding="utf-8")
    named = re.findall(r"\[[a-z_-]+\](?!\()|</?(?:strong|laughter)>", text)
    known = {token for token in SPECIAL_TOKENS if "|" not in token}
    assert set(named) - {"[pause]"} - {*PRONUNCIATION_TOKENS} == known
    assert set(re.findall(r"\[[^\W\d]\w*\](?!\()", text)) - {"[pause]"} - known <= {*PRONUNCIATION_TOKENS}
