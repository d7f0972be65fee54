"""Cores of GPUs: which kernels run there, asked of the driver when the job is ended anyway."""
