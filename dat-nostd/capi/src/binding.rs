//! Binds the DAT calls to the nodes of this process. Above names and nodes, which do not use it.

use crate::node::{Inner, Leaving, Node, Waiting};
use crate::{agent, nodes, process};
use capi_device::Guard;
use dat_calls::{Kinded as _, RawHandle};
use dat_nostd::{DatResult, IaHandle};
use platform_linux::LinuxPlatform;
use std::time::Duration;

impl dat_calls::Node for Node {
    type Platform = LinuxPlatform;
    type Waiting = Waiting;
    type Guard<'n> = Guard<'n, Inner>;

    #[inline]
    fn get(id: u8) -> Option<&'static Self> {
        nodes::get(id)
    }

    #[inline]
    fn lock(&self) -> Option<Guard<'_, Inner>> {
        Self::lock(self)
    }

    fn lock_urgently(&self) -> Option<Guard<'_, Inner>> {
        Self::lock_urgently(self)
    }

    fn changed(&self, guard: Guard<'_, Inner>) {
        Self::changed(self, guard);
    }

    fn agent_gone(&self, guard: Guard<'_, Inner>, cno: RawHandle, kept: Option<usize>) {
        let leaving = Leaving::find(&guard, cno, kept);
        self.changed(guard);
        if let Some(leaving) = leaving {
            leaving.wait();
        }
    }

    fn repeat<R>(&self, poll: impl FnMut(&mut Inner) -> DatResult<Option<R>>) -> Option<DatResult<R>> {
        Self::repeat(self, poll)
    }

    #[inline]
    fn make_way(&self) {
        if self.should_yield() {
            std::thread::yield_now();
        }
    }

    fn close_ia(&'static self, ia: IaHandle, flags: u32) -> DatResult<()> {
        let mut leaving = process::names().close_ia(self, ia, flags)?;
        // Not under the lock of the names: an agent may open an IA, for which it needs them.
        loop {
            if let Some(leaving) = leaving {
                leaving.wait();
            }
            // Calls that were due are gone with the device.
            let Some(inner) = self.lock_urgently() else { return Ok(()) };
            leaving = Leaving::find(&inner, ia.raw(), None);
            // This thread may be the one that calls due agents: it does so after the agent that called this.
            if leaving.is_none() && (agent::is_calling() || !inner.adapter.owes_upcalls(ia)) {
                return Ok(());
            }
            drop(inner);
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}
