"""Signatures that can be read where `help` prints them."""

import inspect
import re
from typing import Any

from jaxtyping import ArrayLike


# What fits into a line after a name; and longer defaults are called by their type.
_WIDTH, _LONGEST = 68, 40


class _Parameter(inspect.Parameter):
    def __str__(self):
        text = {self.VAR_POSITIONAL: "*", self.VAR_KEYWORD: "**"}.get(self.kind, "")
        text += self.name
        if self.annotation is not self.empty:
            text += f": {_type_text(self.annotation)}"
        if self.default is not self.empty:
            text += f" = {_value_text(self.default)}"
        return text


class _Signature(inspect.Signature):
    """As any signature, but for its text: types without the modules that they come
    from, nothing private, and a line for each parameter if one does not hold all."""

    def __str__(self):
        words, starred = [], False
        for parameter in self.parameters.values():
            if parameter.kind == parameter.KEYWORD_ONLY and not starred:
                words.append("*")
            starred |= parameter.kind in (
                parameter.KEYWORD_ONLY,
                parameter.VAR_POSITIONAL,
            )
            if not parameter.name.startswith("_"):
                words.append(str(parameter))
        returns = self.return_annotation
        end = ")" if returns is self.empty else f") -> {_type_text(returns)}"
        line = f"({', '.join(words)}{end}"
        if len(line) <= _WIDTH:
            return line
        return "\n".join(["(", *(f"    {word}," for word in words), end])

    # What Python's own `__str__` calls, from 3.13 on.
    def format(self, **options):
        del options
        return str(self)


def _type_text(annotation) -> str:
    if isinstance(annotation, str):
        return annotation
    text = _without_modules(inspect.formatannotation(annotation))
    text = text.replace(_ARRAY_LIKE, "ArrayLike").replace("NoneType", "None")
    # Unions with names for types are written in another way than those with `|`.
    union = re.fullmatch(r"Union\[([^\[\]]*)\]", text)
    return union[1].replace(", ", " | ") if union else text


def _value_text(value) -> str:
    if inspect.isfunction(value):
        return value.__name__
    text = _without_modules(" ".join(repr(value).split()))
    return text if len(text) <= _LONGEST else f"{type(value).__name__}(...)"


def _without_modules(text: str) -> str:
    return re.sub(r"\b(?:[A-Za-z_]\w*\.)+(?=\w)", "", text)


_ARRAY_LIKE = _without_modules(inspect.formatannotation(ArrayLike))
_ARRAY_LIKE = _ARRAY_LIKE.removeprefix("Union[").removesuffix("]")


def make_readable(*values: Any):
    """For functions, and classes with their methods."""
    for value in values:
        if inspect.isfunction(value):
            _make_readable(value)
        elif inspect.isclass(value):
            public = [name for name in vars(value) if not name.startswith("_")]
            for name in {"__init__"} & set(vars(value)) | set(public):
                method = getattr(value, name)
                _make_readable(getattr(method, "__func__", method))


def _make_readable(fn: Any):
    if not inspect.isfunction(fn):
        return
    plain = inspect.signature(fn)
    parameters = [
        _Parameter(p.name, p.kind, default=p.default, annotation=p.annotation)
        for p in plain.parameters.values()
    ]
    returns = plain.return_annotation
    fn.__signature__ = _Signature(parameters, return_annotation=returns)
