"""Convolutions of few channels in float32 multiply-adds."""
