//! Nodes with RDS, in a blocking style.

use crate::dat::{self, ModelAdapter, address};
use crate::world::{World, WorldConfig};
use dat_nostd::CloseFlags;
use driver_mlx::{DmaBuffer, Duration, Instant, Wake};
use rds_nostd::{
    Arrival, Control, Generation, Msg, MsgFlags, RdmaArgs, RdmaCookie, RdmaFlags, RdmaStatus, Rds, RdsConfig,
    RdsError, RdsStorage, Received, SocketHandle,
};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

/// Virtual time in which something must happen, in nanoseconds.
pub const LIMIT: u64 = 60_000_000_000;

/// The boot of nodes that boot once.
pub const GENERATION: Generation = boot(1);

/// The generation of boot number `number`: a second later than the one before.
#[must_use]
pub const fn boot(number: u32) -> Generation {
    Generation::from_wall_clock(Duration::from_secs(number as u64))
}

/// Nodes with an adapter and RDS each, in a blocking style: every wait runs all of them.
pub struct Nodes {
    /// Their world.
    pub world: Rc<World>,
    /// One for each node.
    pub adapters: Vec<ModelAdapter>,
    /// One for each node.
    pub rds: Vec<Rds<'static>>,
}

impl Nodes {
    /// Two nodes.
    ///
    /// # Panics
    /// If anything fails: nothing here may.
    #[must_use]
    pub fn new(seed: u64, faults: &str) -> Self {
        // One peer is isolated in any case; memory can be offered without saying so.
        let (send_buffer, isolate_peers) = (1 << 20, false);
        Self::with(
            seed,
            faults,
            2,
            RdsConfig { seed, send_buffer, isolate_peers, ..RdsConfig::new(GENERATION) },
        )
    }

    /// So many nodes with this configuration.
    ///
    /// # Panics
    /// If anything fails: nothing here may.
    #[must_use]
    pub fn with(seed: u64, faults: &str, count: usize, settings: RdsConfig) -> Self {
        let mut config = WorldConfig::new(seed);
        config.fabric.faults = faults.parse().expect("a list of faults");
        let world = World::new(&config);
        let adapters = dat::open(&world, seed, count, 32 << 20).expect("opens");
        Self::on(world, adapters, settings)
    }

    /// Nodes with these adapters.
    ///
    /// # Panics
    /// If anything fails: nothing here may.
    #[must_use]
    pub fn on(world: Rc<World>, mut adapters: Vec<ModelAdapter>, settings: RdsConfig) -> Self {
        let rds = adapters
            .iter_mut()
            .map(|adapter| {
                let storage = crate::keep(RdsStorage::<4, 4, 1024>::new());
                Rds::start(adapter, storage.parts(), settings).expect("starts")
            })
            .collect();
        Self { world, adapters, rds }
    }

    /// A socket on `port` of `node`.
    ///
    /// # Panics
    /// If it cannot be bound.
    pub fn bind(&mut self, node: usize, port: u16) -> SocketHandle {
        self.rds[node].bind(SocketAddr::new(address(node), port)).expect("binds")
    }

    /// `sendmsg` of a node; gives the message's length.
    ///
    /// # Errors
    /// Its own.
    pub fn send(
        &mut self,
        node: usize,
        socket: SocketHandle,
        to: SocketAddr,
        bytes: &[u8],
    ) -> Result<usize, RdsError> {
        let sent = self.rds[node].sendmsg(&mut self.adapters[node], socket, Msg::to(&to, bytes));
        sent.map(|_| bytes.len())
    }

    /// How it ends when a socket writes bytes so far behind the beginning of what a cookie names, at this destination's node.
    ///
    /// # Panics
    /// If it cannot be begun, or does not end in a minute of virtual time.
    pub fn write(
        &mut self,
        (node, socket): (usize, SocketHandle),
        to: SocketAddr,
        (cookie, remote_offset): (RdmaCookie, u64),
        bytes: &[u8],
    ) -> RdmaStatus {
        let memory = self.adapters[node].dma_alloc(bytes.len(), 64).expect("memory");
        memory.write(0, bytes).expect("inside");
        let args = RdmaArgs {
            cookie,
            remote_offset,
            remote_bytes: bytes.len() as u64,
            local: &[memory.as_slice()],
            flags: RdmaFlags::NOTIFY_ME | RdmaFlags::READWRITE | RdmaFlags::SILENT,
            user_token: 1,
        };
        let control = Control { rdma: Some(args), ..Control::default() };
        let (rds, adapter) = (&mut self.rds[node], &mut self.adapters[node]);
        rds.sendmsg(adapter, socket, Msg::to(&to, &[]).with(&control)).expect("room");
        let mut told = None;
        self.until("the operation ends", |nodes| {
            told = nodes.rds[node].take_notification(socket).expect("open");
            told.is_some()
        });
        self.adapters[node].dma_free(memory).expect("nothing leads there");
        told.expect("just found").status
    }

