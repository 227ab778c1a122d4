"""Templates of the CUDA region sum; ``@KEY@`` is replaced by ``generate.py`` beside it. Long ones are files, too."""

from __future__ import annotations

from kernelwright.codegen.source import text_beside

DIRECT = "\n" + text_beside(__file__, "direct.cuh")

EMPTY = """
static const char* @NAME@(const @IN@* x, @OUT@* out, void* workspace, cudaStream_t stream) {
  (void)x; (void)out; (void)workspace; (void)stream;
  return nullptr;  // the output has no elements
}
"""

LOAD = "\n" + text_beside(__file__, "load.cuh")

STREAM = "\n" + text_beside(__file__, "stream.cuh")

TASKS = "\n" + text_beside(__file__, "tasks.cuh")

STORE = "\n" + text_beside(__file__, "store.cuh")

STORE_SPLIT = "\n" + text_beside(__file__, "store_split.cuh")

STORE_COLUMNS = "\n" + text_beside(__file__, "store_columns.cuh")

PARTS = """    for (int i = @NAME@_first_part(output); i < @NAME@_first_part(output + 1); ++i) {
      const int atom = @NAME@_part(i);"""

RESULT = "    out[out_offset + @NAME@_output(output) + column] = static_cast<@OUT@>(@SCALE@ * sum);"

PARTS_SPLIT = """    {
      const int atom = output;  // one unit per block: its atoms go to the workspace"""

RESULT_SPLIT = (
    "    scratch[(static_cast<long long>(blockIdx.x) * @TASKS@ + output) * @COLUMNS@ + column] = sum;"
)

FINISH_COLUMNS = "\n" + text_beside(__file__, "finish_columns.cuh")

HOST = """
static const char* @NAME@(const @IN@* x, @OUT@* out, void* workspace, cudaStream_t stream) {
  double* scratch = static_cast<double*>(workspace);
  KW_LAUNCH("@NAME@", @NAME@_stream, @BLOCKS@, @THREADS@, 0, stream, x, out, scratch);
@FINISH@  return nullptr;
}
"""
