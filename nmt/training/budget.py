"""What a run has used of `training.minutes`, and what still fits into the rest.

`Budget` answers for a run and its average, `Pace` for one validation. Both only add up the seconds of a clock. Of
several ranks, the first decides: `nmt.training.distributed.Requests` and `Validation.within` tell the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from nmt.system.console import clock

UNUSED = 0.03  # share of the minutes for what takes longer than estimated
MOST_UNUSED = 10.0  # seconds of that share at most
LONGEST = 0.12  # share of the minutes that a validation may take: a tenth, and some more, for it is estimated
RARE = 10  # minimum ratio of the seconds between validations to those of one, unless updates say when they are due
MOST_DECIDING = 0.5  # share of the minutes that is kept for a decision at their end
PROBE = 0.005  # share of the minutes for a validation that only measures how long a whole one takes
KEPT = 0.9  # share of the slowest update's seconds that counts still one update later
CLOSING = 0.2  # share of the seconds before training that report and exit take after it
LEAST_CLOSING = 0.5  # seconds that they take at least
MOST_CLOSING = 5.0  # seconds that they take at most
SAVING = 3  # times that a checkpoint is written, or as much is read, after the last update
FORWARD = 1 / 3  # share of an update's seconds that its forward pass takes
SECONDS_PER_LINE = 0.001  # to score a line that has been translated
FEWEST = 2  # lines of a rank that are translated first; each part has twice as many as the one before
TELLING = 14  # lines after which the time of all of them is estimated; the first part also starts the search
PATIENCE = 3  # a probe may take so many times its time more, so that it has an estimate
QUARTER = 4  # no part has more than all lines divided by this


class Budget:
    """What a run has used of `training.minutes`, and what still fits; without minutes, everything does."""

    def __init__(
        self, minutes: float | None, seconds: Callable[[], float], before: float = 0.0, fallen: float | None = 0.0
    ) -> None:
        """Count the `seconds` since the command began, and those that the run took `before`.

        `fallen` is the share by which the minutes have brought the learning rate down so far; None if training.minutes
        has changed since.
        """
        self.minutes = minutes
        self.total = math.inf if minutes is None else 60.0 * minutes
        self.saving = 0.0  # seconds to write a checkpoint
        self.scoring: float | None = None  # estimated seconds of a validation
        self.validations = 0.0  # to follow the last update, without that of an average; may be a fraction
        self.averages = False  # whether an average is to be scored as well
        self.decision = 0.0  # cost of the decision on training.replace_init, in validations; it is never left out
        self.lines = 0  # of the development set
        self.batches = 0.0  # size of the development set in updates
        self._rest: float | None = None  # seconds of a validation after its last line is translated
        self._seconds = seconds
        self._before = before
        self._margin = min(UNUSED * self.total, MOST_UNUSED)  # seconds by which estimates may be wrong
        self._closing = min(max(LEAST_CLOSING, CLOSING * seconds()), MOST_CLOSING)
        self._update = 0.0  # seconds of a slow update
        self._fallen = fallen
        self._fell_at: float | None = None  # `spent` at the last call of `fall`
        self._scored_at = 0.0  # when the first update began, or the last validation ended
        self._not_before = 0.0  # when a validation that was given up may be tried again

    @property
    def spent(self) -> float:
        """Seconds that the run has taken: those of earlier commands, and of this one since it began."""
        return self._before + self._seconds()

    @property
    def fallen(self) -> float:
        """How much of the fall of the learning rate to zero the minutes have brought about, 0 to 1."""
        return self._fallen or 0.0

    def left(self) -> float:
        """Return the seconds until the command must begin to end; negative if it is late."""
        return self.total - self._margin - self.spent - self._closing

    def fits(self, seconds: float) -> bool:
        """Return whether something that takes so many seconds may follow the last update."""
        return seconds <= self.left() + self._margin

    def seconds_left(self) -> float:
        """Return the seconds until the last update, after which a checkpoint is written, scored and averaged."""
        validations = self.validations
        if self.averages:
            validations += 1.0
        return self.left() - SAVING * self.saving - validations * self._accepted - self._deciding - self._update

    @property
    def is_used_up(self) -> bool:
        """Whether no update fits any more."""
        return self._fallen == 1.0 or self.seconds_left() <= 0.0

    @property
    def has_trained(self) -> bool:
        """Whether there was an update."""
        return self._update > 0.0

    @property
    def is_late(self) -> bool:
        """Whether training has used more than all of the minutes."""
        return self.has_trained and self.spent > self.total

    @property
    def _accepted(self) -> float:
        """Estimated seconds of a validation, or 0 if it takes too large a share of the time and is left out."""
        if self.scoring is None or self.scoring > LONGEST * self.total:
            return 0.0
        return self.scoring

    @property
    def _deciding(self) -> float:
        """Seconds that are kept for the decision on training.replace_init."""
        return min(self.decision * (self.scoring or 0.0), MOST_DECIDING * self.total)

    def fall(self) -> float:
        """Return the share by which the next update's learning rate is to have fallen, 1 for the last update.

        It never gets smaller, whatever becomes of estimates: from one update to the next, the part of the rate that is
        left falls as the time that is left does.
        """
        if self.minutes is None:
            return 0.0
        now = self.spent
        left = self.seconds_left()
        if self._fell_at is None:
            self._scored_at = now
        if left <= 0.0:
            self._fallen = 1.0
        elif self._fallen is None:
            self._fallen = now / (now + left)  # as if these had been the minutes from the start
        elif self._fell_at is not None:
            passed = now - self._fell_at
            self._fallen += (1.0 - self._fallen) * passed / (passed + left)
        self._fell_at = now
        return self.fallen

    def updated(self, seconds: float) -> None:
        """Note how long an update took."""
        self._update = max(seconds, KEPT * self._update)

    def between(self, minutes: float) -> float:
        """Return the seconds between checkpoints that are to be `minutes` apart: more, if scoring takes long."""
        return max(60.0 * minutes, RARE * self._accepted)

    def more(self) -> float:
        """Return training.minutes, rounded up to two digits, with which the run would go on: twice as many or more."""
        spent = self.spent if self.has_trained else self._before
        # A run has spent far more than its minutes if they were lowered.
        enough = 2.0 * self.total if spent <= 1.05 * self.total else 3.0 * spent
        minutes = enough / 60.0
        unit = 10.0 ** (math.floor(math.log10(minutes)) - 1)
        units = math.ceil(round(minutes / unit, 6))
        return round(units * unit, 9)

    # --- validations

    def pace(self, may_be_frequent: bool) -> Pace | None:
        """Return the pace of a validation between updates, None without minutes.

        Unless it `may_be_frequent`, it may take a tenth of the time since the last one, and some more.
        """
        now = self.spent
        allowed = min(LONGEST * self.total, self.seconds_left() / 2.0)  # updates get as much again
        if now < self._not_before:
            allowed = 0.0
        elif not may_be_frequent:
            allowed = min(allowed, 1.2 * (now - self._scored_at) / RARE)
        return self._pace(allowed, "updates come first")

    def last_pace(self) -> Pace | None:
        """Return the pace of a validation after the last update, None without minutes."""
        allowed = self.left() - self._deciding + self._margin / 2.0  # the other half is for what follows
        return self._pace(allowed, "training.minutes leaves no time for it")

    def probe(self) -> Pace | None:
        """Return the pace of a validation that only measures what a whole one takes, None without minutes."""
        allowed = min(PROBE * self.total, self.seconds_left())
        if self.spent < self._not_before:
            allowed = 0.0
        return self._pace(allowed, probes=True)

    def _pace(self, allowed: float, reason: str = "", probes: bool = False) -> Pace | None:
        if self.minutes is None:
            return None
        rest = self._rest
        if rest is None:
            rest = FORWARD * self.batches * self._update + SECONDS_PER_LINE * self.lines
        return Pace(self._seconds, allowed, self.scoring, rest, reason, probes)

    def scored(self, pace: Pace, complete: bool) -> None:
        """Note how long a validation took that ends now or, unless it is `complete`, how long it would have taken."""
        if complete:
            self.scoring = pace.seconds
            self._rest = pace.seconds - pace.searched
            self._scored_at = self.spent
        else:
            self.scoring = pace.expected
            if self.scoring != self._accepted:  # it takes too large a share of the time
                self._not_before = self.spent + RARE * pace.seconds


class Pace:
    """How far a validation goes before it is looked at again, so that it ends in time or is given up early."""

    def __init__(
        self,
        seconds: Callable[[], float],
        allowed: float,
        expected: float | None,
        rest: float,
        reason: str = "",
        probes: bool = False,
    ) -> None:
        """Allow `allowed` seconds from now by the clock `seconds`; a pace that `probes` ends only when they are over.

        Others end as soon as more are to be expected. `expected` is an estimate for the whole validation, whose `rest`
        follows the search. `reason` says why it may not take longer.
        """
        self.expected = expected
        self.searched = 0.0  # seconds when the last part ended
        self.lines = 0  # searched until then
        self.has_begun = False  # set by the caller
        self._clock = seconds
        self._began = seconds()
        self._reason = reason
        self._allowed = allowed
        self._rest = rest
        self._probes = probes
        self._may_fit = expected is None or expected <= 3.0 * allowed or probes  # estimates are rough
        self._fits = expected is not None and expected <= allowed
        self._parts = list[tuple[int, float]]()  # lines and seconds of each

    @property
    def seconds(self) -> float:
        """Seconds since it began."""
        return self._clock() - self._began

    @property
    def reason(self) -> str:
        """Why it was given up."""
        if self.expected is None:
            return self._reason
        return f"{self._reason}; it takes about {clock(self.expected)}"

    def next(self, done: int, lines: int) -> int:
        """Return the end of the next part of the `lines`, of which `done` are searched; `done` itself to give up."""
        now = self.seconds
        if done == 0:
            return self._first_part(lines)
        part = done - self.lines
        seconds = now - self.searched
        self._parts.append((part, seconds))
        self.lines = done
        self.searched = now
        end = _end(part, done, lines)
        # The next part takes at most as long for each line as this one; on a GPU perhaps only as long in all.
        limit = (1.0 + PATIENCE) * self._allowed if self._probes else self._allowed
        is_late = now + seconds * (end - done) / part > limit
        if done < lines and (is_late or done >= TELLING):
            self.expected = now + self._estimate(done, lines) + self._rest
            until = now if self._probes else self.expected  # a probe goes on until its time is over
            if is_late or until > self._allowed:
                return done
        return end

    def _first_part(self, lines: int) -> int:
        """Return the number of lines to search first, 0 to give up."""
        if self._allowed <= 0.0 or not self._may_fit:
            return 0
        if self._fits:
            return min(lines, max(FEWEST, lines // QUARTER))
        return min(lines, FEWEST)

    def _estimate(self, done: int, lines: int) -> float:
        """Estimate the seconds of the other parts from the last two: some for each line, some for each part."""
        part, seconds = self._parts[-1]
        each = seconds / part
        if len(self._parts) > 1:
            part_before, seconds_before = self._parts[-2]
            if part_before < part:
                each = min(each, max(0.0, (seconds - seconds_before) / (part - part_before)))
        parts = 0
        first = done
        size = part
        while first < lines:
            end = _end(size, first, lines)
            size = end - first
            first = end
            parts += 1
        return parts * (seconds - each * part) + each * (lines - done)


def _end(part: int, done: int, lines: int) -> int:
    """Return the line at which the next part ends: at most twice as long as the last, and a quarter of all lines."""
    return min(lines, done + max(1, min(2 * part, lines // QUARTER)))
