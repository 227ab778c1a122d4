"""A run on one page: our own file, candidates from texts or from a model, verdicts, the choice, and the critique."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kernelwright.emit.write import check_not_read, default_path, write_file
from kernelwright.errors import FileMissing, RunDiffers, RunMissing
from kernelwright.progress import Progress
from kernelwright.propose.analysis import Analysis
from kernelwright.propose.budget import Budget, read_price
from kernelwright.propose.choice import Choice, choose
from kernelwright.propose.critique import criticize
from kernelwright.propose.critique_text import markdown
from kernelwright.propose.endpoint import Asked, Recorded, find_key
from kernelwright.propose.loop import Loop
from kernelwright.propose.prompt import kernels_of
from kernelwright.propose.records import Candidate, ProposeResult, Spent, rounds_of
from kernelwright.propose.session import Session, Tools
from kernelwright.propose.settings import ProposeSettings
from kernelwright.propose.sources import Found, find_answers
from kernelwright.propose.standing import family, passed
from kernelwright.propose.store import Store, create, digest, reopen
from kernelwright.propose.written import with_provenance
from kernelwright.settings import check_output

#: Candidates that the judge times in the same rounds as our file: more are held against it once more, at the end.
_TOGETHER = 7
#: The judge's run on our file alone, before anybody is asked.
OURS_LABEL = "ours"


def propose(path: Path | str, settings: ProposeSettings, progress: Progress | None = None,
            tools: Tools | None = None) -> ProposeResult:
    """Read or ask for candidates for the problem at ``path``, judge them, and write the best file that is verified.

    Raises, before anything is asked or judged where that can be known: FileMissing (KW101), OutputFolderUnusable
    (KW401), OutputExists (KW402), the errors of finding answers (KW801 to KW803) and of the run's folder (KW808 to
    KW810), ClientMissing (KW805), PricesUnusable (KW807); later EndpointRefused (KW806) and what loading the problem
    raises.
    """
    path, progress = Path(path), progress or Progress()
    if not path.exists():
        raise FileMissing(path=path, folder=Path.cwd())
    output = settings.output or default_path(path)
    assert output is not None
    check_not_read(output, path)
    check_output(output, settings.force)
    folder = settings.record or path.with_name(f"{path.stem}_propose{'_replay' if settings.replay else ''}")
    if settings.answers:
        texts = find_answers(path, settings.answers)
        store = _store(path, folder, settings)
        try:
            session = Session(path, settings, store, progress, tools or Tools())
            return _concluded(session, _from_texts(session, texts), output)
        finally:
            store.close()
    key = find_key(settings.endpoint) if settings.endpoint else ""
    price = read_price(settings.prices, settings.model) if settings.prices and settings.model else None
    earlier = None
    if settings.replay is not None:
        earlier = reopen(settings.replay)
        settings = _as_before(path, settings, earlier)
    tools = tools or Tools()
    asked = _asked(settings, folder, key, earlier, tools)
    try:
        store = _store(path, folder, settings, (key,))
        try:
            before = _spent_before(store)
            store.add("begun")
            budget = Budget(tokens=settings.budget_tokens, seconds=settings.budget_seconds,
                            money=settings.budget_money, price=price, before=before)
            session = Session(path, settings, store, progress, tools)
            return _concluded(session, _from_model(session, asked, budget), output)
        finally:
            store.close()
    finally:
        asked.close()
        if earlier is not None:
            earlier.close()


def _asked(settings: ProposeSettings, folder: Path, key: str, earlier: Store | None, tools: Tools) -> Asked:
    """Who is asked."""
    if earlier is not None:
        return Recorded(earlier)
    assert settings.endpoint is not None and settings.model is not None
    return tools.endpoint(settings.endpoint, settings.model, key, temperature=settings.temperature,
                          seed=settings.seed, folder=folder)


def _as_before(path: Path, settings: ProposeSettings, earlier: Store) -> ProposeSettings:
    """The settings with what decides what is asked as it was in the run that is replayed.

    Raises RunDiffers (KW809) where the model's file is another one, and RunMissing (KW810) where nobody was asked.
    """
    if earlier.header.get("digest") != digest(path):
        raise RunDiffers(folder=earlier.folder, found="the model's file has changed")
    kept = earlier.header["settings"]
    if not any(earlier.of("call")):
        raise RunMissing(folder=earlier.folder, found="it asked nobody; texts are given with --from")
    same = {name: kept[name] for name in ("candidates", "search", "blind", "answer_tokens", "seed")}
    rounds = max((event["round"] for event in earlier.of("call")), default=1)
    return replace(settings, **same, rounds=rounds, budget_tokens=None, budget_seconds=None, budget_money=None)


def _store(path: Path, folder: Path, settings: ProposeSettings, secrets: tuple[str, ...] = ()) -> Store:
    header = {"problem": path.stem, "digest": digest(path), "settings": settings.kept()}
    if settings.resume:
        return reopen(folder, header, secrets)
    return create(folder, header, force=settings.force, secrets=secrets)


def _spent_before(store: Store) -> Spent:
    """What a run has spent before it is gone on with."""
    calls = list(store.of("call"))
    return Spent(len(calls), sum(c["prompt_tokens"] for c in calls), sum(c["answer_tokens"] for c in calls),
                 store.seconds_before(), None, sum(c["estimated"] for c in calls))


def _from_model(session: Session, asked: Asked, budget: Budget) -> Spent:
    """Candidates from a language model, in rounds."""
    settings, store = session.settings, session.store
    ours = session.own_file()
    if not any(store.of("analysed")):
        analysis = session.tools.analyse(session.path, settings.own_settings(), session.progress)
        store.put_json("analysis.json", analysis.to_json())
        store.add("analysed")
    analysis = Analysis.from_json(json.loads(store.read("analysis.json")))
    verdict = None
    if ours is not None:
        verdict = session.judge(OURS_LABEL, [], ours)["candidates"][0]
    own = "" if ours is None or settings.blind else kernels_of(store.read(ours.name))
    return Loop(session, analysis, asked, budget, own, None if settings.blind else verdict).run(ours)


def _from_texts(session: Session, texts: list[Found]) -> Spent:
    """Candidates from texts that exist."""
    ours = session.own_file()
    for number, found in enumerate(texts, 1):
        session.store.put(f"answers/{number:03d}.txt", found.answer.text)
        session.admit(found.name, found.name, found.answer)
    names = [n for n, c in session.candidates.items() if not c.same_as]
    document = session.judge("answers", names, ours)
    return Spent(seconds=document["seconds"])


def _concluded(session: Session, spent: Spent, output: Path) -> ProposeResult:
    """The choice, side by side where that was not so before, the file, and the critique."""
    settings, store = session.settings, session.store
    ours_file = session.own_file()
    mixture = session.mixture() if settings.time else None
    finalists = [*session.finalists(), *([mixture] if mixture else [])]
    right = sum(bool(c.verdict) and passed(c.verdict) and not c.same_as for c in session.candidates.values())
    runs = sum(label != OURS_LABEL for label in session.documents)
    if settings.time and finalists and (runs > 1 or right > _TOGETHER or mixture):
        final = session.judge("final", finalists, ours_file)
        spent = replace(spent, seconds=spent.seconds + final["seconds"])
    document = list(session.documents.values())[-1] if session.documents else None
    ours = document["candidates"][0] if document and ours_file else None
    pool = finalists if "final" in session.documents else [
        n for n, c in session.candidates.items() if c.verdict and not c.same_as]
    profile = document["problem_profile"] if document else {}
    choice = choose(ours, [session.candidates[n].verdict for n in pool], profile)
    chosen = session.candidates[pool[choice.index]] if choice.index is not None else None
    written = _write(session, choice, chosen, ours, ours_file, document, output)
    every = {n: c.verdict for n, c in session.candidates.items() if c.verdict}
    critique = criticize(session.path.stem, every, profile,
                         {n: c.form for n, c in session.candidates.items()},
                         {n: c.same_as for n, c in session.candidates.items() if c.same_as})
    tokens: dict[int, int] = {}
    for event in store.of("call"):
        tokens[event["round"]] = tokens.get(event["round"], 0) + event["prompt_tokens"] + event["answer_tokens"]
    candidates = tuple(session.candidates.values())
    result = ProposeResult(
        problem=session.path.stem, path=str(session.path), written=written, chosen=chosen.name if chosen else "ours",
        why=choice.why, ours=ours, candidates=candidates, against={pool[i]: why for i, why in choice.against.items()},
        over_ours=None if choice.over_ours is None else _ratio(choice), critique=critique,
        rounds=rounds_of(candidates, tokens), spent=spent, folder=store.folder,
        environment=_environment(document), notes=tuple(dict.fromkeys(session.notes)))
    store.put("critique.md", markdown(critique))
    store.put_json("result.json", result.to_json())
    return result


def _ratio(choice: Choice) -> dict[str, Any]:
    ratio = choice.over_ours
    assert ratio is not None
    return {"value": ratio.value, "low": ratio.low, "high": ratio.high, "pairs": ratio.pairs}


def _environment(document: Mapping[str, Any] | None) -> dict[str, str]:
    return {} if document is None else {"device": document["device"], **document["versions"]}


def _write(session: Session, choice: Choice, chosen: Candidate | None, ours: Mapping[str, Any] | None,
           ours_file: Path | None, document: Mapping[str, Any] | None, output: Path) -> Path | None:
    """Write the chosen file; None where there is none, or where the judge found ours wrong."""
    if chosen is None and (ours_file is None or (ours is not None and family(ours) not in ("OK", "JUDGE", "PROBLEM"))):
        return None
    text = session.store.read(chosen.file) if chosen is not None else session.store.read("ours.py")
    count = sum(not c.same_as for c in session.candidates.values())
    settings = {"backward": session.settings.backward}
    text = with_provenance(text, choice, chosen, ours, count, document, settings)
    write_file(output, text, force=session.settings.force)
    return output

