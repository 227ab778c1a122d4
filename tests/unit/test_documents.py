"""The documents: what is made from the code is fresh, links lead somewhere, every page is in the navigation, and no
page says where it was made."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest
import typer
from places import ROOT

from kernelwright.cli import app
from kernelwright.errors import catalogue
from kernelwright.settings import ENVIRONMENT

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
NAMED = {str(page.relative_to(ROOT)): page for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES]}


@pytest.fixture(scope="module")
def tools():
    """The tools that make pages, by name."""
    sys.path.append(str(ROOT / "tools"))
    try:
        return {name: runpy.run_path(str(ROOT / "tools" / f"{name}.py"))
                for name in ("document_pages", "pictures", "site_links")}
    finally:
        sys.path.remove(str(ROOT / "tools"))


def prose(text: str) -> str:
    """A page without its code."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^    .*$", "", text, flags=re.MULTILINE))


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as MkDocs makes them."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE),
                              re.MULTILINE):
        name = re.sub(r"[^\w\s-]", "", re.sub(r"\[(.*?)\]\(.*?\)", r"\1", heading)).strip().lower()
        name = re.sub(r"[-\s]+", "-", name)
        number, unique = 0, name
        while unique in found:
            number += 1
            unique = f"{name}_{number}"
        found.add(unique)
    return found


def broken(page: Path, text: str) -> list[str]:
    """The links of a page that lead nowhere."""
    wrong = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(text)):
        path, _, anchor = link.partition("#")
        if re.match(r"[a-z]+://", link):
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target.read_text(encoding="utf-8"))):
            wrong.append(link)
    return wrong


@pytest.mark.parametrize("name", NAMED)
def test_links_lead_somewhere(name):
    assert broken(NAMED[name], NAMED[name].read_text(encoding="utf-8")) == []


