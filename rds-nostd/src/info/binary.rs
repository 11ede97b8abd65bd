//! Elements of `getsockopt(SOL_RDS, 10000…)`, as programs like `rds-info` read them. Packed, in
//! native byte order except for addresses and ports, which are big-endian. Linux
//! `include/uapi/linux/rds.h`, `net/rds/info.c`.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use dat_nostd::{Adapter, Platform};

use crate::counters::Counter;
use crate::info::{ConnectionInfo, IbConnectionInfo, MessageInfo, SocketInfo};
use crate::io::Rds;
use crate::socket::Transport;

/// Counters: a name of 32 bytes, a value of 8.
pub const RDS_INFO_COUNTERS: u32 = 10000;
/// Connections between IPv4 addresses.
pub const RDS_INFO_CONNECTIONS: u32 = 10001;
/// Messages that wait to be sent, between IPv4 addresses.
pub const RDS_INFO_SEND_MESSAGES: u32 = 10003;
/// Messages sent and not acknowledged, between IPv4 addresses.
pub const RDS_INFO_RETRANS_MESSAGES: u32 = 10004;
/// Messages that wait to be read, between IPv4 addresses.
pub const RDS_INFO_RECV_MESSAGES: u32 = 10005;
/// Sockets bound to IPv4 addresses.
pub const RDS_INFO_SOCKETS: u32 = 10006;
/// InfiniBand connections between IPv4 addresses.
pub const RDS_INFO_IB_CONNECTIONS: u32 = 10008;
/// All connections.
pub const RDS6_INFO_CONNECTIONS: u32 = 10011;
/// All messages that wait to be sent.
pub const RDS6_INFO_SEND_MESSAGES: u32 = 10012;
/// All messages sent and not acknowledged.
pub const RDS6_INFO_RETRANS_MESSAGES: u32 = 10013;
/// All messages that wait to be read.
pub const RDS6_INFO_RECV_MESSAGES: u32 = 10014;
/// All sockets.
pub const RDS6_INFO_SOCKETS: u32 = 10015;
/// All InfiniBand connections.
pub const RDS6_INFO_IB_CONNECTIONS: u32 = 10017;

/// Bytes of the longest element.
const LONGEST: usize = 92;

/// Result of [`Rds::info`]: the return value of `getsockopt`, and the option's length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InfoWritten {
    /// Bytes of an element.
    pub element_size: usize,
    /// Bytes of all of them.
    pub len: usize,
}

/// Error of [`Rds::info`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InfoError {
    /// `ENOSPC`: the buffer is too short.
    NoSpace {
        /// Bytes needed now, which become the option's length.
        needed: usize,
    },
    /// `ENOPROTOOPT`: this information is not supported.
    Unknown,
}

/// An element under construction.
struct Element {
    bytes: [u8; LONGEST],
    len: usize,
    /// Addresses take 16 bytes.
    is_v6: bool,
}

impl Element {
    const fn new(is_v6: bool) -> Self {
        Self { bytes: [0; LONGEST], len: 0, is_v6 }
    }

    fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        for (to, from) in self.bytes.iter_mut().skip(self.len).zip(bytes) {
            *to = *from;
        }
        self.len += bytes.len();
        self
    }

    fn u8(&mut self, value: u8) -> &mut Self {
        self.raw(&[value])
    }

    fn be16(&mut self, value: u16) -> &mut Self {
        self.raw(&value.to_be_bytes())
    }

    fn u32(&mut self, value: u32) -> &mut Self {
        self.raw(&value.to_ne_bytes())
    }

    fn u64(&mut self, value: u64) -> &mut Self {
        self.raw(&value.to_ne_bytes())
    }

    fn address(&mut self, address: IpAddr) -> &mut Self {
        match (self.is_v6, address) {
            (false, IpAddr::V4(v4)) => self.raw(&v4.octets()),
            // Only elements between IPv4 addresses have this form.
            (false, IpAddr::V6(_)) => self.raw(&Ipv4Addr::UNSPECIFIED.octets()),
            (true, IpAddr::V4(v4)) => self.raw(&v4.to_ipv6_mapped().octets()),
            (true, IpAddr::V6(v6)) => self.raw(&v6.octets()),
        }
    }

    /// Appends text in a field of this size, cut so that it is zero-terminated.
    fn text(&mut self, text: &str, size: usize) -> &mut Self {
        let text = text.as_bytes();
        let end = self.len + size;
        self.raw(text.get(..size.saturating_sub(1)).unwrap_or(text));
        self.skip_to(end)
    }

    fn skip_to(&mut self, end: usize) -> &mut Self {
        self.len = end;
        self
    }
}

fn counter(element: &mut Element, counter: Counter) {
    element.text(counter.name, 32).u64(counter.value);
}

