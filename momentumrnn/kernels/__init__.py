"""CUDA kernels, compiled when first used."""