def test_broken_links_are_found(tmp_path):
    (tmp_path / "a.md").write_text("# A title, `code`\n\n## Twice\n\n## Twice\n")
    text = ("[ok](a.md#a-title-code) [ok](a.md#twice_1) [no](a.md#thrice) [no](b.md) `[code](c.md)` [out](https://e.org)\n\n"
            "    [code](d.md)\n\n```\n[code](e.md)\n```\n")
    assert broken(tmp_path / "page.md", text) == ["a.md#thrice", "b.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(DOCS)))
def test_links_stay_within_the_site(page):
    """A page's links to files outside of docs/ would be none on the site."""
    for link in re.findall(r"\]\(([^)#\s]+)", prose(page.read_text(encoding="utf-8"))):
        if not re.match(r"[a-z]+://", link):
            assert (page.parent / link).resolve().is_relative_to(DOCS), link


def test_every_page_is_in_the_navigation():
    """And has its place once. A new page gets a line in mkdocs.yml."""
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    listed = re.findall(r"^ +- [^:\n]+: (\S+\.md)$", navigation, re.MULTILINE)
    assert sorted(listed) == [page.relative_to(DOCS).as_posix() for page in PAGES]


def test_pages_made_from_the_code_are_fresh(tools):
    """Else: python tools/regenerate.py."""
    stale = [str(path.relative_to(ROOT)) for path, text in tools["document_pages"]["pages"]().items()
             if not path.exists() or path.read_text(encoding="utf-8") != text]
    assert stale == []


def test_pictures_are_fresh(tools):
    assert [path.name for path, text in tools["pictures"]["pictures"]().items()
            if not path.exists() or path.read_text(encoding="utf-8") != text] == []


def test_the_chart_has_every_problem(tools):
    levels = tools["pictures"]["speed_ups"]()
    assert {level: len(problems) for level, problems in levels.items()} == {"level1": 100, "level2": 100, "level3": 50}
    assert levels["level1"]["1_Square_matrix_multiplication_"] == 4.13  # contractions_h200.md
    assert levels["level3"]["48_Mamba2ReturnY"] == 0.449  # the slowest is shown, too
    assert tools["pictures"]["measured"]().count("<circle") == 250


def test_shown_code_is_a_file(tools):
    """Every page with code of ours shows a file that is there, and the tool would see it change."""
    page = next(p for p in PAGES if p.name == "your_model.md").read_text(encoding="utf-8")
    with_code = tools["document_pages"]["with_code"]
    assert with_code(page) == page
    assert with_code(page.replace("class GatedPool", "class Other")) == page


def test_named_pages_become_links(tools):
    """And lead somewhere, in every page; code stays as it is."""
    linked = tools["site_links"]["linked"]
    code = "[`docs/bench.md`](x) and `docs/tour.py`\n\n    `docs/judge.md`\n\n```\n`docs/judge.md`\n```\n"
    text = f"see `docs/judge.md`, {code} and `docs/judge.md`\n"
    assert linked(text, "tutorials/a.md") == (f"see [`docs/judge.md`](../judge.md), {code} and "
                                              "[`docs/judge.md`](../judge.md)\n")
    assert linked(text, "judge.md") == text
    assert {str(p): wrong for p in PAGES if (wrong := broken(p, named(linked(
        p.read_text(encoding="utf-8"), p.relative_to(DOCS).as_posix()))))} == {}


def named(text: str) -> str:
    """A text whose links have plain words, as code is no prose."""
    return re.sub(r"\[`([^`]+)`\]\(", r"[\1](", text)


def test_the_reference_has_all(tools):
    options = (DOCS / "reference" / "options.md").read_text(encoding="utf-8")
    for command in app.registered_commands:
        assert command.hidden or f"\n## kernelwright {command.callback.__name__}\n" in options
    assert {v.name for v in ENVIRONMENT if f"`{v.name}`" not in options} == set()
    errors = (DOCS / "errors.md").read_text(encoding="utf-8")
    assert {kind.code for kind in catalogue() if f"\n## {kind.code} " not in errors} == set()
    from kernelwright.algebra.engine import RULES

    rules = (DOCS / "reference" / "rules.md").read_text(encoding="utf-8")
    assert {rule.name for rule in RULES if f"\n### {rule.name}\n" not in rules} == set()
    interface = (DOCS / "reference" / "api.md").read_text(encoding="utf-8")
    import kernelwright

    assert {n for n in kernelwright.__all__ if not re.search(rf"^## {n}(\(\))?$", interface, re.MULTILINE)} == set()


def unknown_options(text: str) -> list[str]:
    """What the commands that a page shows have, and ours do not."""
    commands = typer.main.get_command(app).commands
    wrong = []
    for name, rest in re.findall(r"^ {4,}(?:\$ )?kernelwright ([a-z]\S*)(.*)$", text, re.MULTILINE):
        known = {"--help", *(o for p in commands[name].params for o in p.opts)} if name in commands else set()
        rest = rest.partition("#")[0].partition("|")[0]
        wrong += [f"{name} {option}" for option in re.findall(r"(?<!\S)--?[a-z][a-z-]*", rest) if option not in known]
        wrong += [name] if name not in commands else []
    return wrong


@pytest.mark.parametrize("name", NAMED)
def test_commands_that_are_shown_exist(name):
    assert unknown_options(NAMED[name].read_text(encoding="utf-8")) == []


def test_unknown_options_are_found():
    text = "    $ kernelwright optimize a.py -o b.py --fast   # --slow\n    kernelwright jugde a.py\n"
    assert unknown_options(text) == ["optimize --fast", "jugde"]


def test_the_first_screen_is_that_of_the_readme():
    """One session, wherever it is shown."""
    session = re.compile(r"^    \$ kernelwright optimize examples/.*?(?=\n\n[^ ])", re.DOTALL | re.MULTILINE)
    shown = [session.findall(path.read_text(encoding="utf-8")) for path in (ROOT / "README.md", DOCS / "index.md")]
    assert len(shown[0]) == 1 and shown[0] == shown[1]


@pytest.mark.parametrize("name", NAMED)
def test_results_that_are_cited_exist(name):
    cited = re.findall(r"benchmarks/results/[\w.]+\.(?:md|jsonl?|txt)", NAMED[name].read_text(encoding="utf-8"))
    assert [path for path in cited if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("name", NAMED)
def test_no_page_says_where_it_was_made(name):
    """No folder of one machine in an output that is shown, but what every system has."""
    text = NAMED[name].read_text(encoding="utf-8")
    assert re.findall(r"(?<![\w.$}~/-])/(?:tmp|home|work|root|Users|workspace)/[\w./-]+", text) == []
