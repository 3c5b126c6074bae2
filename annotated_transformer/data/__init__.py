"""Real data: fetched once from the package index, checked against pinned checksums, never committed."""

from __future__ import annotations
