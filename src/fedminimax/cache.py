"""Compiled programs, kept between processes: the second run of anything starts at once.

Compilation is most of the time of small work. The variable ``FEDMINIMAX_CACHE`` names a folder for what was compiled, or is
"off". The command line keeps programs in the user's cache folder unless it is told otherwise; in Python nothing is kept unless
the variable, or :func:`keep_programs`, says so. JAX does the keeping, by the text of a program, its options and its version.
"""

from __future__ import annotations

import os
from pathlib import Path

from fedminimax.errors import InputError

VARIABLE = "FEDMINIMAX_CACHE"
OFF = "off"


def keep_programs(folder: str | os.PathLike[str] | None = None) -> Path | None:
    """Keep compiled programs in a folder from now on; return it, or None where they are not kept.

    Args:
        folder: where; by default what ``FEDMINIMAX_CACHE`` says, or else a folder of the user's cache.
    """
    import jax

    wanted = os.environ.get(VARIABLE) if folder is None else os.fspath(folder)
    if wanted == OFF:
        return None
    if not wanted:
        from platformdirs import user_cache_dir

        wanted = os.path.join(user_cache_dir("fedminimax"), "programs")
    path = Path(wanted).expanduser()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"Compiled programs cannot be kept in {path} ({error.strerror}): set {VARIABLE} to a folder, or to off."
        ) from None
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return path


def keep_if_asked() -> None:
    """Keep programs where the variable names a folder; otherwise leave JAX as it is."""
    if os.environ.get(VARIABLE, OFF) != OFF:
        keep_programs()
