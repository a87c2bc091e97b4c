"""The tangent map of a recording, and its transpose, as a pair of primitives.

`push` takes tangents of the system's parameters, of the initial state and of the
initial time forward through what was recorded; `pull` takes cotangents back. Each is
the other's transpose, except at corners: there `push` follows the tangent (the
B-derivative), and `pull` the recorded order, one element of the B-subdifferential.
"""

import equinox.internal as eqxi
import jax.tree_util as jtu
from jaxtyping import PyTree

from .._jax.directional import directional
from .._jax.primitives import abstract_eval, linear_in, wanted_of
from .._jax.reduce import nonzero
from .._jax.tie import tie
from .recording import AbstractRecording, Inputs, Outputs, poison


_REVERSE = (
    "Second derivatives through `hj.simulate` are taken forward over reverse: "
    "`jax.hessian`, `jax.jacfwd(jax.grad(f))`, or `jax.jvp(jax.grad(f), (x,), (v,))` "
    "for the product of the Hessian and a vector. A derivative of the simulation was "
    "itself differentiated in reverse mode: replace the outer `jax.grad` or "
    "`jax.jacrev` by `jax.jacfwd` or `jax.jvp`."
)
_THIRD = (
    "hybridjax has first and second derivatives through `hj.simulate`: a second "
    "derivative of a simulation was itself differentiated. Use finite differences of "
    "second derivatives instead."
)


@eqxi.filter_primitive_jvp
def _push_jvp(primals, tangents):
    inputs, recording = primals
    t_inputs, t_recording = tangents
    if jtu.tree_leaves(t_recording):
        t_out = _second(_push_twice_p, t_inputs, t_recording, inputs, recording)
    else:
        t_out = push(t_inputs, recording)
    return push(inputs, recording), t_out


@eqxi.filter_primitive_transpose
def _push_transpose(primals, cts: Outputs):
    inputs, recording = primals
    ct_inputs = pull(cts, linear_in(inputs), recording)
    return ct_inputs, jtu.tree_map(lambda _: None, recording)


@eqxi.filter_primitive_jvp
def _pull_jvp(primals, tangents):
    cts, wanted, recording = primals
    t_cts, _, t_recording = tangents
    if jtu.tree_leaves(t_recording):
        t_out = _second(_pull_twice_p, t_cts, t_recording, cts, wanted, recording)
    else:
        t_out = pull(t_cts, wanted, recording)
    return pull(cts, wanted, recording), t_out


@eqxi.filter_primitive_transpose
def _pull_transpose(primals, ct_inputs: Inputs):
    cts, wanted, recording = primals
    out = wanted_of(linear_in(cts), push(ct_inputs, recording))
    return (
        out,
        jtu.tree_map(lambda _: None, wanted),
        jtu.tree_map(lambda _: None, recording),
    )


def _push_twice_impl(t_inputs, t_recording, inputs, recording) -> Outputs:
    """The tangent of `push`."""
    _, t_out = directional(
        lambda inputs, recording: recording.push(inputs, True),
        (inputs, recording),
        (t_inputs, t_recording),
    )
    return _where_isolated(t_out, t_inputs, t_recording, inputs, recording)


def _pull_twice_impl(t_cts, t_recording, cts, wanted, recording) -> Inputs:
    """The tangent of `pull`."""
    _, t_out = directional(
        lambda cts, recording: recording.pull(cts, wanted, True),
        (cts, recording),
        (t_cts, t_recording),
    )
    return _where_isolated(t_out, t_cts, t_recording, cts, recording)


def _where_isolated(out, t_given, t_recording, given, recording: AbstractRecording):
    """A second derivative, where no two events share an instant, and none happens at
    the start."""
    # It is linear in what the first one is given.
    asked = nonzero(t_given) | (nonzero(given) & nonzero(t_recording))
    return poison(out, asked, recording.smooth_twice)


@eqxi.filter_primitive_jvp
def _no_third(primals, tangents):
    raise NotImplementedError(_THIRD)


@eqxi.filter_primitive_transpose
def _no_reverse(primals, cts):
    raise NotImplementedError(_REVERSE)


_push_p = eqxi.create_vprim(
    "hybridjax_push",
    eqxi.filter_primitive_def(lambda inputs, recording: recording.push(inputs, False)),
    abstract_eval(lambda inputs, recording: recording.like_outputs()),
    _push_jvp,
    _push_transpose,
)
_pull_p = eqxi.create_vprim(
    "hybridjax_pull",
    eqxi.filter_primitive_def(
        lambda cts, wanted, recording: recording.pull(cts, wanted, False)
    ),
    abstract_eval(lambda cts, wanted, recording: recording.like_inputs(wanted)),
    _pull_jvp,
    _pull_transpose,
)


_push_twice_p = eqxi.create_vprim(
    "hybridjax_push_twice",
    eqxi.filter_primitive_def(_push_twice_impl),
    abstract_eval(lambda *args: args[-1].like_outputs()),
    _no_third,
    _no_reverse,
)
_pull_twice_p = eqxi.create_vprim(
    "hybridjax_pull_twice",
    eqxi.filter_primitive_def(_pull_twice_impl),
    abstract_eval(lambda *args: args[-1].like_inputs(args[-2])),
    _no_third,
    _no_reverse,
)


def _second(primitive, t_given, t_recording, *primals):
    t_given = _tie_to(primals[-1], t_given)
    return eqxi.filter_primitive_bind(primitive, t_given, t_recording, *primals)


def push(inputs: Inputs, recording: AbstractRecording) -> Outputs:
    inputs = _tie_to(recording, inputs)
    return eqxi.filter_primitive_bind(_push_p, inputs, recording)


def pull(cts: Outputs, wanted: Inputs, recording: AbstractRecording) -> Inputs:
    cts = _tie_to(recording, cts)
    return eqxi.filter_primitive_bind(_pull_p, cts, wanted, recording)


def _tie_to(recording: AbstractRecording, tree: PyTree) -> PyTree:
    # A tangent that all lanes share is made one for each outside of the primitive, so
    # that JAX sums over them when it transposes.
    return tie(tree, (recording.system, recording.end))
