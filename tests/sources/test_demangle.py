"""C++ names of kernels, as people write them."""

from __future__ import annotations

import random
import time

import pytest

from hangscope.sources.gpu_core.demangle import LONGEST, demangle, title

KNOWN = {
    "_ZN2at4cuda57_GLOBAL__N__3c3b3e3d_8_Sleep_cu_12345678_3_11111_1111111111spin_kernelEl": (
        "at::cuda::(anonymous namespace)::spin_kernel(long)",
        "at::cuda::spin_kernel",
    ),
    "_Z39ncclDevKernel_AllReduce_Sum_f32_RING_LL24ncclDevKernelArgsStorageILm4096EE": (
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
    ),
    "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_T1_": (
        "at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul>>"
        "(int, at::native::FillFunctor<float>, std::array<char*, 1ul>)",
        "at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul>>",
    ),
    "_ZN2at6native18elementwise_kernelILi128ELi2EZNS0_22gpu_kernel_impl_nocastIZZZNS0_15exp_kernel_cudaERNS_18Tensor"
    "IteratorBaseEENKUlvE0_clEvENKUlvE0_clEvEUlfE_EEvS4_RKT_EUliE_EEviT1_": (None, "at::native::elementwise_kernel"),
    "_ZN7deep_ep9intranode8dispatchILi8ELi768EEEvP4int4PKfb": (
        "deep_ep::intranode::dispatch<8, 768>(int4*, float const*, bool)",
        "deep_ep::intranode::dispatch<8, 768>",
    ),
    "_ZN7cutlass6KernelINS_4gemmEEEvNT_6ParamsE": (
        "cutlass::Kernel<cutlass::gemm>(cutlass::gemm::Params)",
        "cutlass::Kernel<cutlass::gemm>",
    ),
    "_Z4callPFvifES0_": ("call(void (*)(int, float), void (*)(int, float))", "call"),
    "ampere_sgemm_128x64_nn": ("ampere_sgemm_128x64_nn", "ampere_sgemm_128x64_nn"),
    "triton_poi_fused_add_0": ("triton_poi_fused_add_0", "triton_poi_fused_add_0"),
}


@pytest.mark.parametrize("name", KNOWN)
def test_a_kernel_has_its_name_in_words(name: str) -> None:
    """Namespaces, templates, lambdas and parameters are written as in C++; plain names stay."""
    whole, short = KNOWN[name]
    assert whole in (None, demangle(name))
    assert title(demangle(name)) == short


@pytest.mark.parametrize(
    "name", ["_Z", "_ZN", "_ZN3fooE9", "_Z3fooIXsrT_E", "_ZNS_E", "_Z99999999x", "_ZZZZ", "_Z3fooT9_x"]
)
def test_what_cannot_be_read_stays_mangled(name: str) -> None:
    """A name that is none, or has what this demangler does not know, is shown as it is."""
    assert demangle(name) == name


def test_a_mangled_name_that_stays_is_cut() -> None:
    """A megabyte of name is a hundred characters of output."""
    assert len(demangle("_ZN" + "9" * 1_000_000)) < 200
    assert len(title(demangle("x" * 5000))) <= 100


def test_substitutions_cannot_explode() -> None:
    """A name whose every part repeats the one before costs no more than its limits."""
    doubling = (
        "_Z1fI" + "".join(f"1aIS{'' if n == 0 else chr(64 + n) if n > 9 else n - 1}_S_E" for n in range(24)) + "EvT_"
    )
    nested = "_Z1f" + "P" * 3000 + "i"
    pairs = "_Z1f1aIiE" + "".join("1pIS{0}_S{0}_E".format("" if n == 0 else n - 1) for n in range(1, 10)) * 30
    begun = time.process_time()
    for name in (doubling, nested, pairs):
        assert len(demangle(name)) <= LONGEST
    assert time.process_time() - begun < 1


def test_random_names_raise_nothing() -> None:
    """Whatever letters come, a text comes back."""
    rng = random.Random(7)
    for _ in range(20_000):
        name = "_Z" + "".join(rng.choice("NSTILEFPRKADJXvifl0123456789_aZUtCs") for _ in range(rng.randrange(40)))
        assert isinstance(title(demangle(name)), str)
