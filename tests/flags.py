"""What XLA is told, for all programs of a process."""

import importlib.metadata
import os


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
    # The first two as there. The third verifies what XLA does, after each of its
    # passes. The others look for what is not there, again and again, as long as
    # something else can be simplified; what the last one finds, tapes that nobody
    # reads, takes memory and no time to speak of.
    "--xla_disable_hlo_passes=while-loop-invariant-code-motion,"
    "while-loop-constant-sinking,hlo-verifier,simplify-sorts,reshape-mover,"
    "tree_reduction_rewriter,simplify-conditional,dynamic-dimension-simplifier,"
    "while-loop-trip-count-annotator,simplify-while-loops",
]


def fast_to_compile():
    """To be called before JAX computes anything."""
    flags = [os.environ.get("XLA_FLAGS", ""), *_FLAGS]
    if importlib.metadata.version("jaxlib").startswith("0.10."):
        flags.append("--xla_cpu_use_fusion_emitters=false")
    os.environ["XLA_FLAGS"] = " ".join(flags)
