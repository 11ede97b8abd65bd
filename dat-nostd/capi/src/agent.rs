//! Which threads are calling a program's agents.

use std::cell::Cell;

thread_local! {
    static CALLING: Cell<bool> = const { Cell::new(false) };
}

/// Calls an agent.
pub(crate) fn call(agent: impl FnOnce()) {
    CALLING.set(true);
    agent();
    CALLING.set(false);
}

/// Whether this is a call from an agent, of whichever device: what another agent is owed may wait for this one.
pub(crate) fn is_calling() -> bool {
    CALLING.get()
}
