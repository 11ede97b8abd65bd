//! The library's thread: one for each device that is open.

use crate::agent;
use crate::node::{Calling, Inner, LIBRARY, Node, tell_waiters};
use capi_device::{Guard, start_thread};
use dat_calls::Call;
use dat_nostd::{DatResult, DatReturn, ReturnType, Subtype};
use platform_linux::Sleeper;
use std::sync::Arc;
use std::sync::atomic::Ordering;

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

/// The next agent to call, which others know from now on.
fn next_call(inner: &mut Inner) -> Option<Call> {
    let call = inner.next_call()?;
    let number = inner.waiting.returned.load(Ordering::Relaxed);
    inner.waiting.calling = Some(Calling { call, number, thread: std::thread::current().id() });
    Some(call)
}

fn run(node: &'static Node, sleeper: &Arc<Sleeper>) {
    // A program's thread may be the first to find that the device has failed: that is no reason not to wake the others.
    let mut told_of_death = false;
    while let Some(mut inner) = device(node, sleeper) {
        let rest = inner.work();
        tell_waiters(&mut inner);
        let dead = inner.adapter.is_dead();
        if dead && !told_of_death {
            inner.waiting.parked.wake_all();
            told_of_death = true;
        }
        let mut call = next_call(&mut inner);
        let returned = Arc::clone(&inner.waiting.returned);
        drop(inner);
        let called = call.is_some();
        while let Some(due) = call {
            agent::call(|| due.run());
            returned.fetch_add(1, Ordering::Release);
            call = device(node, sleeper).and_then(|mut inner| next_call(&mut inner));
        }
        if let Some(deadline) = rest.filter(|_| !called) {
            sleeper.sleep(deadline, dead);
        }
    }
}
