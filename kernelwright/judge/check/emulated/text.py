"""CUDA texts of a candidate rewritten for the CPU: launches, shared memory, headers and the device's name."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kernelwright.judge.reading.ctokens import Function, Launch, Token, closing, functions_of, launches_of, tokens_of

_HARMLESS_HEADERS = re.compile(
    r"cuda(?:_runtime|_runtime_api)?\.h|device_launch_parameters\.h|device_functions\.h|math_constants\.h|vector_types\.h|"
    r"ATen/cuda/(?:CUDAContext|CUDAContextLight|Exceptions|Atomic)\.c?u?h|ATen/cuda/CUDAUtils\.h|driver_types\.h|math\.h|"
    r"c10/cuda/CUDA(?:Guard|Stream|Exception|Functions|Macros|MathCompat)\.h|cuda/?std/.*|sm_\d\d_\w+\.h")
_TORCH_HEADERS = re.compile(r"torch/(?:extension|types|all|torch|python)\.h|ATen/\w+\.h|pybind11/.*|c10/util/.*")
_ALL_OF_TORCH = re.compile(r"\btorch::(?:nn|autograd|optim|data|jit|serialize|linalg|fft|special|sparse)::")
#: What the emulation lacks: pattern of a name, and words.
_LACKS = tuple((re.compile(pattern), words) for pattern, words in (
    (r"cooperative_groups|cg", "cooperative groups"),
    (r"wmma|nvcuda|mma_sync|__hmma\w*|wgmma\w*|tcgen05\w*", "tensor cores"),
    (r"__asm__|asm", "inline PTX"),
    (r"tex[123]D\w*|surf[123]D\w*|texture|cudaTextureObject_t|cudaSurfaceObject_t", "textures"),
    (r"__half2?|half2?|__nv_bfloat16\w*|nv_bfloat16\w*|__nv_fp8\w*|bfloat162", "16-bit and 8-bit device types"),
    (r"cub|thrust|cutlass|cute", "the libraries CUB, Thrust and CUTLASS"),
    (r"cublas\w*|cudnn\w*|cusparse\w*|cusolver\w*|cufft\w*|curand\w*|nccl\w*", "CUDA's libraries"),
    (r"cudaGraph\w*|cudaStreamBeginCapture|CUDAGraph", "CUDA graphs"),
    (r"cudaStreamCreate\w*|getStreamFromPool|cudaEvent\w*", "streams and events of its own"),
    (r"cudaLaunchKernel\w*|cudaLaunchCooperativeKernel|cuLaunch\w*|__cluster_dims__|cluster_group", "launches without "
                                                                                                    "<<< >>>"),
    (r"clock|clock64|__nanosleep|globaltimer", "the device's clock"),
    (r"memcpy_async|pipeline|cuda_pipeline|__pipeline_\w+|barrier", "asynchronous copies"),
))
_RENAMED = {"kCUDA": "kCPU", "is_cuda": "is_cpu", "_is_cuda": "is_cpu"}


def unsupported(texts: Sequence[str]) -> tuple[str, str] | None:
    """What of a candidate's CUDA texts the emulation lacks, and the name that shows it; None where all is there."""
    for text in texts:
        tokens = tokens_of(text)
        for function in functions_of(tokens):
            if function.is_device and any(function.body[0].start <= launch.start < function.body[-1].end
                                          for launch in launches_of(function.body)):
                return "launches from kernels", function.name
        for index, token in enumerate(tokens):
            if token.kind == "directive":
                header = re.match(r"#\s*include\s*[<\"]([^>\"]+)[>\"]", token.text)
                if header and not _known_header(header.group(1)):
                    return "this header", header.group(1)
            elif token.kind == "name":
                after = tokens[index + 1].text if index + 1 < len(tokens) else ""
                for pattern, words in _LACKS:
                    if pattern.fullmatch(token.text) and _means(token.text, after, tokens, index):
                        return words, token.text
    return None


def _means(name: str, after: str, tokens: Sequence[Token], index: int) -> bool:
    """Whether a short name is the feature's and no variable of the candidate's."""
    if name in ("cg", "cub", "thrust", "cute", "cutlass", "nvcuda"):
        return after == "::"
    if name in ("half", "half2", "texture"):
        before = tokens[index - 1].text if index else ""
        return after in ("*", "2", "&") or (before in ("const", "<", "(", ",", ";", "{") and (after == ">" or (
            index + 1 < len(tokens) and tokens[index + 1].kind == "name")))
    if name in ("clock", "asm", "__asm__", "barrier", "pipeline"):
        return after in ("(", "volatile", "__volatile__", "<") and (name.strip("_") == "asm"
                                                                    or (name == "clock" and after == "(")
                                                                   or (index > 0 and tokens[index - 1].text == "::"))
    return True


def _known_header(name: str) -> bool:
    return bool(_HARMLESS_HEADERS.fullmatch(name) or _TORCH_HEADERS.fullmatch(name)
                or (re.fullmatch(r"c?[a-z_]+(?:\.h)?", name)
                and not name.startswith(("cu", "mma", "cooperative", "nv"))))


def uses_torch(texts: Sequence[str]) -> str:
    """"", "some" or "all": how much of PyTorch's C++ interface the texts need."""
    names = {t.text for text in texts for t in tokens_of(text) if t.kind == "name"}
    if any(_ALL_OF_TORCH.search(text) for text in texts):
        return "all"
    return "some" if names & {"torch", "at", "c10", "PYBIND11_MODULE", "TORCH_LIBRARY", "pybind11"} else ""