    /// Cancels messages of a socket, and waits until nothing uses their memory.
    ///
    /// # Panics
    /// If that fails or takes a minute of virtual time.
    pub fn cancel(&mut self, node: usize, socket: SocketHandle, to: SocketAddr) {
        self.until("nothing uses the memory", |nodes| {
            match nodes.rds[node].cancel_sent_to(&mut nodes.adapters[node], socket, to) {
                Err(RdsError::Again) => false,
                done => done.is_ok() || panic!("{done:?}"),
            }
        });
    }

    /// Closes a socket, and waits until nothing uses its memory.
    ///
    /// # Panics
    /// If that fails or takes a minute of virtual time.
    pub fn close_socket(&mut self, node: usize, socket: SocketHandle) {
        self.until("the socket closes", |nodes| {
            match nodes.rds[node].close(&mut nodes.adapters[node], socket) {
                Err(RdsError::Again) => false,
                done => done.is_ok() || panic!("{done:?}"),
            }
        });
    }

    /// Runs all nodes once, or the devices until somebody has something to do.
    pub fn step(&mut self) {
        let now = self.world.now();
        let instant = Instant::from_nanos(now);
        let mut wake = Wake::Idle;
        for (node, adapter) in self.adapters.iter_mut().enumerate() {
            wake = wake.earliest(adapter.poll(instant));
            // The last nodes' RDS may have stopped.
            if let Some(rds) = self.rds.get_mut(node) {
                wake = wake.earliest(rds.poll(adapter, instant));
            }
        }
        self.world.idle_until(wake);
    }

    /// The next message of a socket.
    ///
    /// # Panics
    /// If none comes in a minute of virtual time.
    pub fn receive(&mut self, node: usize, socket: SocketHandle, buffer: &mut [u8]) -> Received {
        let end = self.world.now() + LIMIT;
        loop {
            match self.rds[node].recvmsg(&mut self.adapters[node], socket, buffer, MsgFlags::empty()) {
                Ok(Arrival::Message(message)) => return message,
                Ok(_) | Err(RdsError::Again) => assert!(self.world.now() < end, "nothing arrived"),
                Err(error) => panic!("{error}"),
            }
            self.step();
        }
    }

    /// Runs everything until `done`.
    ///
    /// # Panics
    /// If that takes longer than a minute of virtual time.
    pub fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let end = self.world.now() + LIMIT;
        while !done(self) {
            assert!(self.world.now() < end, "in vain: {what}");
            self.step();
        }
    }

    /// Ends everything and checks that nothing stays behind.
    ///
    /// # Panics
    /// If something does.
    pub fn close(self) {
        self.close_with([]);
    }

    /// The same, with buffers of the first nodes, which nothing may lead to when RDS has ended.
    ///
    /// # Panics
    /// If anything is left, or leads to a buffer.
    pub fn close_with(self, buffers: impl IntoIterator<Item = DmaBuffer>) {
        let Self { world, adapters, rds } = self;
        let mut buffers = buffers.into_iter();
        for (node, (mut adapter, mut rds)) in adapters.into_iter().zip(rds).enumerate() {
            rds.stop(&mut adapter, CloseFlags::Abrupt, |_| {}).expect("stops");
            if let Some(buffer) = buffers.next() {
                adapter.dma_free(buffer).expect("freed");
            }
            adapter.close().expect("closes");
            assert_eq!(world.census(node).total(), 0, "left behind: {}", world.census(node));
        }
    }
}

/// Stops RDS of one node, once peers have their final acknowledgements. Only the devices of other nodes run. Returns the peers that were not reached.
///
/// # Panics
/// If something could not be freed.
pub fn stop(mut rds: Rds<'static>, adapter: &mut ModelAdapter) -> Vec<IpAddr> {
    let mut unreached = Vec::new();
    let stop = |rds: &mut Rds<'_>, adapter: &mut ModelAdapter| {
        rds.stop(adapter, CloseFlags::Graceful, |peer| unreached.push(peer))
    };
    finish(&mut rds, adapter, stop).expect("stops");
    unreached
}

/// Repeats a call of one node while it returns [`RdsError::Again`]. Only the devices of other nodes run.
///
/// # Errors
/// See the call. [`RdsError::Again`] after a minute of virtual time.
pub fn finish(
    rds: &mut Rds<'static>,
    adapter: &mut ModelAdapter,
    mut call: impl FnMut(&mut Rds<'static>, &mut ModelAdapter) -> Result<(), RdsError>,
) -> Result<(), RdsError> {
    let end = adapter.now() + Duration::from_nanos(LIMIT);
    loop {
        let done = call(rds, adapter);
        let now = adapter.now();
        if done != Err(RdsError::Again) || now >= end {
            return done;
        }
        let _ = adapter.poll(now);
        let _ = rds.poll(adapter, now);
        adapter.idle(now + Duration::from_micros(1));
    }
}

/// Bytes that depend on the sender, the message's number, and their place.
#[must_use]
pub fn message(sender: usize, number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 13 + number * 101 + sender * 57 + (i >> 8)) as u8).collect()
}

/// A port of a node.
#[must_use]
pub fn at(node: usize, port: u16) -> SocketAddr {
    SocketAddr::new(address(node), port)
}