fn connection(element: &mut Element, info: ConnectionInfo) {
    element.u64(info.next_tx).u64(info.next_rx).address(info.local).address(info.foreign);
    element.text(transport_name(info.transport), 16).u8(info.flags.bits());
    if !element.is_v6 {
        element.u8(info.tos);
    }
}

fn message(element: &mut Element, info: MessageInfo) {
    element.u64(info.sequence).u32(info.len).address(info.local.ip()).address(info.foreign.ip());
    element.be16(info.local.port()).be16(info.foreign.port()).u8(0).u8(info.tos);
}

fn socket(element: &mut Element, info: SocketInfo) {
    let nowhere = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0);
    let (bound, connected) = (info.bound.unwrap_or(nowhere), info.connected.unwrap_or(nowhere));
    let size = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
    element.u32(size(info.send_buffer)).address(bound.ip()).address(connected.ip());
    element.be16(bound.port()).be16(connected.port());
    element.u32(size(info.receive_buffer)).u64(info.inode);
}

fn ib_connection(element: &mut Element, info: IbConnectionInfo) {
    element.address(info.local).address(info.foreign).raw(&info.local_gid).raw(&info.foreign_gid);
    element.u32(info.max_send_wr).u32(info.max_recv_wr).u32(info.max_send_sge);
    element.u32(info.mr_max).u32(info.mr_size).u8(info.tos).u8(info.sl);
    // Not packed: the last member is aligned.
    let aligned = element.len.next_multiple_of(4);
    element.skip_to(aligned).u32(info.cache_allocs);
}

/// Returns Linux's name of the transport.
pub(crate) const fn transport_name(transport: Transport) -> &'static str {
    match transport {
        Transport::InfiniBand => "infiniband",
        Transport::Loopback => "loopback",
    }
}

/// Writes all elements if all of them fit.
fn write<T>(
    buffer: &mut [u8],
    (element_size, is_v6): (usize, bool),
    items: impl Iterator<Item = T>,
    mut encode: impl FnMut(&mut Element, T),
) -> Result<InfoWritten, InfoError> {
    let mut len = 0;
    for item in items {
        if let Some(to) = buffer.get_mut(len..len + element_size) {
            let mut element = Element::new(is_v6);
            encode(&mut element, item);
            for (to, from) in to.iter_mut().zip(element.bytes) {
                *to = from;
            }
        }
        len += element_size;
    }
    if len > buffer.len() {
        Err(InfoError::NoSpace { needed: len })
    } else {
        Ok(InfoWritten { element_size, len })
    }
}