def emulated_text(text: str, *, torch_headers: bool = False) -> str:
    """A CUDA text for the compiler of the CPU. It has the same lines.

    Launches become calls of the emulation, unsized shared arrays its dynamic memory; headers of CUDA are left out (with
    ``torch_headers`` those of PyTorch stay, else they count as included); the device is the CPU.
    """
    tokens = tokens_of(text)
    templates = {f.name for f in functions_of(tokens) if f.is_kernel and "template" in f.specifiers}
    changes = _changes(text, tokens, templates, torch_headers)
    return _applied(text, changes) + _bounds(functions_of(tokens))


def _applied(text: str, changes: Sequence[tuple[int, int, str]]) -> str:
    """The text with spans replaced; each keeps its number of line ends."""
    pieces, position = [], 0
    for start, end, new in sorted(changes):
        if start < position:
            continue
        missing = text[start:end].count("\n") - new.count("\n")
        pieces += [text[position:start], new, "\n" * max(missing, 0)]
        position = end
    return "".join(pieces) + text[position:]


def _changes(text: str, tokens: Sequence[Token], templates: set[str],
             torch_headers: bool) -> list[tuple[int, int, str]]:
    changes: list[tuple[int, int, str]] = []
    for launch in launches_of(tokens):
        changes.append((launch.start, launch.end, _launched(text, launch, templates)))
    for index, token in enumerate(tokens):
        if token.kind == "directive":
            new = _directive(token.text, templates, torch_headers)
            if new is not None:
                changes.append((token.start, token.end, new))
        elif token.text == "extern" and index + 1 < len(tokens) and tokens[index + 1].text == "__shared__":
            shared = _dynamic(tokens, index)
            if shared:
                changes.append(shared)
        elif token.text in _RENAMED:
            changes.append((token.start, token.end, _RENAMED[token.text]))
        elif token.kind == "string" and re.fullmatch(r"\"cuda(?::0)?\"", token.text):
            changes.append((token.start, token.end, '"cpu"'))
        elif token.text == "CUDA" and index >= 2 and tokens[index - 2].text == "DeviceType":
            changes.append((token.start, token.end, "CPU"))
    return changes


def _launched(text: str, launch: Launch, templates: set[str]) -> str:
    def piece(part: Sequence[Token]) -> str:
        return _inner(text[part[0].start:part[-1].end], templates)

    grid, block = (piece(part) for part in launch.configuration[:2])
    shared = piece(launch.configuration[2]) if len(launch.configuration) > 2 else "0"
    stream = piece(launch.configuration[3]) if len(launch.configuration) > 3 else "nullptr"
    arguments = "".join(f", {piece(part)}" for part in launch.arguments)
    if launch.name in templates and "<" not in launch.kernel:
        return (f'kw_judge::launch_deduced("{launch.name}", KW_JUDGE_DEDUCED({launch.kernel}), {grid}, {block}, '
                f"{shared}, {stream}{arguments})")
    return f'kw_judge::launch("{launch.name}", {launch.kernel}, {grid}, {block}, {shared}, {stream}{arguments})'


def _inner(text: str, templates: set[str]) -> str:
    return _applied(text, _changes(text, tokens_of(text), templates, True)).strip()


def _directive(text: str, templates: set[str], torch_headers: bool) -> str | None:
    """The directive that stands instead, or None to leave it. Macros may launch kernels and ask where tensors are."""
    header = re.match(r"#\s*include\s*[<\"]([^>\"]+)[>\"]", text)
    if header:
        name = header.group(1)
        gone = (_HARMLESS_HEADERS.fullmatch(name) and name != "math.h") or (not torch_headers
                                                                            and _TORCH_HEADERS.fullmatch(name))
        return "" if gone else None
    define = re.match(r"#\s*define\b", text)
    if not define:
        return None
    joined = re.sub(r"\\\r?\n", " ", text[define.end():])
    return "#define" + _applied(joined, _changes(joined, tokens_of(joined), templates, True)).replace("\n", " ")


def _dynamic(tokens: Sequence[Token], index: int) -> tuple[int, int, str] | None:
    """``extern __shared__ T name[];`` as the emulation says it."""
    end = next((i for i in range(index, min(index + 24, len(tokens))) if tokens[i].text == ";"), None)
    if end is None or [t.text for t in tokens[end - 2:end]] != ["[", "]"]:
        return None
    words: list[str] = []
    position = index + 2
    while position < end - 3:
        if tokens[position].text in ("__align__", "alignas", "__attribute__"):
            position = closing(tokens, position + 1)
        else:
            words.append(tokens[position].text)
        position += 1
    return tokens[index].start, tokens[end].end, f"KW_DYNAMIC_SHARED({' '.join(words)}, {tokens[end - 3].text});"


def _bounds(functions: Sequence[Function]) -> str:
    """Registers each kernel's ``__launch_bounds__``, to which the emulation holds launches."""
    lines = []
    for function in functions:
        words = function.specifiers
        place = words.index("__launch_bounds__") if function.is_kernel and "__launch_bounds__" in words else None
        if place is not None and words[place + 2].isdigit():
            lines.append(f"static const bool kw_bounds_{len(lines)} = "
                         f'kw_emulation::register_launch_bounds("{function.name}", {words[place + 2]});\n')
    return "\n" + "".join(lines) if lines else ""
