"""What `plan` and `replay` share."""

from __future__ import annotations

from moesaic.cli.offline.case import Answer, Case, Row
from moesaic.cli.offline.options import case_of
from moesaic.cli.offline.table import as_json, table, title

__all__ = ["Answer", "Case", "Row", "as_json", "case_of", "table", "title"]
