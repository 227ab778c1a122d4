"""Variants of texts put together: each kernel once for the sizes that it serves, with what chooses among several.

Functions that need sizes get them as their last parameters: the program from the call, its launchers behind the
addresses of their tensors, and kernels from these.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence

from kernelwright.dynamic.conditions import Test, Tree
from kernelwright.dynamic.texts import Language, Variant

#: What sizes are in each language. Kernels of CUDA count in 32 bits wherever these suffice, and say where they do not.
_INTEGER = {"c": "const int64_t", "launched": "const int"}


def kernel_text(name: str, variants: Sequence[Variant], tree: Tree, names: Sequence[str],
                language: Language, changed: Callable[[str], str]) -> tuple[str, bool]:
    """The definition of a kernel of several sizes, and whether it takes these. changed: what a definition becomes where
    its buffers may share memory. Raises ValueError where sizes do not reach all that needs them."""
    numbers = sorted(_leaves(tree))
    takes = len(numbers) > 1 or variants[numbers[0]].moves
    texts = []
    for place, number in enumerate(numbers, 1):
        text = changed(variants[number].text(names, language)).strip()
        if takes:
            own = f"{name}_s{place}" if len(numbers) > 1 else name
            text = re.sub(rf"\b((?:k\d+_)?){name}\b", rf"\1{own}", text)
            if language == "launched":
                text = _with_launches(text, own, names)
            text = _with_parameters(text, own, names, language)
        texts.append(text)
    if len(numbers) > 1:
        head = _head(texts[0], f"{name}_s1")
        arguments = [re.findall(r"\w+", parameter)[-1] for parameter in _parts(head[1])]
        calls = {number: f"return {name}_s{place}({', '.join(arguments)});" for place, number in enumerate(numbers, 1)}
        body = _chosen(tree, names, lambda leaf: [calls[leaf] if leaf is not None else 'return "no such size";'],
                       ("if ({}) {{", "}} else {{", "}}"))
        texts.append("\n".join([f"// Chooses by the sizes of the call.\nstatic const char* {name}({head[1]}) {{",
                                *(f"  {line}" for line in body), "}"]))
    return "\n\n".join(texts), takes


def launcher_text(text: str, takes: Collection[str], names: Sequence[str]) -> tuple[str, set[str]]:
    """The text of launchers whose kernels of the names ``takes`` get sizes, or in which sizes stand, and those
    launchers that get them."""
    parts, found = [], set()
    for part in re.split(r"\n\n(?=(?:extern|const char))", text):
        head = re.search(r"const char\* (\w+)\(", part)
        assert head is not None, part
        for kernel in takes:
            part = re.sub(rf"\b({kernel}\()([^()]*(?:\([^()]*\)[^()]*)*)\)",
                          lambda call: f"{call[1]}{call[2]}, {', '.join(names)})", part)
        used = [name for name in names if re.search(rf"\b{name}\b", part)]
        if used:
            found.add(head[1])
            count = max(map(int, re.findall(r"\btensors\[(\d+)\]", part)), default=-1) + 1
            lines = [f"    const int64_t {name} = (int64_t)(intptr_t)tensors[{count + n}];"
                     for n, name in enumerate(names)]
            first, _, rest = part.partition("\n")
            part = "\n".join([first, *lines, rest])
        parts.append(part)
    return "\n\n".join(parts), found


def program_text(text: str, run: str, launchers: Collection[str], names: Sequence[str],
                 given: Callable[[Sequence[str]], Sequence[str]]) -> str:
    """The Python of a program whose functions know their sizes: ``run``, which gets them behind its tensors, as every
    call has asked for them before, and those that it calls. launchers: those that get them. given: the texts of the
    sizes from the arguments of the function that gives results of which nothing is computed."""
    for launcher in launchers:
        text = re.sub(rf'(_kernelwright_launch\("{launcher}", _stream[^\n]*)\)', rf"\1, sizes=({', '.join(names)},))",
                      text)
    parts, asking = [], ""
    for part in re.split(r"\n\n\n(?=def )", text):
        head = re.match(r"def (\w+)\(([^)]*)\):\n( +\"\"\".*?\"\"\"\n)?", part, re.DOTALL)
        assert head is not None, part
        used = any(re.search(rf"\b{name}\b", part) for name in names)
        if head[1] == run or (used and head[1] == f"{run}_once"):
            part = f"def {head[1]}({head[2]}, {', '.join(names)}){part[part.index('):') + 1:]}"
            asking = f"{run}_once" if head[1] != run else asking
        elif used:
            texts = given([a.strip() for a in head[2].split(",")])
            lines = [f"    {name} = {size}" for name, size in zip(names, texts, strict=True)
                     if re.search(rf"\b{name}\b", part)]
            part = "\n".join([part[:head.end()].rstrip("\n"), *lines, part[head.end():]])
        parts.append(part)
    text = "\n\n\n".join(parts)
    return text.replace(f"_kernelwright_once({asking}, _device)",
                        f"_kernelwright_once({asking}, _device, {', '.join(names)})") if asking else text


def facts_function(mode: str, title: str, tree: Tree, entries: Mapping[int, Sequence[tuple[str, str]]],
                   names: Sequence[str]) -> str:
    """The function that gives the facts of a mode for some sizes, None where no program serves them. entries: those of
    each leaf, as (key, text)."""
    def lines(leaf: int | None) -> list[str]:
        if leaf is None:
            return ["return None"]
        return ["return {", *(f'    "{key}": {text},' for key, text in entries[leaf]), "}"]

    body = _chosen(tree, names, lines, ("if {}:", "else:", ""))
    return "\n".join([f"def _kernelwright_{mode}_sized({', '.join(names)}):",
                      f'    """Facts of {title} mode that depend on sizes; None where no program serves these."""',
                      *(f"    {line}" for line in body)])


def _chosen(tree: Tree, names: Sequence[str], leaf: Callable[[int | None], list[str]], frame: tuple[str, str, str]
            ) -> list[str]:
    """The lines of nested tests."""
    if not isinstance(tree, Test):
        return leaf(tree)
    head, between, end = frame
    yes, no = (_chosen(part, names, leaf, frame) for part in (tree.yes, tree.no))
    lines = [head.format(tree.text(names)), *(f"    {line}" for line in yes), between.format(),
             *(f"    {line}" for line in no)]
    return [*lines, end.format()] if end else lines


def _leaves(tree: Tree) -> set[int]:
    if isinstance(tree, Test):
        return _leaves(tree.yes) | _leaves(tree.no)
    return set() if tree is None else {tree}


def _head(text: str, name: str) -> tuple[int, str, int]:
    """Where the parameters of a kernel's entry begin, their text, and where they end."""
    found = re.search(rf"\bconst char\* {name}\(", text)
    assert found is not None, name
    depth, place = 1, found.end()
    while depth:
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        place += 1
    return found.end(), text[found.end():place - 1], place - 1


