"""strata: chat with local models and keep their state as files."""

__version__ = "0.1.0"
