"""What GitHub shows to who opens an issue can be read by it, and links of the template of changes lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

FOLDER = Path(__file__).parents[2] / ".github"


@pytest.mark.parametrize("form", sorted((FOLDER / "ISSUE_TEMPLATE").glob("*.yml")), ids=lambda form: form.name)
def test_a_form_has_what_github_wants(form: Path) -> None:
    content = yaml.safe_load(form.read_text(encoding="utf-8"))
    assert set(content) == {"name", "description", "labels", "body"}
    fields = [part for part in content["body"] if part["type"] != "markdown"]
    assert {part["type"] for part in fields} <= {"input", "textarea", "dropdown", "checkboxes"}
    assert all(part["attributes"]["label"] for part in fields)
    assert len({part["id"] for part in fields}) == len(fields)
    assert any(part.get("validations", {}).get("required") for part in fields)


def test_links_of_the_template_of_changes() -> None:
    template = FOLDER / "PULL_REQUEST_TEMPLATE.md"
    targets = re.findall(r"\]\(([^)#]+)", template.read_text(encoding="utf-8"))
    assert len(targets) == 2
    assert all((FOLDER / target).is_file() for target in targets)
