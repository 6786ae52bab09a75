from .fold_pipeline import FOLDING
from .fuse_passes import FUSING, SHARING
from .registry import PASSES

__all__ = ["FOLDING", "FUSING", "PASSES", "SHARING"]
