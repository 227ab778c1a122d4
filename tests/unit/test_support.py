"""The support text of an emitted file has what its kernels refer to, and no more."""

from __future__ import annotations

import re

import pytest
from places import ROOT

from kernelwright.codegen.c.support import SNIPPETS as C
from kernelwright.codegen.cpp.support.snippets import SNIPPETS as CPP
from kernelwright.codegen.cpp.support.snippets import snippets
from kernelwright.codegen.cuda.math import SCALAR_SNIPPETS
from kernelwright.codegen.cuda.support.snippets import SNIPPETS as CUDA
from kernelwright.codegen.generate import TARGETS
from kernelwright.emit.support import used_support
from kernelwright.judge.reading.ctokens import functions_of, tokens_of

SNIPPETS = {"c": C, "cpp": CPP, "cuda": CUDA | SCALAR_SNIPPETS}

SUPPORT = '''\
// What all of it needs.
#include <cmath>

// Bits of a value.
static inline int kw_bits(float x) { int bits; std::memcpy(&bits, &x, 4); return bits; }
static inline long kw_bits(double x) { return 0; }

#ifdef FAST
template <typename real> static inline real kw_add(real x, real y) { return std::fma(x, real(1), y); }
template <typename real> static inline real kw_sub(real x, real y) { return std::fma(y, real(-1), x); }
#else
template <typename real> static inline real kw_add(real x, real y) { return x + y; }
template <typename real> static inline real kw_sub(real x, real y) { return x - y; }
#endif

// Calls kw_bits, and says "kw_sub {".
template <typename real>
static inline real kw_all(real x) {
  log("kw_sub {");
  return kw_bits(x);
}

#define KW_TWICE(x) \\
  do {              \\
    kw_add(x, x);   \\
  } while (0)

struct kw_pair { float x, y; };
template <typename T>
struct alignas(sizeof(T) * 4 < 16 ? sizeof(T) * 4 : 16) kw_four { T at[4]; };
template <typename T> static void kw_store_four(T* to) { kw_four<T> four; *to = four.at[0]; }
static const float kw_table[2] = {1.0f,
                                  2.0f};
#ifndef EMULATED
static __device__ __forceinline__ void kw_wait(unsigned barrier) { asm volatile("{ wait; }" :: "r"(barrier)); }
#endif
'''


@pytest.mark.parametrize(("kernels", "names"), [
    ("kw_all(1.0f);", {"kw_all", "kw_bits"}), ("KW_TWICE(x);", {"KW_TWICE", "kw_add"}), ("kw_sub(x, y)", {"kw_sub"}),
    ("kw_pair p;", {"kw_pair"}), ("kw_store_four(p);", {"kw_store_four", "kw_four"}),
    ("kw_table[1]", {"kw_table"}), ("kw_wait(b);", {"kw_wait"}),
    ("nothing(); // kw_add", set()),
])
def test_what_kernels_refer_to_is_there_with_what_that_needs(kernels, names):
    text = used_support(SUPPORT, kernels)
    defined = re.findall(r"(?:inline \w+|__ void|static void|struct|alignas\(.*\)|float|define) (kw_\w+|KW_\w+)",
                         re.sub(r"//.*", "", text), re.M)
    assert set(defined) == names and "#include <cmath>" in text
    assert text.count("#if") == text.count("#endif") == len(names & {"kw_add", "kw_sub", "kw_wait"})
    assert not text.endswith("\n") and "\n\n\n" not in text and ("// Bits" in text) == ("kw_bits" in names)


def test_all_of_it_stays_where_all_is_used():
    everything = "kw_bits kw_add kw_sub kw_all KW_TWICE kw_pair kw_table kw_wait kw_store_four"
    assert used_support(SUPPORT, everything) == SUPPORT.strip("\n")


def _defined(text: str) -> set[str]:
    """The functions, types and macros of a text, as the judge's reader finds functions."""
    code = re.sub(r"//.*", "", text)
    patterns = (r"\bstruct\b[^{;()]*?\b(kw_\w+)[^;()]*{", r"\)\s*(kw_\w+)\s*{", r"#\s*define\s+(\w+)")
    return {f.name for f in functions_of(tokens_of(text))}.union(*(re.findall(p, code) for p in patterns))


@pytest.mark.parametrize("target", ["c", "cpp", "cuda"])
def test_whatever_is_used_what_it_needs_is_there(target):
    """Of every function that a target's kernels share: what is left refers to nothing that was left out."""
    wholes = {TARGETS[target].support({name}): name for name in SNIPPETS[target]}  # several names may have one text
    for whole, name in wholes.items():
        defined = _defined(whole)
        for used in sorted(defined):
            text = used_support(whole, f"{used}(x);")
            there = _defined(text)
            words = set(re.findall(r"\b(?:kw|KW)_\w+", re.sub(r"//.*", "", text)))
            assert used in there and words & defined <= there, (name, used, (words & defined) - there)


@pytest.mark.parametrize("path", sorted((ROOT / "examples" / "generated").glob("*.py")), ids=lambda path: path.stem)
def test_functions_of_an_emitted_file_are_used_in_it(path):
    source = path.read_text(encoding="utf-8").partition("_SOURCE = r\"\"\"")[2].partition("\"\"\"")[0]
    code = re.sub(r"//.*", "", source)
    for name in set(re.findall(r"\b(kw_\w+)\(", code)):
        assert len(re.findall(rf"\b{name}\b", code)) > 1, name


@pytest.mark.parametrize("name", CPP)
def test_each_snippet_comes_with_all_that_it_uses(name: str) -> None:
    """Also where a kernel uses nothing else that would bring it along."""
    text = re.sub(r"//.*", "", snippets([name]))
    defined = re.findall(r"\b(?:static|struct|union|using|template)\b[^;{}=()]*?\b(kw_\w+)", text)
    assert set(re.findall(r"\bkw_\w+", text)) <= set(defined)
