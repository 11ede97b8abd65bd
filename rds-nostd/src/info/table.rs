//! Tables of a node's information, in the format of `rds-info`.

use core::fmt;
use core::net::SocketAddr;

use dat_nostd::{Adapter, Platform};

use crate::info::binary::transport_name;
use crate::info::{ConnectionFlags, MessageInfo};
use crate::io::Rds;

/// Kind of table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TableKind {
    /// Counters that are not zero (`rds-info -c`).
    Counters = b'c',
    /// Connections with their last reason to go down (`-n`).
    Connections = b'n',
    /// Messages that wait to be sent (`-s`).
    SendQueue = b's',
    /// Messages sent and not acknowledged (`-t`).
    RetransmitQueue = b't',
    /// Messages that wait to be read (`-r`).
    ReceiveQueue = b'r',
    /// Sockets (`-k`).
    Sockets = b'k',
    /// InfiniBand connections (`-I`).
    IbConnections = b'I',
}

impl TableKind {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Counters,
        Self::Sockets,
        Self::Connections,
        Self::ReceiveQueue,
        Self::SendQueue,
        Self::RetransmitQueue,
        Self::IbConnections,
    ];

    /// Returns the letter of `rds-info`'s option.
    #[must_use]
    pub const fn option(self) -> char {
        self as u8 as char
    }

    /// Parses options such as `-cn -k` into kinds, in the order of `rds-info`. Returns all kinds
    /// without options, and `None` for an undefined option.
    pub fn of_options(options: &str) -> Option<impl Iterator<Item = Self> + '_> {
        let letters = || options.split_whitespace().flat_map(|option| option.chars().skip(1));
        let named = |letter| Self::ALL.into_iter().find(move |kind| kind.option() == letter);
        let known = options.split_whitespace().all(|option| option.len() > 1 && option.starts_with('-'))
            && letters().all(|letter| named(letter).is_some());
        let all = if options.trim().is_empty() { &Self::ALL[..] } else { &[] };
        known.then(|| all.iter().copied().chain(letters().filter_map(named)))
    }
}

/// A table that prints itself: two lines of headings, then one line per entry.
pub struct Table<'a, 's> {
    rds: &'a Rds<'s>,
    kind: TableKind,
    local_gid: [u8; 16],
}

impl<'s> Rds<'s> {
    /// Returns a table of the current state.
    pub fn table<P: Platform>(&self, adapter: &Adapter<'_, P>, kind: TableKind) -> Table<'_, 's> {
        Table { rds: self, kind, local_gid: adapter.port_info().gid.0 }
    }
}

impl fmt::Display for Table<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            TableKind::Counters => self.counters(f),
            TableKind::Connections => self.connections(f),
            TableKind::SendQueue => messages(f, "Send queue", self.rds.send_queue_info()),
            TableKind::RetransmitQueue => messages(f, "Retransmit queue", self.rds.retransmit_queue_info()),
            TableKind::ReceiveQueue => messages(f, "Receive queue", self.rds.receive_queue_info()),
            TableKind::Sockets => self.sockets(f),
            TableKind::IbConnections => self.ib_connections(f),
        }
    }
}

impl Table<'_, '_> {
    fn counters(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Counters:\n{:>32} {:>16}", "Name", "Value")?;
        for counter in self.rds.counters().iter().filter(|counter| counter.value != 0) {
            writeln!(f, "{:>32} {:>16}", counter.name, counter.value)?;
        }
        Ok(())
    }

    fn connections(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "Connections:\n      LocalAddr      RemoteAddr Tos         NextTX         NextRX Flgs  Transport  Downs Last"
        )?;
        for info in self.rds.connections_info() {
            let flag = |flag, letter| if info.flags.contains(flag) { letter } else { '-' };
            write!(
                f,
                "{:>15} {:>15} {:>3} {:>14} {:>14}  {}{}{} {:>10} {:>6} ",
                info.local,
                info.foreign,
                info.tos,
                info.next_tx,
                info.next_rx,
                flag(ConnectionFlags::SENDING, 's'),
                flag(ConnectionFlags::CONNECTING, 'c'),
                flag(ConnectionFlags::CONNECTED, 'C'),
                transport_name(info.transport),
                info.downs,
            )?;
            match info.last_down {
                Some(reason) => writeln!(f, "{reason}")?,
                None => writeln!(f, "-")?,
            }
        }
        Ok(())
    }

    fn sockets(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "Sockets:\n      BoundAddr BPort        ConnAddr CPort Tos     SndBuf     RcvBuf    Unacked     Unread      Inode"
        )?;
        for info in self.rds.sockets_info() {
            place(f, info.bound)?;
            place(f, info.connected)?;
            writeln!(
                f,
                "{:>3} {:>10} {:>10} {:>10} {:>10} {:>10}",
                info.tos, info.send_buffer, info.receive_buffer, info.unacknowledged, info.unread, info.inode
            )?;
        }
        Ok(())
    }

    fn ib_connections(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "InfiniBand connections:\n      LocalAddr      RemoteAddr Tos SL                         LocalGid                        RemoteGid SendWr RecvWr"
        )?;
        for info in self.rds.ib_connections(self.local_gid) {
            writeln!(
                f,
                "{:>15} {:>15} {:>3} {:>2} {:032x} {:032x} {:>6} {:>6}",
                info.local,
                info.foreign,
                info.tos,
                info.sl,
                u128::from_be_bytes(info.local_gid),
                u128::from_be_bytes(info.foreign_gid),
                info.max_send_wr,
                info.max_recv_wr
            )?;
        }
        Ok(())
    }
}

fn place(f: &mut fmt::Formatter<'_>, at: Option<SocketAddr>) -> fmt::Result {
    match at {
        Some(at) => write!(f, "{:>15} {:>5} ", at.ip(), at.port()),
        None => write!(f, "{:>15} {:>5} ", "-", "-"),
    }
}

fn messages(
    f: &mut fmt::Formatter<'_>,
    title: &str,
    messages: impl Iterator<Item = MessageInfo>,
) -> fmt::Result {
    writeln!(f, "{title}:\n      LocalAddr LPort      RemoteAddr RPort Tos            Seq      Bytes")?;
    for info in messages {
        place(f, Some(info.local))?;
        place(f, Some(info.foreign))?;
        writeln!(f, "{:>3} {:>14} {:>10}", info.tos, info.sequence, info.len)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_those_of_rds_info() {
        let kinds = |options| TableKind::of_options(options).map(|kinds| kinds.collect::<std::vec::Vec<_>>());
        assert_eq!(kinds(" "), Some(TableKind::ALL.to_vec()));
        assert_eq!(kinds("-c"), Some(std::vec![TableKind::Counters]));
        let several = std::vec![TableKind::IbConnections, TableKind::Sockets, TableKind::ReceiveQueue];
        assert_eq!(kinds("-Ik  -r"), Some(several));
        for bad in ["-x", "c", "-", "-c k", "-c-"] {
            assert_eq!(kinds(bad), None, "{bad}");
        }
        for kind in TableKind::ALL {
            let option = std::format!("-{}", kind.option());
            assert!(TableKind::of_options(&option).is_some_and(|kinds| kinds.eq([kind])));
        }
    }
}
