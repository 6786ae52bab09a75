"""Passes in folders by purpose; `registry` has all of them, `fold_pipeline` and `fuse_passes` those of a fold."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
