"""The spec's part on images: which ones, and how a net sees them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from protofed.data.catalog import BENCHMARKS, benchmark_info, looks_like_folder, source_label


def unknown_name_error(name: str, known: Iterable[str]) -> PydanticCustomError:
    """The fault of a name that is not among the known ones; it carries both for the message."""
    return PydanticCustomError("unknown_name", "unknown name", {"name": name, "known": list(known)})


def _known_source(name: str) -> str:
    """A benchmark's name, or the full path of a folder of images."""
    if looks_like_folder(name):
        return str(Path(name).expanduser().resolve())
    if name not in BENCHMARKS:
        raise unknown_name_error(name, [*BENCHMARKS, "or a folder, as path/to/images"])
    return name


def benchmark_of(field: str, ge: int | None = None, le: int | None = None) -> Any:
    """A default that the chosen benchmark decides, and the range of what may replace it."""
    return Field(
        default_factory=lambda done: getattr(benchmark_info(done["name"]), field),
        ge=ge,
        le=le,
    )


class SpecSection(BaseModel):
    """A part of the spec: no unknown keys, no NaN, no change once made."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, validate_default=True
    )


class Data(SpecSection):
    """Which images, and how a net sees them; what is not said comes from the benchmark."""

    name: Annotated[str, AfterValidator(_known_source)] = "digits-mini"  # or a folder of images
    domains: tuple[str, ...] = benchmark_of("domains")
    side: int = benchmark_of("side", ge=8, le=512)
    channels: Literal[1, 3] = benchmark_of("channels")
    pad: int = benchmark_of("pad", ge=0, le=64)  # pixels around the image before a random crop
    flip: bool = benchmark_of("flip")  # random mirror images
    strict: Literal[True] | None = None  # refuse a folder with files that cannot be used
    revision: int | str = Field(
        default_factory=lambda done: benchmark_info(
            done["name"], bool(done["strict"])
        ).data_version(done["side"])
    )  # of the images: only this version's can be had; of a folder, a digest of what it holds

    @model_validator(mode="after")
    def _of_this_benchmark(self) -> Self:
        if not self.domains or len(set(self.domains)) < len(self.domains):
            raise ValueError("domains: name at least one, and each once")
        if looks_like_folder(self.name) and "revision" in self.model_fields_set:
            return self  # a run on record, which stands even if its images are gone by now
        entry = benchmark_info(self.name)
        known = entry.domains + entry.on_request
        for domain in self.domains:
            if domain not in known:
                raise unknown_name_error(domain, known)
        if "revision" in self.model_fields_set and self.revision != entry.revision:
            raise ValueError(f"revision: this version of protofed has {entry.revision}")
        return self

    @property
    def label(self) -> str:
        """A short name without slashes, for folders and headings."""
        return source_label(self.name)
