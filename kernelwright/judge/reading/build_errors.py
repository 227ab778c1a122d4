"""The decisive line of a build's log, with the candidate's line that it is about and what would mend it."""

from __future__ import annotations

import difflib
import re
import shutil
import subprocess
from pathlib import PurePath

from kernelwright.judge.reading.build_messages import Message, messages_of
from kernelwright.judge.reading.source import Source, take_apart
from kernelwright.judge.records import Finding

_VERDICTS = {"compile": "BUILD-COMPILE", "resources": "BUILD-COMPILE", "tool": "JUDGE-NO-DEVICE", "link": "BUILD-LINK",
             "missing-function": "BUILD-LINK", "architecture": "BUILD-ARCHITECTURE", "import": "BUILD-IMPORT",
             "killed": "CRASH-MEMORY", "timeout": "BUILD-TIMEOUT"}
_TOOL = {"the C++ compiler": "The C++ compiler"}
#: Lines that load_inline puts before the text of a file.
_LINES_BEFORE = {"main.cpp": 1, "cuda.cu": 3}
#: What a function of two declarations is to the compiler.
_OVERLOADED = "unresolved overloaded function type"
#: Where a name is declared.
_HEADERS = {
    **dict.fromkeys(("getCurrentCUDAStream", "getStreamFromPool", "getCurrentDeviceProperties"),
                    "ATen/cuda/CUDAContext.h"),
    **dict.fromkeys(("C10_CUDA_KERNEL_LAUNCH_CHECK", "C10_CUDA_CHECK", "AT_CUDA_CHECK"), "c10/cuda/CUDAException.h"),
    **dict.fromkeys(("CUDAGuard", "OptionalCUDAGuard", "device_guard"), "c10/cuda/CUDAGuard.h"),
    **dict.fromkeys(("FLT_MAX", "FLT_MIN", "DBL_MAX", "FLT_EPSILON"), "cfloat"), "INFINITY": "cmath",
    **dict.fromkeys(("CUDART_INF_F", "CUDART_NAN_F", "CUDART_INF"), "math_constants.h"),
    **dict.fromkeys(("__half", "half", "__half2", "__float2half", "__half2float"), "cuda_fp16.h"),
    **dict.fromkeys(("__nv_bfloat16", "__float2bfloat16"), "cuda_bf16.h"),
    **dict.fromkeys(("wmma", "nvcuda"), "mma.h"), "cooperative_groups": "cooperative_groups.h",
    "vector": "vector", "string": "string", "map": "map", "unordered_map": "unordered_map", "tuple": "tuple",
    "accumulate": "numeric", "sort": "algorithm", "numeric_limits": "limits", "optional": "optional",
            "function": "functional",
    "curandState": "curand_kernel.h", "cub": "cub/cub.cuh", "omp_get_num_threads": "omp.h",
            "omp_get_thread_num": "omp.h",
    **dict.fromkeys(("_mm256_loadu_ps", "__m256", "__m512", "_mm512_loadu_ps"), "immintrin.h"),
}
_REMOVED = {"AT_CHECK": "TORCH_CHECK", "AT_ASSERT": "TORCH_CHECK", "THCudaCheck": "C10_CUDA_CHECK",
            "__shfl_down": "__shfl_down_sync", "__shfl_xor": "__shfl_xor_sync", "__shfl_up": "__shfl_up_sync",
            "__shfl": "__shfl_sync", "__ballot": "__ballot_sync", "__any": "__any_sync", "__all": "__all_sync"}


