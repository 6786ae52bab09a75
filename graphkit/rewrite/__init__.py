"""The machinery of passes: their base class, the editor that records changes, the builder of new nodes."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