impl Rds<'_> {
    /// `getsockopt(SOL_RDS, option)` for the information options 10000 to 10017. An empty buffer
    /// queries the length.
    ///
    /// # Errors
    /// [`InfoError`]; the contents of the buffer are unspecified then.
    pub fn info<P: Platform>(
        &self,
        adapter: &Adapter<'_, P>,
        option: u32,
        buffer: &mut [u8],
    ) -> Result<InfoWritten, InfoError> {
        let is_v6 = option >= RDS6_INFO_CONNECTIONS;
        let size = |v4, v6| if is_v6 { (v6, true) } else { (v4, false) };
        let shown = move |local: IpAddr, foreign: IpAddr| is_v6 || local.is_ipv4() && foreign.is_ipv4();
        let is_shown = move |info: &MessageInfo| shown(info.local.ip(), info.foreign.ip());
        match option {
            RDS_INFO_COUNTERS => write(buffer, (40, false), self.protocol().counters.iter(), counter),
            RDS_INFO_CONNECTIONS | RDS6_INFO_CONNECTIONS => {
                let items = self.connections_info().filter(|info| shown(info.local, info.foreign));
                write(buffer, size(42, 65), items, connection)
            }
            RDS_INFO_SEND_MESSAGES | RDS6_INFO_SEND_MESSAGES => {
                write(buffer, size(26, 50), self.send_queue_info().filter(is_shown), message)
            }
            RDS_INFO_RETRANS_MESSAGES | RDS6_INFO_RETRANS_MESSAGES => {
                write(buffer, size(26, 50), self.retransmit_queue_info().filter(is_shown), message)
            }
            RDS_INFO_RECV_MESSAGES | RDS6_INFO_RECV_MESSAGES => {
                write(buffer, size(26, 50), self.receive_queue_info().filter(is_shown), message)
            }
            RDS_INFO_SOCKETS | RDS6_INFO_SOCKETS => {
                let bound_v4 = |info: &SocketInfo| info.bound.is_some_and(|bound| bound.is_ipv4());
                write(
                    buffer,
                    size(28, 52),
                    self.sockets_info().filter(|info| is_v6 || bound_v4(info)),
                    socket,
                )
            }
            RDS_INFO_IB_CONNECTIONS | RDS6_INFO_IB_CONNECTIONS => {
                let items = self.ib_connections_info(adapter);
                let items = items.filter(|info| shown(info.local, info.foreign));
                write(buffer, size(68, 92), items, ib_connection)
            }
            _ => Err(InfoError::Unknown),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::info::ConnectionFlags;
    use crate::reason::DownReason;
    use std::vec::Vec;

    const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 9, 0, 1));
    const FOREIGN: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 9, 0, 2));

    fn made(is_v6: bool, make: impl Fn(&mut Element)) -> Vec<u8> {
        let mut element = Element::new(is_v6);
        make(&mut element);
        element.bytes[..element.len].to_vec()
    }

    #[test]
    fn elements_are_laid_out_as_linux_has_them() {
        let info = ConnectionInfo {
            next_tx: 0x0102_0304_0506_0708,
            next_rx: 9,
            local: LOCAL,
            foreign: FOREIGN,
            transport: Transport::InfiniBand,
            flags: ConnectionFlags::CONNECTED,
            tos: 0x2a,
            downs: 1,
            last_down: Some(DownReason::Broken),
        };
        let bytes = made(false, |to| connection(to, info));
        let mut expected = Vec::new();
        expected.extend(0x0102_0304_0506_0708_u64.to_ne_bytes());
        expected.extend(9u64.to_ne_bytes());
        expected.extend([10, 9, 0, 1, 10, 9, 0, 2]);
        expected.extend(*b"infiniband\0\0\0\0\0\0\x04\x2a");
        assert_eq!((bytes.len(), bytes), (42, expected));
        let bytes = made(true, |to| connection(to, info));
        assert_eq!((bytes.len(), &bytes[26..32], bytes[64]), (65, &[0xff, 0xff, 10, 9, 0, 1][..], 4));

        let info = MessageInfo {
            sequence: 5,
            len: 6,
            local: SocketAddr::new(LOCAL, 0x1234),
            foreign: SocketAddr::new(FOREIGN, 0x5678),
            tos: 3,
        };
        let bytes = made(false, |to| message(to, info));
        assert_eq!(
            (bytes.len(), &bytes[12..]),
            (26, &[10, 9, 0, 1, 10, 9, 0, 2, 0x12, 0x34, 0x56, 0x78, 0, 3][..])
        );
        assert_eq!(made(true, |to| message(to, info)).len(), 50);

        let info = SocketInfo {
            send_buffer: 1,
            receive_buffer: usize::MAX,
            bound: Some(SocketAddr::new(LOCAL, 0x1234)),
            connected: None,
            inode: 7,
            tos: 3,
            unacknowledged: 0,
            unread: 0,
        };
        let bytes = made(false, |to| socket(to, info));
        assert_eq!((bytes.len(), &bytes[4..16]), (28, &[10, 9, 0, 1, 0, 0, 0, 0, 0x12, 0x34, 0, 0][..]));
        assert_eq!((&bytes[16..20], &bytes[20..]), (&[0xff; 4][..], &7u64.to_ne_bytes()[..]));
        assert_eq!(made(true, |to| socket(to, info)).len(), 52);

        let info = IbConnectionInfo {
            local: LOCAL,
            foreign: FOREIGN,
            local_gid: [0xaa; 16],
            foreign_gid: [0xbb; 16],
            max_send_wr: 1,
            max_recv_wr: 2,
            max_send_sge: 3,
            mr_max: 4,
            mr_size: 5,
            tos: 0x16,
            sl: 6,
            cache_allocs: 8,
        };
        let bytes = made(false, |to| ib_connection(to, info));
        assert_eq!((bytes.len(), bytes[40], bytes[60], bytes[61], bytes[64]), (68, 1, 0x16, 6, 8));
        let bytes = made(true, |to| ib_connection(to, info));
        assert_eq!((bytes.len(), bytes[64], bytes[84], bytes[85], bytes[88]), (92, 1, 0x16, 6, 8));

        let bytes = made(false, |to| counter(to, Counter { name: "conn_reset", value: 3 }));
        assert_eq!(
            (bytes.len(), &bytes[..12], &bytes[32..]),
            (40, &b"conn_reset\0\0"[..], &3u64.to_ne_bytes()[..])
        );
    }

    #[test]
    fn a_short_buffer_is_told_what_is_needed() {
        let items = || [1u8, 2, 3].into_iter();
        let encode = |to: &mut Element, item: u8| {
            to.u8(item).u8(0xee);
        };
        assert_eq!(write(&mut [], (2, false), items(), encode), Err(InfoError::NoSpace { needed: 6 }));
        assert_eq!(write(&mut [0; 5], (2, false), items(), encode), Err(InfoError::NoSpace { needed: 6 }));
        let mut room = [0x55; 7];
        let done = write(&mut room, (2, false), items(), encode);
        assert_eq!(done, Ok(InfoWritten { element_size: 2, len: 6 }));
        assert_eq!(room, [1, 0xee, 2, 0xee, 3, 0xee, 0x55]);
        assert_eq!(
            write(&mut [], (2, false), [].into_iter(), encode),
            Ok(InfoWritten { element_size: 2, len: 0 })
        );
    }
}
