"""List the KV cache of a decoder: what each step takes from the one before, and what a token costs.

python examples/list_kv_cache.py model.onnx
"""

import sys

import graphkit


def main(model: str) -> None:
    """Print each past with the present that becomes it, and the bytes of a token."""
    cache = graphkit.kv_cache(model)
    for feed in cache.feeds:
        for past, present in feed.pairs:
            print(f"{past or '(none)'} <- {present or '(none)'}: {feed.rule}")
    if cache.bytes_per_token is not None:
        layout = ", ".join(map(str, cache.layout or ("?",)))
        print(f"{cache.bytes_per_token:,} bytes for each token, {cache.dtype}, [{layout}]")


if __name__ == "__main__":
    main(sys.argv[1])
