"""How to reach a SuperLink."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from muster.core.errors import ConfigError


@dataclass(frozen=True)
class Link:
    """`host:port` of a SuperLink, and the authority that its certificate is checked against."""

    address: str
    root_certificates: Path

    @property
    def authority(self) -> bytes:
        try:
            return self.root_certificates.read_bytes()
        except OSError as error:
            raise ConfigError(
                f"cannot read the root certificates {self.root_certificates}: {error.strerror}",
                expected="the ca.crt of the authority that signed the SuperLink's certificate",
            ) from error