def decisive(log: str, candidate_text: str) -> Finding:
    """What a failed build says, as a finding of source "build".

    ``log`` is the text of the exception, the ninja output or the compiler's messages; ``candidate_text`` is the
    candidate's file, in which the line is looked up that the message is about. ``kind`` is build-compile, build-link,
    build-missing-function, build-architecture, build-resources, build-tool, build-killed, build-timeout or
    build-import; ``evidence`` has ``verdict`` (the code that it calls for), ``tool``, ``message``, ``decisive`` (the
    log's line), ``errors`` (how many there are), and ``file`` and ``file_line`` as the tool says them.
    """
    messages = messages_of(log)
    message = next((m for m in messages if m.kind not in ("tool", "killed")), messages[0] if messages else None)
    source = _taken(candidate_text)
    if message is None:
        return _interpreter(log, source)
    line, text = _place(message, source)
    kind = "missing-function" if _is_binding(message, candidate_text) else message.kind
    if kind == "missing-function" and source is not None:
        quoted = re.compile(rf"""["']{re.escape(_exported(message))}["']""")
        line = next((n for n, words in enumerate(source.lines, 1) if quoted.search(words)), None)
        text = source.lines[line - 1].strip()[:200] if line else text
    same = sum(m.kind == message.kind for m in messages)
    evidence = {"verdict": _VERDICTS[kind], "tool": message.tool, "message": message.text, "decisive": message.decisive,
                "errors": same, "file": PurePath(message.file).name, "file_line": message.line}
    where = f"line {line}" if line else f"line {message.line} of {PurePath(message.file).name}" if message.line else ""
    count = f" (the first of {same} errors)" if same > 1 else ""
    return Finding(f"build-{kind}", _sentence(kind, message, where) + count + ".", "build",
                   _fix(kind, message, text, candidate_text), line, text, evidence)


def _taken(text: str) -> Source | None:
    try:
        return take_apart(text, None)
    except (SyntaxError, ValueError, RecursionError):
        return None


def _sentence(kind: str, message: Message, where: str) -> str:
    said = _demangled(message.text).rstrip(".")
    if kind == "missing-function":
        name = _exported(message)
        if "PyInit_" in message.text:
            return "The extension exports nothing: it was built without functions=[...] and has no PYBIND11_MODULE"
        if _OVERLOADED in message.text:
            return f"The extension is to export {name}, which the sources declare and define with different parameters"
        return f"The extension is to export {name}, which the sources never declare or define" if name else said
    starts = {"compile": f"{_TOOL.get(message.tool, message.tool)} refuses {where or 'the text'}: {said}",
              "resources": f"A kernel needs more than the device has: {said}",
              "link": f"The kernels compile, but something that they use is nowhere defined: {said}",
              "architecture": f"The kernels are built for another device: {said}",
              "tool": f"The tools that build kernels are not complete here: {said}",
              "killed": f"The compiler was ended from outside, as a rule for lack of memory: {said}",
              "timeout": f"The build took too long: {said}"}
    return starts[kind]


# ---- places


def _place(message: Message, source: Source | None) -> tuple[int | None, str]:
    """The candidate's line that a message is about, from the source text that it shows or from its number."""
    if source is None:
        return None, message.shown
    wanted = _plain(message.shown)
    offset = _LINES_BEFORE.get(PurePath(message.file).name, 0)
    fits: list[tuple[int, int]] = []
    names = set(re.findall(r"\b[A-Za-z_]\w{2,}", " ".join(re.findall(r"['\"]([^'\"]+)['\"]", message.text))))
    for kernels in source.kernels:
        for number, words in enumerate(kernels.text.split("\n"), 1):
            near = abs(number - (message.line or 0) + offset)
            if (wanted and _plain(words) == wanted) or (not wanted and near == 0
                                                        and (not names or any(name in words for name in names))):
                fits.append((near, kernels.place(number)))
    if not fits and wanted:
        fits = [(0, n) for n, words in enumerate(source.lines, 1) if wanted in _plain(words)]
    if not fits and message.kind == "link":
        name = _symbol(message.text)
        fits = [(0, n) for n, words in enumerate(source.lines, 1) if name
                and re.search(rf"\b{re.escape(name)}\s*\(", words)]
    if not fits:
        return None, message.shown
    line = min(fits)[1]
    return line, source.lines[line - 1].strip()[:200]


def _plain(text: str) -> str:
    """A source line without blanks, its words as they were before nvcc's macros."""
    text = re.sub(r"__attribute__\(\((global|device|host|shared|constant)\)\)", r"__\1__", text)
    return re.sub(r"\s+", "", text)


# ---- what would mend it


