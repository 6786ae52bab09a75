"""The models of an export that a proof compares with."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from graphkit.model import Model


class Originals(Struct, frozen=True, eq=False):
    """The models that were lowered or bundled."""

    encoder: Model | None = None
    first: Model | None = None  # the decoder of the first step; `step` itself where one model serves; None without one
    step: Model | None = None  # the decoder of later steps, or None
    is_changed: bool = False  # whether they are no longer what their files say
    head: Model | None = None  # what gives the logits from the output of `first`, where that is a model of its own
    parts: tuple[Model, ...] = ()  # models that a caller runs beside, such as an encoder of pictures, or of embeddings
    # the decoder as it was exported, where caches that keep a window's tokens were let grow in `step`; or None
    sliding: Model | None = None

    @property
    def models(self) -> tuple[Model, ...]:
        """Those that there are."""
        models = (self.encoder, self.first, self.head, self.step, *self.parts)
        return tuple(dict.fromkeys(model for model in models if model is not None))

    def map_models(self, change: Callable[[Model], Model]) -> Originals:
        """Return these with a change of each model, which is made once."""
        made = {model: change(model) for model in self.models}
        names = ("encoder", "first", "step", "head")
        parts = {name: None if (model := getattr(self, name)) is None else made[model] for name in names}
        parts["sliding"] = None if self.sliding is None else change(self.sliding)
        is_changed = self.is_changed or any(model is not other for model, other in made.items())
        return replace(self, is_changed=is_changed, parts=tuple(made[part] for part in self.parts), **parts)
