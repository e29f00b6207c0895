"""The life of a server: the ladder, the states, the keeper, idleness, and what the gateway waits for."""

from .mutant import mutants_of

SERVERS = (
    *mutants_of(
        "supervisor/decisions/restart_policy.py",
        "supervisor/decisions/test_restart_policy.py property/test_restart_policy.py",
        {
            "return len(self.delays) + 1": "return len(self.delays)",
            'if clean and self.mode != "permanent":': 'if clean and self.mode == "temporary":',
            'if not retriable or self.mode == "temporary" or (rest is None and failures >= len(delays)):': "if not retriable or (rest is None and failures >= len(delays)):",
            "return tracker, Restart(at=at + delays[failures], attempt=tracker.attempt)": "return tracker, Restart(at=at + delays[-1], attempt=tracker.attempt)",
            "return ended, Restart(at=at + max(delay, rest), attempt=ended.attempt)": "return ended, Restart(at=at + rest, attempt=ended.attempt)",
            "return self.connected_at is not None and end - self.connected_at >= self.policy.stable_after": "return self.connected_at is not None and end - self.connected_at > self.policy.stable_after",
            "return 0 if self.is_stable(end) else self.failures": "return self.failures",
            "return evolve(self, failures=self._failures_before(at), connected_at=None)": "return evolve(self, failures=0, connected_at=None)",
            "delays = tuple(min(delay, cap) for delay in steps) if attempts else ()": "delays = tuple(steps) if attempts else ()",
        },
    ),
    *mutants_of(
        "supervisor/decisions/renewal_limits.py",
        "supervisor/decisions/test_renewal_limits.py",
        {
            "if not is_old and now < renewed_at + RENEWAL_PAUSE:": "if now < renewed_at + RENEWAL_PAUSE:",
            "elif limits.memory is not None and memory is not None and memory > limits.memory:": "elif limits.memory is not None and memory is not None and memory >= limits.memory:",
            'return Excess(words, "it is renewed once nobody uses it" if in_use else "")': "return Excess(words)",
        },
    ),
    *mutants_of(
        "supervisor/opening.py",
        "supervisor/test_preload.py",
        {
            "for modules in dict.fromkeys([CALL_MODULES, *(modules_for(spec) for spec in specs if spec.lazy is not True)]):": "for modules in (CALL_MODULES,):"
        },
    ),
    *mutants_of(
        "supervisor/servers/keeper.py",
        "supervisor/servers/test_limits.py",
        {
            "in_use=self._settings.counter.idle_since(self._now.spec.name) == math.inf,": "in_use=False,",
            "self._limits_due = trio.current_time()  # they may be others": "pass",
        },
    ),
    *mutants_of(
        "supervisor/decisions/state_machine.py",
        "supervisor/servers/test_limits.py",
        {
            "machine = self._resumed(now, self._tracker.on_idle(now), woken=False)": "machine = self.started(now)",
        },
    ),
    *mutants_of(
        "supervisor/decisions/state_machine.py",
        "supervisor/decisions/test_state_machine.py property/test_state_machine.py supervisor/servers/test_keeper_commands.py "
        "supervisor/servers/test_revive.py supervisor/servers/test_needs_auth.py supervisor/servers/test_restart_ladder.py "
        "supervisor/servers/test_reload_memory.py supervisor/servers/test_reload.py",
        {
            "fresh = self._tracker.reset()": "fresh = self._tracker",
            "return self._resumed(now, self._tracker.reset(), woken=woken)": "return self._resumed(now, self._tracker, woken=woken)",
            "if self.snapshot.state is not ServerState.WAITING or self.due <= due:": "if self.snapshot.state is not ServerState.WAITING:",
            "return evolve(self, due=reason.at)": "return evolve(self, due=reason.at + 1)",
            "clean = reason.loss.exit_code == 0 and not reason.loss.pending": "clean = reason.loss.exit_code == 0",
            "due = reason.at + ASKED_AGAIN": "pass",
            "return self.state in LEFT_BY_NOBODY and self.due_at is None": "return self.state in LEFT_BY_NOBODY",
            "return None if self.due_at is None else max(0.0, self.due_at - now)": "return None if self.due_at is None else self.due_at - now",
            "if spec.transport == old.spec.transport:": "if True:",
            "if not begun:": "if False:",
            "due = None if seconds is None else reason.at + seconds": "due = None",
            "return self.snapshot.incarnation + self._begun": "return self.snapshot.incarnation + 1",
        },
    ),
    *mutants_of(
        "supervisor/servers/keeper.py",
        "supervisor/servers/test_idle_stop.py supervisor/servers/test_keeper_commands.py supervisor/servers/test_restart_ladder.py "
        "supervisor/servers/test_reload.py supervisor/servers/test_needs_auth.py supervisor/servers/test_changing_set.py",
        {
            "if self._idle_at() <= trio.current_time():": "if True:",
            "case _ if self._overruled:": "case _ if False:",
            "limiter=self._settings.limiter if self._now.attempt == 1 else UNLIMITED,": "limiter=self._settings.limiter,",
            "if self._settings.log_in is None or self._asked_person:": "if self._settings.log_in is None:",
            "self._removed = self._removed or isinstance(command, Remove)": "self._removed = True",
            "if self._now.state not in _RUNNING:": "if True:",
            "self._actor.stop(drain)": "self._actor.stop(0.0)",
            "elif self._now.state in CALLS_WAIT:": "elif False:",
            "if spec == old and not restart:": "if False:",
            "idle_since = max(self._unused_from, self._settings.counter.idle_since(self._now.spec.name))": "idle_since = self._settings.counter.idle_since(self._now.spec.name)",
        },
    ),
    *mutants_of(
        "supervisor/gateway/gateway.py",
        "supervisor/gateway/test_gate.py",
        {
            "for server in filter(matters, self._supervisor.unlisted):": "for server in self._supervisor.unlisted:",
            "until = self._until.setdefault(server, trio.current_time() + self._seconds)": "until = trio.current_time() + self._seconds",
            "is_over = scope.cancelled_caught and trio.current_time() >= until": "is_over = True",
            "if is_over and server in self._supervisor.unlisted and server not in self._missed:": "if is_over and server not in self._missed:",
            "self._missed.add(server)": "pass",
            "scope.cancel()": "pass",
        },
    ),
    *mutants_of(
        "supervisor/gateway/upstream/instance_leases.py",
        "supervisor/gateway/upstream/test_pool.py supervisor/gateway/upstream/test_lives.py",
        {
            "if shut or self._supervisor.spec(name) != instance.spec:": "if shut:",
            "if len(own) >= share:": "if False:",
            "if len(there) >= most:": "if False:",
            "if request.session is not None and request.session.ended:": "if False:",
        },
    ),
    *mutants_of(
        "supervisor/gateway/http/sessions.py",
        "supervisor/gateway/http/test_sessions.py supervisor/gateway/http/test_client_messages.py",
        {
            "self.notify(Notification(CANCELLED, cancelled))": "pass",
            "if asked is not None and not asked.answered.is_set():": "if asked is not None:",
        },
    ),
)
