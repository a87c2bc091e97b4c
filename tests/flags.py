"""What XLA is told, for all programs of a process."""

import importlib.metadata
import os


# Passes that take time and find nothing here; most go through all of a program, which
# grows.
_PASSES = [
    # As in `hj.compiler_options`.
    "while-loop-invariant-code-motion",
    "while-loop-constant-sinking",
    # It verifies what XLA does, after each of its passes.
    "hlo-verifier",
    # These look for what is not there, again and again, as long as something else can
    # be simplified. (What the last one finds, tapes that nobody reads, takes memory and
    # no time to speak of.)
    "simplify-sorts",
    "reshape-mover",
    "tree_reduction_rewriter",
    "simplify-conditional",
    "dynamic-dimension-simplifier",
    "while-loop-trip-count-annotator",
    "simplify-while-loops",
    # Loops that scatters have become are simplified like all others.
    "post_scatter_expansion_simplification",
    # Tests run side by side, each in one thread.
    "cpu-parallel-task-assigner",
    # Types and operations that no program of ours has.
    *(
        f"float-normalization-{short}"
        for short in "bf16 f8e5m2 f8e5m2fnuz f8e4m3 f8e4m3fn f8e4m3b11fnuz f8e4m3fnuz "
        "f8e3m4 f8e8m0fnu f4e2m1fn s4 u4".split()
    ),
    "sub-byte-size-setter",
    "cpu-all-reduce-combiner",
    "all-reduce-promotion",
    "all_to_all_decomposer",
    "batchnorm_expander",
    "convolution-group-converter",
    "topk-decomposer",
]

# Compilation is what the tests cost: as `hj.compiler_options("fast_to_compile")`, and
# more. (XLA ends a process that has a flag which it does not know. Options of one
# program take the place of these, but for the passes.)
_FLAGS = [
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
    # In one piece: in many, for many threads, code takes longer in all.
    "--xla_cpu_parallel_codegen_split_count=1",
    # Loops that touch few bytes become one function: see docs/performance.md.
    "--xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold=20000",
    f"--xla_disable_hlo_passes={','.join(_PASSES)}",
]


def fast_to_compile():
    """To be called before JAX is imported."""
    flags = [os.environ.get("XLA_FLAGS", ""), *_FLAGS]
    if importlib.metadata.version("jaxlib").startswith("0.10."):
        flags.append("--xla_cpu_use_fusion_emitters=false")
    os.environ["XLA_FLAGS"] = " ".join(flags)
    # Each operation has the calls that led to it, ten deep, and XLA joins them to those
    # of the caller wherever it puts one function into another.
    os.environ["JAX_TRACEBACK_IN_LOCATIONS_LIMIT"] = "0"
