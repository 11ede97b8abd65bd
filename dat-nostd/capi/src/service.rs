//! The library's thread: one for each device.

use crate::handles::{Kinded, NULL, RawHandle};
use crate::node::{Agent, Inner, LIBRARY, Node};
use capi_device::start_thread;
use dat_nostd::{DatResult, DatReturn, Instant, Platform, ReturnType, Subtype};
use std::convert::Infallible;
use std::ptr;

/// An upcall that is due.
struct Call {
    agent: Agent,
    evd: RawHandle,
}

/// Starts the thread of a node.
pub(crate) fn start(node: &'static Node) -> DatResult<()> {
    let error = DatReturn::error(ReturnType::InsufficientResources, Subtype::ResourceMemory);
    start_thread(LIBRARY, move || run(node)).map_err(|_| error)
}

fn run(node: &'static Node) -> Infallible {
    let mut calls = Vec::new();
    loop {
        let (rest, dead) = {
            let mut inner = node.lock_urgently();
            let rest = inner.work(&mut calls);
            (rest, inner.adapter.is_dead())
        };
        for Call { agent, evd } in calls.drain(..) {
            // SAFETY: the program gave this function to be called with this value, and the lock is free.
            unsafe { (agent.function)(ptr::with_exposed_provenance_mut(agent.instance_data), evd) };
        }
        if let Some(deadline) = rest {
            node.sleeper.sleep(deadline, dead);
        }
    }
}

impl Inner {
    /// Moves everything on; until when the thread may sleep then, if it may.
    fn work(&mut self, calls: &mut Vec<Call>) -> Option<Instant> {
        // Takes the interrupts and does not wait.
        self.adapter.platform().idle(Instant::ORIGIN);
        let now = self.adapter.platform().now();
        let was_dead = self.adapter.is_dead();
        let _ = self.adapter.poll(now);
        let rest = self.adapter.rest(now);
        self.tell_waiters();
        if self.adapter.is_dead() && !was_dead {
            self.parked.wake_all();
        }
        while let Some(upcall) = self.adapter.next_upcall() {
            if let Some(agent) = self.agents.take(&upcall.agent) {
                calls.push(Call { agent, evd: upcall.evd.map_or(NULL, Kinded::raw) });
            }
        }
        rest.filter(|_| calls.is_empty())
    }
}
