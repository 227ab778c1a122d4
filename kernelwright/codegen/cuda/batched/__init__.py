"""Batched products of small matrices in float32 multiply-adds; operands are read where they lie."""