def _fix(kind: str, message: Message, shown: str, candidate_text: str) -> str:
    text = message.text
    if kind == "missing-function":
        name = _exported(message)
        if "PyInit_" in text:
            return ("Name the functions that Python calls in functions=[...] of load_inline, or write "
                    "PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) in the source.")
        if _OVERLOADED in text:
            return f"Declare {name} in cpp_sources with the parameters that its definition has, or leave that out."
        return f"Declare {name}(...) in cpp_sources and define it, or take it out of functions=[...]."
    if kind == "link":
        name = _symbol(text)
        if "multiple definition" in text:
            return f"Define {name} once; where it must stand in two sources, make it static or inline."
        if "cannot find" in text:
            return "Take the library out of extra_ldflags, or install it."
        return (f"Define {name} in the sources with the same parameter types as it is declared with (in the CUDA "
                "source, if "
                "main.cpp calls it).")
    if kind == "architecture":
        return "Leave out the -arch and -gencode flags: PyTorch builds for the device that is there."
    if kind == "resources":
        return ("Use less of it in each block: smaller shared arrays (up to 48 KB fixed; more only as dynamic shared "
                "memory with "
                "cudaFuncSetAttribute), or fewer threads.")
    if kind in ("tool", "killed", "timeout"):
        return {"tool": "Install what is named, or judge where it "
                        "is.", "killed": "Give the build more memory, or split the source.",
                "timeout": "Give the build more time, or instantiate fewer templates."}[kind]
    return _compile_fix(text, shown, candidate_text)


def _compile_fix(text: str, shown: str, candidate_text: str) -> str:
    unknown = re.search(r"identifier \"([^\"]+)\" is undefined|'([^']+)' was not declared in this scope|"
                        r"use of undeclared identifier '([^']+)'|'([\w:]+)' is not a member of '[^']+'|"
                        r"namespace \"[^\"]+\" has no member \"([^\"]+)\"|"
                        r"'([^']+)' (?:does not name a type|has not been declared)|"
                        r"(?:no member named|no type named) '([^']+)' in", text)
    if unknown and "undefined in device code" not in text and "no member named" not in text:
        return _unknown_name(next(g for g in unknown.groups() if g), shown, candidate_text)
    if re.search(r"calling a __(?:host|device|global)__ function", text):
        called = re.search(r"calling a __(\w+)__ function\(\"([^(\"]+)", text)
        name = called.group(2).split("::")[-1] if called else "it"
        own = re.search(rf"\b{re.escape(name)}\s*\(", candidate_text) is not None
        return (f"Declare {name} with __device__ (or __host__ "
                "__device__)." if own and called and called.group(1) == "host" else
                "Use what exists on the side that the call is on: kernels cannot call functions of the host.")
    if re.search(r"expected (?:a )?[\"']?;|expected ',' or ';'|expected ';'", text):
        return "End the statement before this place with a semicolon."
    if re.search(r"too (?:few|many) arguments", text):
        return "Give the call as many arguments as the declaration has."
    if "DeprecatedTypeProperties" in text or re.search(r"\.type\(\)", shown):
        return "Write .scalar_type() where .type() stands."
    if re.search(r"\bdata\s*<", shown) and "data" in text:
        return "Write .data_ptr<T>() where .data<T>() stands."
    missing = re.search(r"(?:fatal error: )?([^\s:]+): No such file or directory|cannot open source file \"([^\"]+)\"",
                        text)
    if missing:
        name = missing.group(1) or missing.group(2)
        return ("The THC headers are gone from PyTorch: include ATen/cuda/CUDAContext.h "
                "instead." if name.startswith("THC") else
                f"Include a header that exists instead of {name}, or bring its text along.")
    if re.search(r"name followed by \"::\"|is not a class(?:,| or) namespace", text):
        name = next((n for n in _HEADERS if n in shown), "")
        return f"Put #include <{_HEADERS[name]}> before its use." if name else "Include the header that declares it."
    if re.search(r"expected '}' at end of input|expected a \"}\"|unterminated|missing terminating", text):
        return "Close what is open: a brace, a bracket or a quotation mark is missing, or the text is cut off."
    if re.search(r"excessive recursion|template instantiation depth", text):
        return "Give the recursive template a case that ends it."
    if re.search(r"has no member(?: named)?|no member named", text):
        return "Use a member that the type has (see its current documentation: old PyTorch names may be gone)."
    if re.search(r"no instance of|no matching function|cannot convert|could not convert|incompatible with|no suitable",
                 text):
        return "Make the argument types those of a declaration: convert them, or declare a fitting one."
    if "Not a name of any known instruction" in text or "modifier" in text:
        return "Correct the inline PTX, or replace it by C++."
    if "target specific option mismatch" in text:
        return "Add the flag of that instruction set (-march=native) to extra_cflags."
    if re.search(r"has already been d(?:efined|eclared)|redefinition of|redeclared|conflicting declaration", text):
        return "Define it once; a text given in both cpp_sources and cuda_sources stands twice."
    return "Correct this line."


