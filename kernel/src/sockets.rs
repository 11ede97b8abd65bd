//! RDS sockets for [`tasks`](crate::tasks): [`Socket::recv`] and [`Socket::send`] wait.

use core::cell::RefCell;
use core::net::SocketAddr;
use core::ops::Deref;

use dat_nostd::{AdapterStorage, CloseFlags};
use driver_mlx::{MmioBar, Wake};
use rds_nostd::{
    Arrival, Generation, Msg, MsgFlags, Rds, RdsConfig, RdsError, RdsParts, Received, SocketHandle,
};

use crate::adapter::{self, Node};
use crate::failure::Failure;
use crate::tasks::Net;
use crate::{Machine, println};

/// A node of RDS that futures share. It derefs to the [`Net`] that it is on.
#[expect(missing_debug_implementations, reason = "it is nothing but tables")]
pub struct Sockets<'n, 'a, 's> {
    net: Net<'n, 'a>,
    rds: RefCell<Rds<'s>>,
}

impl<'n, 'a> Deref for Sockets<'n, 'a, '_> {
    type Target = Net<'n, 'a>;

    fn deref(&self) -> &Net<'n, 'a> {
        &self.net
    }
}

impl<'n, 'a, 's> Sockets<'n, 'a, 's> {
    /// Makes a socket at this address and port; it is closed with the node.
    ///
    /// # Errors
    /// Those of [`Rds::bind`].
    pub fn bind(&self, at: impl Into<SocketAddr>) -> Result<Socket<'_, 'n, 'a, 's>, Failure> {
        let handle = self.rds.borrow_mut().bind(at.into()).map_err(Failure::app)?;
        Ok(Socket { node: self, handle })
    }

    /// Waits until the call is not to be made again.
    async fn wait<T>(
        &self,
        again: &[RdsError],
        mut call: impl FnMut(&mut Rds<'s>, &mut adapter::Adapter<'a>) -> Result<T, RdsError>,
    ) -> Result<T, RdsError> {
        self.until(|adapter, _| match call(&mut self.rds.borrow_mut(), adapter) {
            Err(error) if again.contains(&error) => Err(Wake::Idle),
            result => Ok(result),
        })
        .await
    }
}

/// A socket of [`Sockets`].
#[derive(Clone, Copy)]
#[expect(missing_debug_implementations, reason = "it is a handle")]
pub struct Socket<'k, 'n, 'a, 's> {
    node: &'k Sockets<'n, 'a, 's>,
    handle: SocketHandle,
}

impl Socket<'_, '_, '_, '_> {
    /// Waits for the next item: a message, or how an RDMA operation ended, or that ports of peers have room again.
    ///
    /// # Errors
    /// Those of [`Rds::recvmsg`] but [`RdsError::Again`].
    pub async fn next(&self, buffer: &mut [u8]) -> Result<Arrival, RdsError> {
        let receive = |rds: &mut Rds<'_>, adapter: &mut adapter::Adapter<'_>| {
            rds.recvmsg(adapter, self.handle, buffer, MsgFlags::empty())
        };
        self.node.wait(&[RdsError::Again], receive).await
    }

    /// Waits for the next message; what else arrives is dropped. Bytes beyond `buffer` are lost.
    ///
    /// # Errors
    /// Those of [`Self::next`].
    pub async fn recv(&self, buffer: &mut [u8]) -> Result<Received, Failure> {
        loop {
            // The answer to a ping comes from port 0.
            match self.next(buffer).await.map_err(Failure::app)?.message() {
                Some(message) if message.from.port() != 0 => return Ok(message),
                _ => {}
            }
        }
    }

    /// Sends a message, when there is room for it here and there.
    ///
    /// # Errors
    /// Those of [`Rds::sendmsg`] but that there is no room.
    pub async fn send(&self, message: Msg<'_>) -> Result<(), Failure> {
        const NO_ROOM: [RdsError; 3] = [RdsError::Again, RdsError::NoBufferSpace, RdsError::Congested];
        let sent = self.node.wait(&NO_ROOM, |rds, adapter| rds.sendmsg(adapter, self.handle, message)).await;
        sent.map(drop).map_err(Failure::app)
    }
}

/// Opens an adapter, waits until IP packets move, and runs `work` to its end with a node of RDS on it. At the end peers get their last
/// acknowledgements; those that may lack one are named.
///
/// # Errors
/// Those of [`adapter::run`], of [`Rds::start`], and `work`'s own.
pub fn run(
    machine: &mut Machine,
    node: &Node<'_>,
    tables: &mut impl AdapterStorage<MmioBar>,
    parts: RdsParts<'_>,
    work: impl AsyncFnOnce(&Sockets<'_, '_, '_>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let clock = machine.clock();
    // Without a wall clock, peers that knew an earlier boot may take messages for old ones.
    let generation = machine.boot_time().map_or(Generation::UNKNOWN, Generation::from_wall_clock);
    let config = RdsConfig { seed: machine.seed() as u64, ..RdsConfig::new(generation) };
    adapter::run(machine, node, tables, |adapter| {
        // With named neighbours there is no IP to wait for.
        if adapter.ip().is_some() {
            adapter::wait_ip_up(adapter, clock)?;
        }
        let rds = RefCell::new(Rds::start(adapter, parts, config).map_err(Failure::app)?);
        let sockets = Sockets { net: Net::new(adapter, clock), rds };
        let outcome =
            sockets.net.run(|adapter, now| sockets.rds.borrow_mut().poll(adapter, now), work(&sockets));
        let stop = |rds: &mut Rds<'_>, adapter: &mut adapter::Adapter<'_>| {
            let unreached = |peer| println!("rds: {peer} may send messages again that were read");
            rds.stop(adapter, CloseFlags::Graceful, unreached)
        };
        let stopped = sockets.net.run(|adapter, now| sockets.rds.borrow_mut().poll(adapter, now), async {
            sockets.wait(&[RdsError::Again], stop).await.map_err(Failure::app)
        });
        outcome.and(stopped)
    })
}
