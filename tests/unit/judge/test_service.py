"""Parts of the service by themselves: tokens, addresses, the order of the queue, and what the client needs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from places import ROOT

from kernelwright import errors
from kernelwright.serve.settings import ServeSettings
from kernelwright.serve.store import MOST_BEGINS, Store
from kernelwright.serve.tokens import ONLY, read_tokens

LONG = "0123456789abcdef"


def tokens_of(folder: Path, text: str) -> Any:
    (folder / "tokens").write_text(text)
    return read_tokens(folder / "tokens")


def test_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = tokens_of(tmp_path, f"# a comment\n\nann {LONG}\n  bob   {LONG}0  \n")
    assert len(found) == 2 and found.owner(LONG) == "ann" and found.owner(f"{LONG}0") == "bob"
    assert [found.owner(token) for token in ("", LONG[:-1], f"{LONG} ", "ann", "\udc80")] == [None] * 5
    for text, words in (("", "no token"), ("ann", "not a name and a token"), ("ann 0123", "less than 16"),
                        (f"ann {LONG}\nann {LONG}1", "has a token already"), (f"a {LONG}\nb {LONG}", "another name")):
        with pytest.raises(errors.TokensUnusable, match=words):
            tokens_of(tmp_path, text)
    with pytest.raises(errors.TokensUnusable, match="cannot be read"):
        read_tokens(tmp_path / "none")
    monkeypatch.setenv("KERNELWRIGHT_TOKEN", LONG)
    assert read_tokens(None).owner(LONG) == ONLY
    assert not read_tokens(None), "what is started later does not get it"
    monkeypatch.setenv("KERNELWRIGHT_TOKEN", "short")
    with pytest.raises(errors.TokensUnusable, match="less than 16"):
        read_tokens(None)


@pytest.mark.parametrize(("host", "local"), [("127.0.0.1", True), ("127.1.2.3", True), ("::1", True), (
    "localhost", True), ("0.0.0.0", False), ("::", False), ("192.168.0.1", False), ("localhost.example", False)])
def test_without_tokens_it_is_for_this_machine_alone(host: str, local: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KERNELWRIGHT_TOKEN", raising=False)
    settings = ServeSettings(host=host)
    assert settings.local is local
    if not local:
        with pytest.raises(errors.TokensMissing):
            settings.read_tokens()
        monkeypatch.setenv("KERNELWRIGHT_TOKEN", LONG)
    assert len(settings.read_tokens()) == (not local)


def names(rows: Any) -> list[str]:
    return [row["candidate"] for row in rows]


def test_what_is_judged_next(tmp_path: Path) -> None:
    """Alike submissions of a client together, few of them where others would have nothing, and nobody behind another's
    many; what a process was lost with by itself."""
    store = Store(tmp_path, 100)
    for number in range(6):
        store.submit("ann", "p", f"a{number}", {"effort": "quick"}, None)
    store.submit("ann", "q", "other problem", {"effort": "quick"}, None)
    store.submit("ann", "p", "other options", {"effort": "normal"}, None)
    store.submit("bob", "p", "bob", {"effort": "quick"}, None)
    first = store.claim(2, 16)
    assert names(first) == ["a0", "a1", "a2"]
    assert names(store.claim(1, 16)) == ["bob"]
    assert names(store.claim(1, 2)) == ["a3", "a4"]
    ids = [row["id"] for row in first]
    store.lose(ids[0], 2, {"code": "KW604"})
    store.put_back(ids[1:2], counted=False)
    assert names(store.claim(1, 16)) == ["a0"], "its place is the first, and it is alone"
    assert names(store.claim(1, 16)) == ["a1", "a5"]
    store.lose(ids[0], 2, {"code": "KW604"})
    failed = store.status(ids[0], "ann")
    assert failed["state"] == "failed" and failed["error"] == {"code": "KW604"}
    assert not store.finish(ids[0], {"verdict": "OK"}, 0, "", {}), "what has ended stays as it is"
    assert store.finish(ids[2], {"verdict": "OK"}, 0, "", {}) and not store.finish(ids[2], {"verdict": "X"}, 0, "", {})
    assert store.status(ids[2], "ann")["verdict"] == "OK"
    store.close()


def test_who_ends_the_service_again_and_again_is_given_up(tmp_path: Path) -> None:
    for attempt in range(MOST_BEGINS):
        store = Store(tmp_path, 100)
        name, new = store.submit("", "p", "c", {}, None)
        assert new is (attempt == 0) and store.status(name, "")["state"] == "queued"
        assert names(store.claim(1, 16)) == ["c"]
        store.close()  # as if it was killed: what runs is still said to run
    store = Store(tmp_path, 100)
    failed = store.status(name, "")
    assert failed["state"] == "failed" and failed["error"] is not None and failed["error"]["code"] == "KW763"
    with pytest.raises(errors.ServiceFolderUnusable, match="another service"):
        Store(tmp_path, 100)
    store.close()


def test_the_client_needs_the_standard_library_alone() -> None:
    file = ROOT / "kernelwright" / "serve" / "client.py"
    imported = {name.split(".")[0] for node in ast.walk(ast.parse(file.read_text())) for name in (
        [alias.name for alias in node.names] if isinstance(node, ast.Import) else
        [node.module or ""] if isinstance(node, ast.ImportFrom) else [])}
    assert imported <= sys.stdlib_module_names
    subprocess.run([sys.executable, "-I", "-S", str(file)], check=True)
