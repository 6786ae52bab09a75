"""The shape engine: every tensor's dims as integer expressions over the model's input dims."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
