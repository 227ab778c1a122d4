"""Reports of NVIDIA's Compute Sanitizer, read from the text that it prints.

Lines of the tool begin with "=========". A record's first line says what was found; indented ones below it say where
("at" a function and an offset in it, with file and line where the kernel was built with line information), by which
thread, at which address. The text is documented, with samples of each kind, in the tool's manual
(https://docs.nvidia.com/compute-sanitizer/ComputeSanitizer); its XML is not, and says no more. Both ways in which
versions since 2021 write a place are read. A process that prints such lines itself can only add to what is found.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

#: Before each line of the tool.
MARK = "========="
_ACCESS = re.compile(r"Invalid __(\w+)__ (\w+) of size ([\d,]+) bytes?")
_RACE = re.compile(r"(\w+): (?:Race reported between (\w+) access|Potential (\w+) hazard detected)")
_LATE = re.compile(r"Potential invalid __(\w+)__ (\w+) of size ([\d,]+) bytes?")
_UNSET = re.compile(r"Uninitialized __(\w+)__ memory read of size ([\d,]+) bytes?|Uninitialized access")
_BARRIER = re.compile(r"Barrier error detected\.\s*(.*)|Warpgroup MMA sequence error detected\.?\s*(.*)")
_HEAP = re.compile(r"Malloc/Free error encountered\s*:\s*(.*)")
_HARDWARE = re.compile(r"(?:Out-of-range|Misaligned|Illegal|Hardware|Warp|Device|Unspecified)\b.*\b(?:Address|address|"
                       r"Exception|exception|Instruction|instruction|launch failure)\b")
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK|LEAK|INITCHECK|SYNCCHECK) SUMMARY: (\d[\d,]*)")
#: Lines of a record below its first.
_DETAIL = re.compile(r"\s|(?:at|by|and|in|Address|Access|Saved|Host Frame|Device Frame|Current Value|Read Thread|"
                     r"Write Thread)\b")
_PLACE = re.compile(r"(?:^at|^Device Frame:|Thread \([\d, ]+\) at|access at)\s*(?:0x[0-9a-f]+ in )?(.*)")
_THREAD = re.compile(r"by thread (\([\d, ]+\)) in block (\([\d, ]+\))")
_FILE = re.compile(r"([^\s:]+\.\w+):(\d+)")
_BEYOND = re.compile(r"(?:Address|Access (?:to|at)) (?:0x)?[0-9a-f]+ is (.*)")
#: What the tool says of itself.
_OWN = re.compile(r"(?:Internal|Error:|Warning:|Unable|Failed|Device not supported|No attachable|Target application|"
                  r"compute-sanitizer|Unsupported|Insufficient|Timeout|The target|Unknown|Invalid (?:option|argument))",
                  re.IGNORECASE)
#: Kinds of faults: what the kernel does.
OUT_OF_BOUNDS, MISALIGNED, RACE, MAYBE_RACE, UNSET, BARRIER, OTHER = (
    "out-of-bounds", "misaligned", "race", "maybe-race", "unset", "barrier", "other")


@dataclass(frozen=True, slots=True)
class Fault:
    """One record. ``kind`` is one of the above; ``words`` say it as a verb phrase ("writes 4 bytes ..."). ``functions``
    are the names of the functions in which it stands, the innermost first, without parameters and namespaces; ``file``
    and ``line`` where that is known; ``thread`` and ``block`` as "(3,0,0)", or empty."""

    kind: str
    words: str
    functions: tuple[str, ...] = ()
    file: str = ""
    line: int | None = None
    thread: str = ""
    block: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """What a run of the tool printed. ``begun``: its first line is there; ``ended``: so is its summary. ``own`` are
    lines in which the tool speaks of itself: why it did not work."""

    faults: tuple[Fault, ...]
    begun: bool
    ended: bool
    own: tuple[str, ...]


def read_report(printed: str) -> Report:
    """Read what a process printed that ran under the tool; other lines are the process's own."""
    faults: list[Fault] = []
    own: list[str] = []
    begun = ended = False
    for record in _records(printed):
        first = record[0]
        if "COMPUTE-SANITIZER" in first:
            begun = True
        elif _SUMMARY.match(first):
            ended = True
        elif (fault := _fault(first, record[1:])) is not None:
            faults.append(fault)
        elif _OWN.match(first):
            own.append(first)
    return Report(tuple(dict.fromkeys(faults)), begun, ended, tuple(own))


