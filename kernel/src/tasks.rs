//! Waiting written as `async`: an executor over an adapter's loop, without memory of its own and without threads.
//!
//! [`block_on`] runs one future; [`join`] and [`select`] make one of several. Each turn
//! polls the adapter and then the future, whose parts look again at what they wait for. When nothing is due the processor sleeps until an
//! interrupt or the earliest deadline.
//!
//! ```ignore
//! tasks::block_on(adapter, clock, async |net| {
//!     let ticks = async {
//!         loop {
//!             net.sleep(Duration::from_secs(1)).await;
//!             println!("still here");
//!         }
//!     };
//!     match select(net.next(evd), ticks).await {
//!         Either::First(event) => event.map_err(Failure::app).map(handle),
//!         Either::Second(never) => never,
//!     }
//! })
//! ```

use core::cell::{Cell, RefCell};
use core::future::poll_fn;
use core::pin::pin;
use core::task::{Context, Poll, Waker};

use dat_nostd::{DatResult, DatReturn, EvdHandle, Event};
use driver_mlx::{Duration, Error, Instant, Wake};
pub use embassy_futures::{join, select};

use crate::Clock;
use crate::adapter::{Adapter, rest};
use crate::failure::Failure;

/// An adapter that futures share: each borrows it while it looks, none across an `await`.
#[expect(missing_debug_implementations, reason = "it is nothing but tables")]
pub struct Net<'n, 'a> {
    adapter: RefCell<&'n mut Adapter<'a>>,
    clock: Clock,
    now: Cell<Instant>,
    /// When the futures want to look again at the latest.
    wake: Cell<Wake>,
}

impl<'n, 'a> Net<'n, 'a> {
    /// Shares `adapter`.
    pub fn new(adapter: &'n mut Adapter<'a>, clock: Clock) -> Self {
        let now = Cell::new(clock.now());
        Self { adapter: RefCell::new(adapter), clock, now, wake: Cell::new(Wake::Now) }
    }

    /// The time of this turn.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.now.get()
    }

    /// Calls the adapter. There is another turn before the processor sleeps.
    pub fn with<R>(&self, call: impl FnOnce(&mut Adapter<'a>) -> R) -> R {
        self.wake.set(Wake::Now);
        self.look(call)
    }

    /// As [`Self::with`], for what leaves nothing to do.
    fn look<R>(&self, call: impl FnOnce(&mut Adapter<'a>) -> R) -> R {
        call(&mut self.adapter.borrow_mut())
    }

    /// Waits until `ready` returns something. It is called once in each turn, and says when it wants to be called again at the latest if
    /// nothing happens until then.
    pub async fn until<T>(&self, mut ready: impl FnMut(&mut Adapter<'a>, Instant) -> Result<T, Wake>) -> T {
        poll_fn(|_| match self.look(|adapter| ready(adapter, self.now())) {
            Ok(value) => {
                self.wake.set(Wake::Now);
                Poll::Ready(value)
            }
            Err(wake) => {
                self.wake.set(self.wake.get().earliest(wake));
                Poll::Pending
            }
        })
        .await
    }

    /// Waits that long.
    pub async fn sleep(&self, time: Duration) {
        let end = self.now() + time;
        self.until(|_, now| if now >= end { Ok(()) } else { Err(Wake::by(end)) }).await;
    }

    /// Waits for the next event of `evd`.
    ///
    /// # Errors
    /// Those of [`dat_nostd::Adapter::evd_dequeue`] but QUEUE_EMPTY.
    pub async fn next(&self, evd: EvdHandle) -> DatResult<Event> {
        self.until(|adapter, _| match adapter.evd_dequeue(evd) {
            Err(DatReturn::QUEUE_EMPTY) => Err(Wake::Idle),
            result => Ok(result),
        })
        .await
    }

    /// Runs `future` to its end. `serve` polls what else the adapter carries, behind each poll of the adapter.
    pub(crate) fn run<T>(
        &self,
        mut serve: impl FnMut(&mut Adapter<'a>, Instant) -> Wake,
        future: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let mut future = pin!(future);
        // Nobody is woken by name: each turn polls all.
        let mut context = Context::from_waker(Waker::noop());
        loop {
            let now = self.clock.now();
            self.now.set(now);
            let served = self.look(|adapter| adapter.poll(now).earliest(serve(adapter, now)));
            self.wake.set(served);
            if let Poll::Ready(result) = future.as_mut().poll(&mut context) {
                return result;
            }
            if let Some(cause) = self.look(|adapter| adapter.hca().fatal()) {
                return Err(Failure::DeviceLost(Error::Fatal(cause)));
            }
            self.look(|adapter| rest(adapter, self.clock, now, self.wake.get()));
        }
    }
}

/// Runs `work` to its end, with the adapter as what it waits on.
///
/// # Errors
/// Those of `work`; [`Failure::DeviceLost`].
pub fn block_on<T>(
    adapter: &mut Adapter<'_>,
    clock: Clock,
    work: impl AsyncFnOnce(&Net<'_, '_>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let net = Net::new(adapter, clock);
    net.run(|_, _| Wake::Idle, work(&net))
}
