//! Information about a node, as `rds-info` shows it on Linux: counters, connections, queues and
//! sockets.
//!
//! It has three forms: records, from iterators that need no memory; tables to print
//! ([`Rds::table`]); and the elements of `getsockopt(SOL_RDS, 10000…)`, byte by byte
//! ([`Rds::info`]). Linux `include/uapi/linux/rds.h`, `net/rds/info.c`.

pub(crate) mod binary;
pub(crate) mod table;

use core::net::{IpAddr, SocketAddr};

use dat_nostd::{Adapter, Platform};

use crate::connection::{Connection, State};
use crate::frames::Frame;
use crate::io::Rds;
use crate::io::service_level;
use crate::rdma::MAX_RDMA_LEN;
use crate::reason::DownReason;
use crate::socket::{Socket, Transport, address};

bitflags::bitflags! {
    /// State of a connection, with the values of `RDS_INFO_CONNECTION_FLAG_…`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ConnectionFlags: u8 {
        /// A message is being posted.
        const SENDING = 1;
        /// A connection attempt is in progress.
        const CONNECTING = 2;
        /// Established.
        const CONNECTED = 4;
    }
}

/// A connection: `struct rds_info_connection`, and the last reason that it went down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionInfo {
    /// Sequence number of the next message to send.
    pub next_tx: u64,
    /// Sequence number of the next message expected.
    pub next_rx: u64,
    /// This node.
    pub local: IpAddr,
    /// The peer.
    pub foreign: IpAddr,
    /// The transport.
    pub transport: Transport,
    /// State.
    pub flags: ConnectionFlags,
    /// Type of service.
    pub tos: u8,
    /// Number of times that it went down, or that an attempt was abandoned.
    pub downs: u64,
    /// Reason of the last of these.
    pub last_down: Option<DownReason>,
}

/// A message in a queue: `struct rds_info_message`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageInfo {
    /// Sequence number.
    pub sequence: u64,
    /// Length in bytes.
    pub len: u32,
    /// Local address: the sender of outgoing messages, the receiver of incoming ones.
    pub local: SocketAddr,
    /// The peer's address.
    pub foreign: SocketAddr,
    /// Type of service of its connection; 0 in receive queues.
    pub tos: u8,
}

/// A socket: `struct rds_info_socket`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketInfo {
    /// Limit of unacknowledged bytes.
    pub send_buffer: usize,
    /// Unread bytes above which its port is congested.
    pub receive_buffer: usize,
    /// Bound address.
    pub bound: Option<SocketAddr>,
    /// Destination of messages that name none.
    pub connected: Option<SocketAddr>,
    /// Unique number among the sockets of this node.
    pub inode: u64,
    /// Type of service.
    pub tos: u8,
    /// Bytes sent and not yet acknowledged.
    pub unacknowledged: usize,
    /// Bytes received and not yet read.
    pub unread: usize,
}

/// The InfiniBand side of a connection: `struct rds_info_rdma_connection`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IbConnectionInfo {
    /// This node.
    pub local: IpAddr,
    /// The peer.
    pub foreign: IpAddr,
    /// GID of this node's port.
    pub local_gid: [u8; 16],
    /// GID of the peer's port on the last connection; zeros before the first.
    pub foreign_gid: [u8; 16],
    /// Maximum of sends in flight.
    pub max_send_wr: u32,
    /// Maximum of posted receives.
    pub max_recv_wr: u32,
    /// Segments of a send.
    pub max_send_sge: u32,
    /// Number of regions that can be offered to peers.
    pub mr_max: u32,
    /// Maximum length of a region, in pages of 4096 bytes.
    pub mr_size: u32,
    /// Type of service.
    pub tos: u8,
    /// Service level.
    pub sl: u8,
    /// Receives posted now.
    pub cache_allocs: u32,
}

