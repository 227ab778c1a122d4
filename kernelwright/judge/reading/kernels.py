"""Reading C++ and CUDA texts: bodies that do nothing, kernels that are never launched, launches, the host's side."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from kernelwright.judge.reading.ctokens import Function, Launch, closing, launches_of, split_commas, tokens_of
from kernelwright.judge.reading.sizes import known_numbers, value_of
from kernelwright.judge.reading.source import Kernels, Source
from kernelwright.judge.records import Finding

_EXCUSE = re.compile(
    r"\b(?:TODO|FIXME|placeholder|stub|dummy|not implemented|implement(?:ation)? (?:here|this|the|goes)|for brevity|"
    r"omitted|simplified (?:version|implementation)|your (?:code|kernel)|to be (?:done|implemented))\b", re.IGNORECASE)
_CHECKS = re.compile(r"cudaGetLastError|cudaPeekAtLastError|KERNEL_LAUNCH_CHECK|(?i:check\w*(?:cuda|launch|error)|"
                     r"(?:cuda|launch|error|gpu)\w*(?:check|assert))")
_STREAM = re.compile(r"[sS]tream")


def read_kernels(source: Source) -> Iterator[Finding]:
    """Findings on what the texts do, in the order of the checks."""
    for kernels, function in source.functions():
        yield from placeholders(source, kernels, function)
    yield from dead_kernels(source)
    yield from launches(source)
    yield from host_side(source)


# ---- bodies


def pointer_parameters(function: Function) -> dict[str, bool]:
    """Names of the parameters that are pointers, arrays or tensors, and whether each is const; functions are none."""
    found: dict[str, bool] = {}
    for part in split_commas(function.parameters):
        words = [t.text for t in part]
        if "=" in words:
            words = words[:words.index("=")]
        inner = _in_brackets(words)
        if inner is not None:
            name, after = inner
            if after == "[":
                found[name] = "const" in words
            continue
        names = [t.text for t in part[:len(words)] if t.kind == "name"]
        if names and ("*" in words or "[" in words or "Tensor" in words):
            found[names[-1]] = "const" in words
    return found


def _in_brackets(words: Sequence[str]) -> tuple[str, str] | None:
    """The name within ``(*name)`` or ``(&name)`` and what follows the bracket: ``(`` is a function, ``[`` an array."""
    for start, word in enumerate(words[:-3]):
        if word == "(" and words[start + 1] in ("*", "&") and words[start + 3] == ")":
            return words[start + 2], words[start + 4] if start + 4 < len(words) else ""
    return None


def placeholders(source: Source, kernels: Kernels, function: Function) -> Iterator[Finding]:
    """A kernel, or a function of tensors, whose body does not look at what it is given."""
    what = "kernel" if function.is_kernel else "function"
    line = kernels.place(function.line)
    parameters = pointer_parameters(function)
    excuse = next((c for c in kernels.comments if function.start <= c.start < function.end and _EXCUSE.search(c.text)),
                  None)
    said = f' (its comment on line {kernels.place(excuse.line)}: "{_short(excuse.text)}")' if excuse else ""
    fix = f"Write the body of {function.name}: it has to compute the result from its inputs."
    if function.is_device and not function.is_kernel:
        return
    if not function.body:
        if function.is_kernel or excuse:
            yield source.hint("placeholder", f"The {what} {function.name} (line {line}) has an empty "
                                             f"body{said}.", line, fix,
                              function=function.name)
        return
    if not parameters:
        return
    read = {name for name in parameters if _reads(function, name)}
    inputs = {name for name, const in parameters.items() if const
              or (not function.is_kernel and not _written(function, name))}
    inputs -= {name for name in parameters if not function.is_kernel and name.startswith(("out", "grad"))}
    if inputs and not read & set(parameters):
        yield source.hint("placeholder", f"The {what} {function.name} (line {line}) never reads {_all(sorted(inputs))}"
                          f"{_writes_constants(function)}{said}: it is a "
                          "placeholder.", line, fix, function=function.name)
    elif excuse and not read:
        yield source.hint("placeholder", f"The {what} {function.name} (line {line}) reads none of its "
                                         f"arrays{said}.", line, fix,
                          function=function.name)
    elif function.is_kernel:
        for name in sorted(inputs - read):
            if not _named(function, name):
                yield source.hint("unused-input", f"The kernel {function.name} (line {line}) never reads its argument "
                                                  f"{name}.",
                                  line, f"Use {name}, or take it out of the "
                                        "arguments.", function=function.name, argument=name)


def _all(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def _short(comment: str) -> str:
    return re.sub(r"\s+", " ", comment.strip("/* \n"))[:80]


_SHAPE_ONLY = {"size", "sizes", "options", "device", "dtype", "scalar_type", "type", "dim", "numel", "is_cuda",
               "stride",
               "is_contiguous", "defined", "is_cpu", "get_device"}


def _reads(function: Function, name: str) -> bool:
    """Whether the values of an array are read: any mention but a plain store into it, or a question about its shape."""
    body = function.body
    for index, token in enumerate(body):
        if token.text != name or token.kind != "name" or (index and body[index - 1].text in (".", "->")):
            continue
        after = body[index + 1].text if index + 1 < len(body) else ""
        if after == "." and index + 2 < len(body) and body[index + 2].text in _SHAPE_ONLY:
            continue
        if not function.is_kernel and index >= 2 and body[index - 1].text == "(" and (
                body[index - 2].text.endswith("_like") or body[index - 2].text.startswith(("CHECK", "TORCH_CHECK"))):
            continue
        if after == "[" and (end := closing(body, index + 1)) + 1 < len(body) and body[end + 1].text == "=":
            continue
        if index >= 3 and [t.text for t in body[index - 3:index]] == ["(", "void", ")"] and after == ";":
            continue
        return True
    return False


def _named(function: Function, name: str) -> bool:
    """Whether a variable occurs at all; a member of that name does not count."""
    return any(t.text == name and (i == 0 or function.body[i - 1].text not in (".", "->"))
               for i, t in enumerate(function.body))


def _written(function: Function, name: str) -> bool:
    body = function.body
    return any(t.text == name and index + 1 < len(body) and body[index + 1].text in ("[", "=") for index,
               t in enumerate(body))


def _writes_constants(function: Function) -> str:
    """", and writes only ..." where every store puts a literal."""
    values = []
    body = function.body
    for index, token in enumerate(body):
        if token.text == "=" and index and body[index - 1].text == "]":
            end = next((i for i in range(index, len(body)) if body[i].text == ";"), len(body))
            values.append("".join(t.text for t in body[index + 1:end]))
    if values and all(re.fullmatch(r"-?[\d.]+f?|\w+\([\d.]+f?\)", v) for v in values):
        return f" and writes only {_all(sorted(set(values)))}"
    return ""


# ---- launches


def dead_kernels(source: Source) -> Iterator[Finding]:
    """Kernels whose names occur nowhere but where they are declared and defined."""
    declared = {f.name for _, f in source.functions() if f.is_kernel}
    uses: dict[str, int] = dict.fromkeys(declared, 0)
    for kernels in source.kernels:
        for before, token in zip([None, *kernels.tokens[:-1]], kernels.tokens, strict=True):
            if token.kind == "directive":
                for name in declared & set(re.findall(r"\w+", token.text)):
                    uses[name] += 1
            elif token.text in declared and before is not None and before.text not in ("void", "*", "&") \
                    and before.text != ")":
                uses[token.text] += 1
    by_string = {n.value for n in ast.walk(source.tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    for kernels, function in source.functions():
        if function.is_kernel and not uses[function.name] and function.name not in by_string:
            line = kernels.place(function.line)
            yield source.hint("dead-kernel", f"The kernel {function.name} (line {line}) is never launched.", line,
                              f"Launch {function.name} where its result is needed, or remove "
                              "it.", function=function.name)


def launches(source: Source) -> Iterator[Finding]:
    """Launches whose failure nobody sees, on the default stream, with too much shared memory, or of a fixed extent."""
    for kernels in source.kernels:
        unchecked, streamless = [], []
        attribute = "cudaFuncSetAttribute" in kernels.text
        numbers = known_numbers(kernels)
        for launch, checked in _with_checks(kernels):
            if not checked:
                unchecked.append(launch)
            if len(launch.configuration) < 4 or [t.text for t in launch.configuration[3]] in (["0"], ["nullptr"],
                                                                                              ["NULL"]):
                streamless.append(launch)
            shared = value_of(launch.configuration[2], numbers) if len(launch.configuration) > 2 else None
            line = kernels.place(launch.line)
            block = value_of(launch.configuration[1], numbers) if len(launch.configuration) > 1 else None
            if shared is not None and shared > 48 * 1024 and not attribute:
                yield source.hint("shared-memory", f"Line {line} launches {launch.name} with {shared} bytes of shared "
                                                   "memory; more "
                                  "than 49152 are refused without cudaFuncSetAttribute.", line,
                                  "Set cudaFuncAttributeMaxDynamicSharedMemorySize before the launch.", bytes=shared)
            if block is not None and block > 1024:
                yield source.hint("block-too-large", f"Line {line} launches {launch.name} with {block} threads a "
                                                     "block; 1024 is the "
                                  "most.", line, "Use at most 1024 threads a block.", threads=block)
            yield from _fixed_grid(source, kernels, launch, numbers)
        if unchecked:
            yield _about(source, kernels, unchecked, "unchecked-launch", "no error of the launch is looked at "
                                                                         "afterwards, so a "
                         "launch that fails leaves the output unwritten without a word",
                         "Put C10_CUDA_KERNEL_LAUNCH_CHECK(); after the launch.")
        if streamless:
            yield _about(source, kernels, streamless, "default-stream", "it runs on the default stream instead of "
                                                                        "PyTorch's current "
                         "one", "Pass at::cuda::getCurrentCUDAStream() as the fourth launch argument.")


def _about(source: Source, kernels: Kernels, found: list[Launch], kind: str, words: str, fix: str) -> Finding:
    line = kernels.place(found[0].line)
    names = _all(sorted({launch.name for launch in found})).replace(" or ", " and ")
    lines = [kernels.place(launch.line) for launch in found]
    return source.hint(kind, f"Line {line} launches {names}: {words}.", line, fix, lines=lines)


def _with_checks(kernels: Kernels) -> Iterator[tuple[Launch, bool]]:
    """Each launch, also of a macro, and whether a check follows it in its function (or macro)."""
    for launch in kernels.launches:
        owner = next((f for f in kernels.functions if f.start <= launch.start < f.end), None)
        end = owner.end if owner else len(kernels.text)
        yield launch, _CHECKS.search(_code(kernels, launch.end, end)) is not None
    for token in kernels.tokens:
        if token.kind == "directive" and "<<<" in token.text:
            for launch in launches_of(tokens_of(token.text.lstrip("#").replace("\\\n", " \n"))):
                yield Launch(launch.name, launch.kernel, token.line + launch.line - 1, launch.configuration,
                             launch.arguments,
                             token.start, token.end), _CHECKS.search(token.text) is not None


def _code(kernels: Kernels, start: int, end: int) -> str:
    return " ".join(t.text for t in kernels.tokens if start <= t.start < end)


def _fixed_grid(source: Source, kernels: Kernels, launch: Launch, numbers: dict[str, int]) -> Iterator[Finding]:
    grid = value_of(launch.configuration[0], numbers) if launch.configuration else None
    kernel = next((f for f in kernels.functions if f.is_kernel and f.name == launch.name), None)
    if grid is None or grid <= 1 or kernel is None or any(t.text == "gridDim" for t in kernel.body):
        return
    line = kernels.place(launch.line)
    yield source.hint("frozen-grid", f"Line {line} launches {launch.name} with a fixed grid of {grid} blocks, "
                                     "whatever the size of "
                      "its input.", line, "Compute the number of blocks from the sizes of the tensors.", blocks=grid)


# ---- the host's side


def host_side(source: Source) -> Iterator[Finding]:
    """Raw pointers of tensors that nobody made contiguous, results kept in static variables, work beside the call."""
    python = {n.func.attr for n in ast.walk(source.tree) if isinstance(n, ast.Call)
              and isinstance(n.func, ast.Attribute)}
    for kernels, function in source.functions():
        if function.is_device:
            continue
        words = [t.text for t in function.body]
        tensors = [name for name in pointer_parameters(function) if _is_tensor(function, name)]
        bare = [name for name in tensors if _called(words, name, {"data_ptr", "const_data_ptr", "mutable_data_ptr"})
                and not name.startswith("out")]
        text = kernels.text + " ".join(python)
        if bare and not re.search(r"contiguous|CHECK_INPUT|stride\s*\(|strides|suggest_memory_format", text):
            line = kernels.place(function.line)
            yield source.hint("not-contiguous", f"{function.name} (line {line}) takes the address of {_all(bare)} and "
                                                "nothing makes "
                              "sure of its memory's "
                              "order.", line, "Call .contiguous() on it, or check is_contiguous().",
                              arguments=bare)
        for index, token in enumerate(function.body):
            if token.text == "static" and {"Tensor", "map", "unordered_map"} & set(words[index:index + 8]) and \
                    "constexpr" not in words[index:index + 2]:
                line = kernels.place(token.line)
                yield source.hint("static-cache", f"Line {line} keeps something from call to call in "
                                                  f"{function.name}.", line,
                                  "Compute the result in every call.")
            if token.text in ("system", "popen", "fork", "socket", "fopen", "pthread_create", "dlsym", "ptrace",
                              "execve") and \
                    words[index + 1:index + 2] == ["("]:
                line = kernels.place(token.line)
                yield source.hint("process", f"Line {line} calls {token.text} in {function.name}.", line)
            if token.text == "thread" and words[max(index - 2, 0):index] == ["std", "::"]:
                line = kernels.place(token.line)
                yield source.hint("thread", f"Line {line} starts a thread in {function.name}, which a clock may not "
                                            "see.", line)


def _is_tensor(function: Function, name: str) -> bool:
    return any(any(t.text == "Tensor" for t in part) and any(t.text == name for t in part)
               for part in split_commas(function.parameters))


def _called(words: Sequence[str], name: str, methods: set[str]) -> bool:
    return any(words[i] == name and words[i + 1] == "." and words[i + 2] in methods for i in range(len(words) - 2))
