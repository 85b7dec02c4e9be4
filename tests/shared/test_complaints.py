from __future__ import annotations

import structlog

from moesaic.shared import log
from moesaic.shared.complaints import EVERY_S, Complaints


def test_every_bad_message_is_counted_and_one_a_minute_is_logged() -> None:
    with structlog.testing.capture_logs() as lines:
        complaints = Complaints(log.get("test"))
        for at in (0.0, 1.0, EVERY_S - 1, EVERY_S):
            complaints.add("subject", "malformed", at)
    assert complaints.count == 4
    assert [line["more_since_last"] for line in lines] == [0, 2]
