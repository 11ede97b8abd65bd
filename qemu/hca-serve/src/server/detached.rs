//! Polls of an HCA whose client accesses its memory on request.
//!
//! Such an access takes as long as the client likes, and a poll cannot be left in its middle and
//! begun again. Therefore the poll runs on its own thread, which hands every access to the server's
//! thread and sleeps until the result arrives. The server's thread sleeps while the poll computes,
//! so only one of the two runs at any time. While an access waits for the client, the server's
//! thread serves the other HCAs.

use crate::guest::memory::Access;
use crate::server::device::Guest;
use hca_model::{DmaFault, GuestMemory, Hca, Interrupts};
use rdma_fabric::packet::Packet;
use rdma_fabric::wire::Wire;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// A poll to run: the HCA and the time in nanoseconds.
type Order = (Box<Hca>, u64);
/// Result of an access: the bytes read, empty for a write.
type Outcome = Result<Vec<u8>, DmaFault>;

/// Request of a poll to the server's thread.
enum Request {
    Access(Access),
    Raise(u16),
    Send(Packet),
    /// The poll returned: the HCA, and whether it has more work.
    Done(Box<Hca>, bool),
    Panicked,
}

/// State of a poll when the server's thread leaves it.
pub enum Polled {
    /// The poll waits for the client.
    Suspended,
    /// The poll returned: the HCA, and whether it has more work.
    Done(Box<Hca>, bool),
    /// The model panicked, and its state is lost.
    Panicked,
}

/// Thread for the polls of one HCA.
#[derive(Debug)]
pub struct PollThread {
    orders: Sender<Order>,
    outcomes: Sender<Outcome>,
    requests: Receiver<Request>,
    /// Access that waits for the client.
    waiting: Option<Access>,
    /// `None` after the thread was joined.
    thread: Option<JoinHandle<()>>,
}

impl PollThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn start() -> io::Result<Self> {
        let (orders, to_run) = channel::<Order>();
        let (outcomes, results) = channel();
        let (sender, requests) = channel();
        let thread = std::thread::Builder::new().name("hca-poll".into()).spawn(move || {
            let seams = Seams { requests: sender, results };
            while let Ok((hca, now)) = to_run.recv() {
                if seams.requests.send(poll(hca, now, &seams)).is_err() {
                    break;
                }
            }
        })?;
        Ok(Self { orders, outcomes, requests, waiting: None, thread: Some(thread) })
    }

    /// Runs a poll until it returns or waits for the client. No poll may be suspended.
    pub fn poll(&mut self, hca: Hca, now: u64, guest: &mut Guest, wire: &mut dyn Wire) -> Polled {
        if self.orders.send((Box::new(hca), now)).is_err() {
            return Polled::Panicked;
        }
        self.serve(guest, wire)
    }

    /// Resumes a suspended poll if the client has replied.
    pub fn resume(&mut self, guest: &mut Guest, wire: &mut dyn Wire) -> Polled {
        let Some(access) = self.waiting.take() else { return Polled::Panicked };
        if self.carry_out(access, guest) { self.serve(guest, wire) } else { Polled::Suspended }
    }

    /// Fails the remaining accesses of a suspended poll, which then returns.
    pub fn abandon(&mut self, guest: &mut Guest, wire: &mut dyn Wire) -> Polled {
        guest.memory.abandon();
        self.resume(guest, wire)
    }

    /// Carries out an access. Returns false if it waits for the client.
    fn carry_out(&mut self, access: Access, guest: &Guest) -> bool {
        match guest.memory.attempt(&access) {
            Some(outcome) => {
                // An error means that the thread exited, which the next receive detects.
                let _ = self.outcomes.send(outcome);
                true
            }
            None => {
                self.waiting = Some(access);
                false
            }
        }
    }

    /// Serves the requests of the running poll.
    fn serve(&mut self, guest: &mut Guest, wire: &mut dyn Wire) -> Polled {
        while let Ok(request) = self.requests.recv() {
            match request {
                Request::Access(access) => {
                    if !self.carry_out(access, guest) {
                        return Polled::Suspended;
                    }
                }
                Request::Raise(vector) => guest.vectors.raise(vector),
                Request::Send(packet) => wire.send(packet),
                Request::Done(hca, more) => return Polled::Done(hca, more),
                Request::Panicked => return Polled::Panicked,
            }
        }
        Polled::Panicked
    }
}

impl Drop for PollThread {
    fn drop(&mut self) {
        // Disconnects the thread: pending accesses fail, and no order follows.
        (self.orders, self.outcomes) = (channel().0, channel().0);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn poll(mut hca: Box<Hca>, now: u64, seams: &Seams) -> Request {
    let run = || {
        let (mut interrupts, mut wire) = (seams, seams);
        let more = hca.poll(now, seams, &mut interrupts, &mut wire);
        (hca, more)
    };
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok((hca, more)) => Request::Done(hca, more),
        Err(_) => Request::Panicked,
    }
}

/// The poll's side of the channels.
struct Seams {
    requests: Sender<Request>,
    results: Receiver<Outcome>,
}

impl Seams {
    fn access(&self, access: Access) -> Outcome {
        let fault = access.fault();
        self.requests.send(Request::Access(access)).map_err(|_| fault)?;
        self.results.recv().unwrap_or(Err(fault))
    }

    fn load<const N: usize>(&self, access: Access) -> Result<[u8; N], DmaFault> {
        let fault = access.fault();
        self.access(access)?.try_into().map_err(|_| fault)
    }
}

impl GuestMemory for Seams {
    fn read(&self, address: u64, buf: &mut [u8]) -> Result<(), DmaFault> {
        let bytes = self.access(Access::Read { address, len: buf.len() })?;
        for (to, from) in buf.iter_mut().zip(bytes) {
            *to = from;
        }
        Ok(())
    }

    fn write(&self, address: u64, data: &[u8]) -> Result<(), DmaFault> {
        self.access(Access::Write { address, data: data.to_vec() }).map(drop)
    }

    fn load32(&self, address: u64) -> Result<u32, DmaFault> {
        self.load(Access::Load32 { address }).map(u32::from_be_bytes)
    }

    fn load64(&self, address: u64) -> Result<u64, DmaFault> {
        self.load(Access::Load64 { address }).map(u64::from_be_bytes)
    }

    fn store32(&self, address: u64, value: u32) -> Result<(), DmaFault> {
        self.access(Access::Store32 { address, value }).map(drop)
    }

    fn store64(&self, address: u64, value: u64) -> Result<(), DmaFault> {
        self.access(Access::Store64 { address, value }).map(drop)
    }
}

impl Interrupts for &Seams {
    fn raise(&mut self, vector: u16) {
        // An error means that the server stops.
        let _ = self.requests.send(Request::Raise(vector));
    }
}

impl Wire for &Seams {
    fn send(&mut self, packet: Packet) {
        let _ = self.requests.send(Request::Send(packet));
    }
}
