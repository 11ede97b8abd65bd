//! The library's threads, two for each device that is open: one serves it while no thread of the
//! program does, the other calls agents, so that an agent may wait.

use crate::agent;
use crate::node::{Calling, Inner, LIBRARY, Node, serve};
use capi_device::{Guard, start_thread};
use dat_calls::Call;
use dat_nostd::{DatResult, DatReturn, Duration, Instant, ReturnType, Subtype};
use platform_linux::Sleeper;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Name of the thread that calls agents; at most 15 bytes.
const AGENTS: &str = "libdat-agents";

/// Starts the threads of a device that was opened.
pub(crate) fn start(node: &'static Node) -> DatResult<()> {
    let error = DatReturn::error(ReturnType::InsufficientResources, Subtype::ResourceMemory);
    let sleeper = node.lock().map(|inner| Arc::clone(&inner.waiting.sleeper)).ok_or(error)?;
    let agents = Arc::clone(&sleeper);
    start_thread(LIBRARY, move || run(node, &sleeper))
        .and_then(|()| start_thread(AGENTS, move || call_agents(node, &agents)))
        .map_err(|_| error)
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
    // A thread of the program may be the first to find that the device has failed: the others still
    // have to be woken.
    let mut has_woken_all = false;
    while let Some(mut inner) = device(node, sleeper) {
        if let Some(pause) = inner.waiting.stand_back() {
            let deadline = if pause == Duration::MAX { Instant::MAX } else { inner.adapter.now() + pause };
            drop(inner);
            sleeper.sleep(deadline, true);
            continue;
        }
        let rest = serve(&mut inner);
        let dead = inner.adapter.is_dead();
        if dead && !has_woken_all {
            inner.waiting.parked.wake_all();
            has_woken_all = true;
        }
        drop(inner);
        if let Some(deadline) = rest {
            sleeper.sleep(deadline, dead);
        }
    }
}

fn call_agents(node: &'static Node, sleeper: &Arc<Sleeper>) {
    if let Some(mut inner) = device(node, sleeper) {
        inner.waiting.call_agents_here();
    }
    while let Some(mut inner) = device(node, sleeper) {
        let call = next_call(&mut inner);
        let returned = Arc::clone(&inner.waiting.returned);
        drop(inner);
        match call {
            Some(call) => {
                agent::call(|| call.run());
                returned.fetch_add(1, Ordering::Release);
            }
            // A wake-up since the look at the device ends this at once.
            None => std::thread::park(),
        }
    }
}
