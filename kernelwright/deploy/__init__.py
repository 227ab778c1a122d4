"""DEPLOY: files that hold their kernels compiled, and wheels of emitted files."""