def function_name(text: str) -> str:
    """The plain name of a function in a demangled text such as ``void a::scale<(int)4>(float *, int)+0x70``."""
    text = text.replace("(anonymous namespace)::", "")
    depth, plain = 0, ""
    for character in text:
        if character == "<":
            depth += 1
        elif character == ">":
            depth -= 1
        elif depth <= 0:
            if character in "(+[" or (character == ":" and plain.endswith(")")):
                break
            plain += character
    words = re.findall(r"[\w$~:]+", plain)
    return words[-1].split("::")[-1].strip(":") if words else ""


def _records(printed: str) -> Iterator[list[str]]:
    """Records, each as its lines without the mark; wherever in a printed line the mark stands."""
    record: list[str] = []
    for line in printed.splitlines():
        if MARK not in line:
            continue
        text = line.partition(MARK)[2].removeprefix(" ").rstrip()
        if not text:
            continue
        if record and _DETAIL.match(text):
            record.append(text.strip())
            continue
        if record:
            yield record
        record = [text.strip()]
    if record:
        yield record


def _fault(first: str, details: list[str]) -> Fault | None:
    """The fault that a record tells; None where it tells none."""
    kind, words = _kind(first, details)
    if not kind:
        return None
    lines = [first, *details]
    # A race has its places in sentences: "... access at f(float *)+0x580 in k.cu:25".
    names = [_name(found.group(1)) for line in lines for part in re.split(r"(?= and (?:Read|Write) access)", line)
             if (found := _PLACE.search(part))]
    where = next((found for line in lines if not line.startswith("Host Frame") and (found := _FILE.search(line))), None)
    by = next((found for line in details if (found := _THREAD.search(line))), None)
    return Fault(kind, words, tuple(dict.fromkeys(filter(None, names))), where.group(1).rpartition("/")[2] if where else
                 "", int(where.group(2)) if where else None, by.group(1) if by else "", by.group(2) if by else "")


def _name(place: str) -> str:
    """The function of a place: "f(int)+0x10 in k.cu:3", or, as older versions write it, "k.cu:3:f(int)"."""
    older = re.match(r"[^\s:]+\.\w+:\d+:(.+)", place)
    return function_name(older.group(1) if older else place.split(" in ")[0])


def _kind(first: str, details: list[str]) -> tuple[str, str]:
    """Kind and words of a record; empty where it is none."""
    if (found := _LATE.match(first)) is not None:
        space, does, size = found.groups()
        return RACE, f"{_verb(does)} {size} bytes of {space} memory of a block that may not have begun, or have ended"
    if (found := _ACCESS.match(first)) is not None:
        space, does, size = found.groups()
        said = next((beyond.group(1) for line in details if (beyond := _BEYOND.match(line))), "")
        if "misaligned" in said:
            return MISALIGNED, f"{_verb(does)} {size} bytes of {space} memory at an address that is no multiple of that"
        if "potentially made" in said:
            return RACE, f"{_verb(does)} {size} bytes of {space} memory that is {said.replace('is ', '', 1)}"
        near = next((line.removeprefix("and is ") for line in details if line.startswith("and is ")), "")
        near = re.sub(r" at 0x[0-9a-f]+", "", near)
        return OUT_OF_BOUNDS, f"{_verb(does)} {size} bytes outside of its {space} memory" + (f" ({near})" if near else
                                                                                             "")
    if (found := _RACE.match(first)) is not None:
        level, access, hazard = found.groups()
        other = next((m.group(1) for line in (first, *details) if (m := re.search(r"and (\w+) access", line))), "")
        how = {"RAW": "Read and Write", "WAR": "Read and Write", "WAW": "Write and Write"}.get(hazard or "", "")
        both = (how or f"{access} and {other or 'Read'}").lower().split(" and ")
        words = ("writes" if both == ["write", "write"] else "reads and writes") + \
            " the same shared memory from several threads in no order"
        return (RACE if level.lower() == "error" else MAYBE_RACE), words
    if (found := _UNSET.match(first)) is not None:
        return UNSET, f"reads {found.group(1) or 'device'} memory that nothing has written"
    if (found := _BARRIER.match(first)) is not None:
        said = (found.group(1) or found.group(2) or "").rstrip(". ")
        return BARRIER, "uses a barrier as it must not be" + (f": {said[:1].lower()}{said[1:]}" if said else "")
    if (found := _HEAP.match(first)) is not None:
        return OUT_OF_BOUNDS, f"frees device memory wrongly: {found.group(1).lower()}"
    if _HARDWARE.match(first) and "not supported" not in first:
        return OTHER, f"is stopped by the device: {first[:1].lower()}{first[1:]}"
    return "", ""


def _verb(access: str) -> str:
    return {"read": "reads", "write": "writes", "atomic": "changes", "reduction": "changes"}.get(access, f"{access}s")
