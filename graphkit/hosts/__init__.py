"""Reference hosts: small programs that run lowered models, driven by nothing but their contract."""

from graphkit.hosts.numpy_host import Host

__all__ = ["Host"]
