"""Verify catches wrong parallel programs and says where they are wrong. One planted bug at a time."""

import re

import pytest

from tests.kit.ranks import pool
from tests.kit.tiny import tiny
from tests.verify.on_ranks import verify_with_bug
from tests.verify.seeded_bugs import BUGS


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_caught_and_located(name, tmp_path):
    bug = BUGS[name]
    config = tiny(bug.model, tmp_path, **bug.degrees)
    if bug.raises:
        with pytest.raises(Exception) as caught:
            pool.run(bug.ranks, verify_with_bug, config, name, timeout_seconds=60)
        assert f"verify: {bug.blame}" in getattr(caught.value, "__notes__", [])
        return
    verdict = pool.run(bug.ranks, verify_with_bug, config, name, timeout_seconds=60)[0]
    assert not verdict.is_equal
    assert re.match(bug.blame, verdict.blame), verdict.blame