impl Rds<'_> {
    /// Returns all connections.
    pub fn connections_info(&self) -> impl Iterator<Item = ConnectionInfo> + '_ {
        self.protocol().connections.iter().map(|(_, connection)| {
            let mut flags = match connection.state {
                State::Connecting | State::Accepting => ConnectionFlags::CONNECTING,
                State::Up => ConnectionFlags::CONNECTED,
                State::Free | State::Down | State::Failed => ConnectionFlags::empty(),
            };
            flags.set(ConnectionFlags::SENDING, connection.tx.cursor.is_some());
            ConnectionInfo {
                next_tx: connection.peer.next_tx,
                next_rx: connection.peer.next_rx,
                local: address(self.protocol().local),
                foreign: address(connection.peer.foreign),
                transport: Transport::InfiniBand,
                flags,
                tos: connection.peer.tos,
                downs: connection.reconnect.downs,
                last_down: connection.reconnect.last_down.get(),
            }
        })
    }

    /// Returns the messages that wait to be sent.
    pub fn send_queue_info(&self) -> impl Iterator<Item = MessageInfo> + '_ {
        self.protocol().connections.iter().flat_map(move |(_, connection)| {
            let unsent = self.protocol().frames.messages(connection.tx.next);
            unsent.map(move |(_, frame)| self.sent_message(connection, frame))
        })
    }

    /// Returns the messages that were sent and wait for acknowledgement.
    pub fn retransmit_queue_info(&self) -> impl Iterator<Item = MessageInfo> + '_ {
        self.protocol().connections.iter().flat_map(move |(_, connection)| {
            let queued = self.protocol().frames.messages(connection.peer.queue.head());
            let sent = queued.take_while(move |(message, _)| Some(*message) != connection.tx.next);
            sent.map(move |(_, frame)| self.sent_message(connection, frame))
        })
    }

    /// Returns the messages that wait to be read.
    pub fn receive_queue_info(&self) -> impl Iterator<Item = MessageInfo> + '_ {
        self.protocol().sockets.iter().flat_map(|(_, socket)| {
            self.protocol().frames.all(&socket.received).map(|unread| MessageInfo {
                sequence: self.protocol().frames.number(unread.place),
                len: unread.len as u32,
                local: SocketAddr::new(address(socket.address), socket.port),
                foreign: SocketAddr::new(address(self.protocol().source_of(&unread)), unread.sport),
                tos: 0,
            })
        })
    }

    fn sent_message(&self, connection: &Connection, frame: &Frame) -> MessageInfo {
        MessageInfo {
            sequence: frame.sequence,
            len: frame.len,
            local: SocketAddr::new(address(self.protocol().local), frame.sport),
            foreign: SocketAddr::new(address(connection.peer.foreign), frame.dport),
            tos: connection.peer.tos,
        }
    }

    /// Returns all open sockets.
    pub fn sockets_info(&self) -> impl Iterator<Item = SocketInfo> + '_ {
        let acknowledged = |socket: &Socket, slot| self.protocol().acknowledged_early(socket.handle(slot)).1;
        let sockets = self.protocol().sockets.iter();
        sockets.map(move |(slot, socket)| socket_info(slot, socket, acknowledged(socket, slot)))
    }

    /// Returns the InfiniBand side of all connections.
    pub fn ib_connections_info<P: Platform>(
        &self,
        adapter: &Adapter<'_, P>,
    ) -> impl Iterator<Item = IbConnectionInfo> + use<'_, P> {
        let local_gid = adapter.port_info().gid.0;
        self.ib_connections(local_gid)
    }

    pub(crate) fn ib_connections(
        &self,
        local_gid: [u8; 16],
    ) -> impl Iterator<Item = IbConnectionInfo> + use<'_> {
        self.protocol().connections.iter().map(move |(_, connection)| IbConnectionInfo {
            local: address(self.protocol().local),
            foreign: address(connection.peer.foreign),
            local_gid,
            foreign_gid: connection.peer.gid,
            max_send_wr: u32::from(self.protocol().limits.request_depth),
            max_recv_wr: u32::from(self.protocol().limits.receive_depth),
            max_send_sge: 1,
            mr_max: self.protocol().regions.len() as u32,
            mr_size: MAX_RDMA_LEN.div_ceil(4096) as u32,
            tos: connection.peer.tos,
            sl: service_level(connection.peer.tos),
            cache_allocs: connection.rx.ring.waiting().into(),
        })
    }
}

fn socket_info(slot: usize, socket: &Socket, acknowledged: usize) -> SocketInfo {
    let at = |key: u128, port: u16| (key != 0).then(|| SocketAddr::new(address(key), port));
    SocketInfo {
        send_buffer: socket.sent.limit(),
        receive_buffer: socket.unread.limit(),
        bound: at(socket.address, socket.port),
        connected: at(socket.peer, socket.peer_port),
        inode: u64::from(socket.generation) << 16 | slot as u64,
        tos: socket.tos,
        unacknowledged: socket.sent.bytes() - acknowledged,
        unread: socket.unread.bytes(),
    }
}
