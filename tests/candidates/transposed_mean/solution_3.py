Here is how I would optimize this architecture with custom CUDA kernels.

The mean over the spatial dimensions commutes with the transposed convolution, so most of the work can be avoided.

```

```

I would fuse the bias, the logsumexp and the final sum into a single kernel, using one block per sample and warp
shuffles for the reductions. Let me know if you want me to write the code.