def _with_launches(text: str, entry: str, names: Sequence[str]) -> str:
    """The text of a kernel of CUDA whose functions on the device get sizes where they need them, from the host's."""
    parts = re.split(r"(?m)^(?=static |template|struct |// )", text)
    heads = [re.match(r"(?:static )?__global__ void (?:__launch_bounds__\([^)]*\) )?(\w+)\(", part) for part in parts]
    needed = {head[1] for head, part in zip(heads, parts, strict=True)
              if head is not None and any(re.search(rf"\b{name}\b", part) for name in names)}
    result = ""
    for head, part in zip(heads, parts, strict=True):
        uses = any(re.search(rf"\b{name}\b", part) for name in names) and not part.startswith("//")
        if head is not None and head[1] in needed:
            part = part[:head.end()] + re.sub(r"\) \{", ", " + ", ".join(
                f"{_INTEGER['launched']} {name}" for name in names) + ") {", part[head.end():], count=1)
        elif uses and f" {entry}(" not in part.partition("{")[0]:
            raise ValueError(f"sizes do not reach a function of {entry}")
        for function in needed:
            part = re.sub(rf"(KW_LAUNCH\(\"\w+\", {function}, .*)\);$", rf"\1, {', '.join(names)});", part,
                          flags=re.MULTILINE)
        result += part
    if len(needed) != len(re.findall(r"(?m)KW_LAUNCH\(.*" + f", {names[-1]}" + r"\);$", result)):
        raise ValueError(f"{entry} is launched otherwise")
    return result


def _with_parameters(text: str, name: str, names: Sequence[str], language: Language) -> str:
    """A kernel's text whose entry has sizes as its last parameters."""
    begin, parameters, end = _head(text, name)
    more = ", ".join(f"{_INTEGER[language]} {size}" for size in names)
    return f"{text[:begin]}{parameters}, {more}{text[end:]}"


def _parts(parameters: str) -> list[str]:
    return [part for part in parameters.split(",") if part.strip()]
