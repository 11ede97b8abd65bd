//! The library's thread: one for each device that is open.

use crate::node::{Inner, LIBRARY, Node, tell_waiters};
use capi_device::{Guard, start_thread};
use dat_calls::Node as _;
use dat_nostd::{DatResult, DatReturn, ReturnType, Subtype};
use platform_linux::Sleeper;
use std::sync::Arc;

/// Starts the thread of a device that was opened.
pub(crate) fn start(node: &'static Node) -> DatResult<()> {
    let error = DatReturn::error(ReturnType::InsufficientResources, Subtype::ResourceMemory);
    let sleeper = node.lock().map(|inner| Arc::clone(&inner.waiting.sleeper)).ok_or(error)?;
    start_thread(LIBRARY, move || run(node, &sleeper)).map_err(|_| error)
}

/// The device that this thread is for, unless it is closed; another may be open in its place.
fn device<'n>(node: &'n Node, sleeper: &Arc<Sleeper>) -> Option<Guard<'n, Inner>> {
    node.lock_urgently().filter(|inner| Arc::ptr_eq(&inner.waiting.sleeper, sleeper))
}

fn run(node: &'static Node, sleeper: &Arc<Sleeper>) {
    while let Some(mut inner) = device(node, sleeper) {
        let was_dead = inner.adapter.is_dead();
        let rest = inner.work();
        tell_waiters(&mut inner);
        let dead = inner.adapter.is_dead();
        if dead && !was_dead {
            inner.waiting.parked.wake_all();
        }
        let mut call = inner.next_call();
        drop(inner);
        let called = call.is_some();
        while let Some(due) = call {
            due.run();
            call = device(node, sleeper).and_then(|mut inner| inner.next_call());
        }
        if let Some(deadline) = rest.filter(|_| !called) {
            sleeper.sleep(deadline, dead);
        }
    }
}
