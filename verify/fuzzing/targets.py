"""All targets. Importing them imports what they cover, so an engine that instruments code does so first."""

from __future__ import annotations

import format_readers
import invariants
import model_readers
import readers
import round_trips

TARGETS = (*readers.TARGETS, *format_readers.TARGETS, *model_readers.TARGETS, *round_trips.TARGETS, *invariants.TARGETS)
