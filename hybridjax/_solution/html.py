"""A solution in a notebook: a table, a picture, the first events."""

import html
import importlib

import equinox as eqx
import jax.tree_util as jtu
import numpy as np

from .._loop.results import result_name
from .summary import has_values


# What fits beside and below each other.
_COLUMNS, _ROWS, _LINES = 12, 8, 6
# With more numbers, to draw a few takes long.
_LARGEST = 1000


def as_html(sol) -> str | None:
    """`None` for what is no single solution, which is shown as text."""
    if not has_values(sol) or np.ndim(sol.events.count) > 0:
        return None
    size = sum(np.size(leaf) for leaf in jtu.tree_leaves(sol.x1))
    facts = {
        "result": result_name(np.asarray(sol.result._value)),
        "time": f"{float(sol.t0):.6g} to {float(sol.stats['t_end']):.6g}",
        "mode": f"{_mode(sol, sol.mode0)}, at the end {_mode(sol, sol.mode1)}",
        "state": f"{size} numbers",
        "steps": str(np.asarray(sol.stats["num_steps"])),
        "events": str(np.asarray(sol.events.count)),
    }
    rows = [f"<th>{name}</th><td>{html.escape(x)}</td>" for name, x in facts.items()]
    parts = ["<b>Solution</b>", _table(rows)]
    if size <= _LARGEST:
        parts += _picture(sol, size)
    return "\n".join([*parts, *_events(sol, size)])


def _mode(sol, mode) -> str:
    text = sol._names.mode(mode)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _table(rows: list[str]) -> str:
    return "<table>" + "".join(f"<tr>{row}</tr>" for row in rows) + "</table>"


def _picture(sol, size: int) -> list[str]:
    try:
        # Above all that is here, and where there is no matplotlib it raises.
        plots = importlib.import_module("hybridjax.plot._svg")
        drawn = plots.svg(sol, min(size, _LINES))
    except Exception:  # Likewise without a path, or whatever users' systems raise.
        return []
    note = f"<div>The first {_LINES} of {size} numbers.</div>" if size > _LINES else ""
    return [drawn, note]


def _events(sol, size: int) -> list[str]:
    count = int(sol.events.count)
    if count == 0:
        return []
    log = sol.events
    if 2 * size > _COLUMNS:
        log = eqx.tree_at(lambda log: (log.x_before, log.x_after), log, (None, None))
    columns = {name: a[:_ROWS] for name, a in log.to_dict().items()}
    # The speed is the last one, and modes are what there may be many of.
    names = [*list(columns)[:_COLUMNS], "normal_speed"]
    names = [name for name in dict.fromkeys(names) if name != "event"]
    heads = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    cell = lambda value: html.escape(
        f"{value:.6g}" if isinstance(value, float | np.floating) else str(value)
    )
    rows = zip(*(columns[name] for name in names), strict=True)
    rows = ["".join(f"<td>{cell(value)}</td>" for value in row) for row in rows]
    more = [f"<div>{count - _ROWS} more events.</div>"] if count > _ROWS else []
    return [_table([heads, *rows]), *more]
