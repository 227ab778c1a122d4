"""Write what is made from the code: examples/generated (the file that kernelwright emits for each example, for a CPU
and for a GPU), docs/schemas (the JSON Schemas of its documents), and pages and pictures of docs/.

    python tools/regenerate.py            # write what changed
    python tools/regenerate.py --check    # only say what would change; exit status 1 if anything would

Nothing is built, run or timed: the devices are fixed rows, so that the texts are the same on every
machine. ``kernelwright optimize`` goes further: it drops what does not win where it runs.
"""

from __future__ import annotations

import sys
from pathlib import Path

import kernelwright
from kernelwright.roofline.devices import GENERIC_CPU, H200

TOOLS = Path(__file__).resolve().parent
EXAMPLES = TOOLS.parent / "examples"
SCHEMAS = TOOLS.parent / "docs" / "schemas"
DEVICES = {"cpp": GENERIC_CPU, "cuda": H200}
#: Whose product is a kernel, as it is on a GPU where it wins; the other files show what stands around contractions.
WITH_CONTRACTIONS = frozenset({"linear_gelu"})


def generated_path(example: Path, target: str) -> Path:
    """Where the emitted file of an example stands: ``generated/NAME_TARGET_new.py``."""
    return EXAMPLES / "generated" / f"{example.stem}_{target}_new.py"


def generated_text(example: Path, target: str) -> str:
    """The emitted file's text. The example's inputs are made, its forward is traced and never run."""
    contractions = "measured" if example.stem in WITH_CONTRACTIONS else "library"
    return kernelwright.explain(example, target=target, device=DEVICES[target], contractions=contractions).source


def schema_texts() -> dict[Path, str]:
    """The text of each file in docs/schemas, by its path."""
    if str(TOOLS) not in sys.path:  # where this file is loaded by its path
        sys.path.append(str(TOOLS))
    from json_schemas import schemas

    return {SCHEMAS / name: text for name, text in schemas().items()}


def document_texts() -> dict[Path, str]:
    """The text of each page and picture in docs that is made, wholly or in part, by its path."""
    if str(TOOLS) not in sys.path:
        sys.path.append(str(TOOLS))
    from document_pages import pages
    from pictures import pictures

    return pages() | pictures()


def main(arguments: list[str]) -> int:
    """Regenerate; the exit status."""
    changed = []
    wanted = {generated_path(e, t): generated_text(e, t) for e in sorted(EXAMPLES.glob("*.py")) for t in DEVICES}
    wanted |= schema_texts() | document_texts()
    for path, text in wanted.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            changed.append(path)
            if "--check" not in arguments:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8", newline="\n")
    for path in sorted({*(EXAMPLES / "generated").glob("*.py"), *SCHEMAS.glob("*.json")} - set(wanted)):
        changed.append(path)
        if "--check" not in arguments:
            path.unlink()
    print("\n".join(f"changed: {path.relative_to(EXAMPLES.parent)}" for path in changed) or "all are up to date")
    return int(bool(changed) and "--check" in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
