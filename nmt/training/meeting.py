"""How the ranks of a run find one another: a store at an agreed place, and in it the tokens of all of them.

It says for which rank another waits, since a rank that does not come is seldom noticed otherwise.
"""

from __future__ import annotations

import hashlib
import os
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import timedelta
from threading import Thread
from typing import Any
from uuid import uuid4

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from nmt.system.errors import GroupError, UserError
from nmt.system.launchers import MeetingPoint, World

LOOK = 0.1  # seconds between polls of the store
SILENCE = 10.0  # seconds of waiting for ranks to start before it is said
CONNECTED = 5.0  # seconds for a connection to rank 0
STARTED = "see that all ranks are started, with the same MASTER_ADDR, MASTER_PORT and WORLD_SIZE if these are set"


class Meeting:
    """A rank's search for the others."""

    def __init__(
        self,
        world: World,
        timeout: timedelta,
        say: Callable[[str], None],
        is_orphaned: Callable[[], bool],
    ) -> None:
        """Configure a rank; it will `say` for whom it waits, and ask whether its launcher died."""
        self._world = world
        self._timeout = timeout
        self._say = say
        self._is_orphaned = is_orphaned
        self._leads = world.rank == 0
        self._is_first_here = world.local_rank == 0

    def store(self, place: MeetingPoint) -> PrefixStore:
        """Wait for all ranks of this attempt; return a store that only they share.

        torchrun keeps one store across restarts, and hosts count TORCHELASTIC_RESTART_COUNT independently, so neither
        identifies an attempt on every host. Each rank therefore writes a fresh token, rank 0 publishes the list of
        tokens whenever it changes, and each rank confirms a list that holds its own token. A list with a stale token
        never gets all confirmations. The ranks of another run that find this store have tokens of their own.

        Raise GroupError on timeout, or if this rank's launcher has died, and UserError if rank 0 cannot listen there.
        """
        store = self._find_store(place)
        rank = self._world.rank
        size = self._world.size
        token = uuid4().hex
        attempt = f"nmt/{place.run}/attempt"
        tokens = [f"nmt/{place.run}/token/{number}" for number in range(size)]
        store.set(tokens[rank], token)
        published = confirmed = ""  # the newest lists of tokens that this rank published and confirmed

        def is_confirmed_by_all() -> bool:
            nonlocal published, confirmed
            if self._leads and store.check(tokens):
                found = " ".join(value.decode() for value in store.multi_get(tokens))
                if found != published:
                    store.set(attempt, found)
                    published = found
            if not store.check([attempt]):
                return False
            listed = store.get(attempt).decode()
            members = listed.split()
            if len(members) != size or members[rank] != token:
                return False
            # Confirm a list once; adding 0 only asks for the number.
            confirmations = store.add(f"{name_of(listed)}/confirmations", int(listed != confirmed))
            confirmed = listed
            return bool(confirmations == size)

        def name_of(listed: str) -> str:
            return f"nmt/{place.run}/" + hashlib.sha256(listed.encode()).hexdigest()

        def missing() -> str:
            ranks = [number for number, name in enumerate(tokens) if not store.check([name])]
            if not ranks:
                return f"the other {size - 1}"
            return named(ranks)

        self._wait(is_confirmed_by_all, missing, speaks=self._leads)
        return PrefixStore(name_of(confirmed), store)

    def _find_store(self, place: MeetingPoint) -> Any:
        """Return the store at the meeting point, which rank 0 serves unless the launcher does."""
        serves = self._leads and not place.is_served
        host = "127.0.0.1" if serves else place.host  # a host may be unable to look its own name up
        if not serves:
            self._wait_for_server(place)
        found = Future[Any]()

        def connect() -> None:
            make_store = dist.TCPStore  # type: ignore[attr-defined]
            try:
                found.set_result(make_store(host, place.port, None, serves, self._timeout, wait_for_workers=False))
            except RuntimeError as error:
                found.set_exception(error)

        # In a thread, since it waits without an end if another program listens there.
        Thread(target=connect, name="store", daemon=True).start()
        speaks = self._is_first_here and not serves
        self._wait(found.done, lambda: f"an answer from {place.host}:{place.port}", speaks)
        try:
            return found.result()
        except RuntimeError as error:
            if "failed to listen" not in str(error):
                raise
            reason = str(error).split("\n")[0].rpartition("message: ")[2]
            problem = f"{os.uname().nodename}: the ranks cannot meet at port {place.port}: {reason}"
            hint = "set MASTER_PORT to another port, the same for all ranks: this one may be another run's"
            raise UserError(problem, hint) from None

    def _wait_for_server(self, place: MeetingPoint) -> None:
        """Wait until rank 0 can be connected to: here, where signals can end it, and not in PyTorch."""
        reason = ""

        def is_connected() -> bool:
            nonlocal reason
            try:
                with socket.create_connection((place.host, place.port), CONNECTED):
                    return True
            except (OSError, UnicodeError) as error:  # the latter if no host can have such a name
                reason = f" ({getattr(error, 'strerror', None) or error})"
                return False

        self._wait(is_connected, lambda: f"rank 0 at {place.host}:{place.port}{reason}", speaks=self._is_first_here)

    def _wait(self, done: Callable[[], bool], what: Callable[[], str], speaks: bool) -> None:
        """Wait for other ranks to start, until `done`. A rank that `speaks` says after a while for `what` it waits."""
        began = time.monotonic()
        limit = self._timeout.total_seconds()
        rank = self._world.rank
        minutes = f"{limit / 60:g} minutes"
        while not done():
            waited = time.monotonic() - began
            if waited > limit:
                raise GroupError(f"rank {rank} waited {minutes} for {what()}", hint=STARTED)
            if self._is_orphaned():  # otherwise the next attempt might count this rank as a member
                raise GroupError(f"rank {rank}: its launcher is gone")
            if speaks and waited > SILENCE:
                self._say(f"rank {rank} waits for {what()}, for up to {minutes}")
                speaks = False
            time.sleep(LOOK)


def named(ranks: Sequence[int]) -> str:
    """Name ranks, as in `ranks 1, 2`."""
    listed = ", ".join(map(str, ranks))
    return f"ranks {listed}" if len(ranks) > 1 else f"rank {listed}"


def by_rank(values: Sequence[str]) -> str:
    """Say which ranks have which of the values; empty if all have the same one."""
    ranks = defaultdict[str, list[int]](list)
    for rank, value in enumerate(values):
        ranks[value].append(rank)
    if len(ranks) == 1:
        return ""
    return "; ".join(f"{named(those)}: {value}" for value, those in ranks.items())