def _unknown_name(name: str, shown: str, candidate_text: str) -> str:
    last = name.split("::")[-1].split("<")[0]
    if last in _REMOVED:
        return f"{last} is gone; use {_REMOVED[last]}."
    header = _HEADERS.get(last) or next((_HEADERS[n] for n in re.findall(r"\w+", shown) if n in _HEADERS and n in name),
                                        "")
    if header:
        std = f", and write std::{last}" if header == last and f"std::{last}" not in shown else ""
        return f"Put #include <{header}> before its use{std}."
    words = {w for w in re.findall(r"\b[A-Za-z_]\w+", candidate_text) if w != last}
    close = difflib.get_close_matches(last, sorted(words), 1, 0.75)
    return f"Declare {last}, or correct its name" + (f" (is {close[0]} meant?)." if close else ".")


# ---- names


def _is_binding(message: Message, candidate_text: str) -> bool:
    """Whether the error is in the line that load_inline writes to export a function that is not there."""
    return message.kind == "compile" and re.match(r"m\.def\(\"", message.shown) is not None \
        and "wrap_pybind_function" in message.shown and message.shown not in candidate_text


def _exported(message: Message) -> str:
    """The name of the function that is to be exported: of load_inline's own line where there is that."""
    shown = re.match(r"m\.def\(\"(\w+)\"", message.shown)
    return shown.group(1) if shown else _quoted(message.text)


def _quoted(text: str) -> str:
    match = re.search(r"['\"]([^'\"]+)['\"]", text)
    return match.group(1) if match else ""


def _symbol(text: str) -> str:
    """The plain name of the function that a linker names, mangled or not."""
    name = _quoted(text) or text.rsplit(":", 1)[-1].strip()
    name = _demangled(name)
    return name.split("(")[0].split("::")[-1].split("<")[0].strip() or name


def _demangled(text: str) -> str:
    """A text whose mangled names are replaced by readable ones."""
    names = set(re.findall(r"\b_Z\w+", text))
    tool = shutil.which("c++filt") if names else None
    for name in names:
        if tool:
            plain = subprocess.run([tool, name], capture_output=True, text=True, check=False).stdout.strip()
        else:
            length = re.match(r"_ZN?(\d+)", name)
            plain = name[length.end():length.end() + int(length.group(1))] if length else name
        text = text.replace(name, plain or name)
    return text


# ---- the interpreter


def _interpreter(log: str, source: Source | None) -> Finding:
    """A traceback without a compiler's message: its last line, and the innermost line of the candidate."""
    lines = [line for line in log.strip().split("\n") if line.strip()]
    last = next((line for line in reversed(lines)
                 if re.match(r"^[\w.]+(?:Error|Exception|Exit|Interrupt|Warning)?(?::|$)", line)),
                lines[-1] if lines else "")
    shown = [(int(m.group(1)), lines[i + 1].strip() if i + 1 < len(lines) else "") for i, line in enumerate(lines)
             if (m := re.match(r"^\s*File \".*\", line (\d+)", line))]
    line, text = None, ""
    for number, words in shown:
        if source and 0 < number <= len(source.lines) and source.lines[number - 1].strip() == words:
            line, text = number, words
    where = f" on line {line}" if line else ""
    return Finding("build-import", f"Importing the file raises{where}: {last.strip()[:400]}.", "build",
                   "Correct what the message names.", line, text,
                   {"verdict": "BUILD-IMPORT", "tool": "Python", "message": last.strip(), "decisive": last.strip(),
                    "errors": 1,
                    "file": "", "file_line": line})
