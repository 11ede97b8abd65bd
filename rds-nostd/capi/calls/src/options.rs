//! Table of the socket options: one row of [`SocketOption::ALL`] each.
//!
//! `setsockopt`, `getsockopt`, moves to another HCA, and the tests of headers and manual pages read
//! the table.

use crate::failure::{Answer, Failure};
use crate::memory::{lent, store};
use crate::node::{Node, State};
use crate::socket::Socket;
use dat_nostd::{Adapter, Platform};
use rds_nostd::cmsg::{RdsFreeMrArgs, RdsGetMrArgs, RdsGetMrForDestArgs, RxTraceOption, decode_address};
use rds_nostd::{InfoError, Profile, RdmaCookie, Rds, RdsError, SocketHandle, Transport};

/// First option of information, and their number.
const INFO: i32 = 10000;
const INFOS: i32 = 18;
/// Bytes of a `struct sockaddr_in`.
const ADDRESS: usize = 16;
/// Bytes of an `int`.
const INT: usize = 4;

/// A socket with its protocol and adapter.
pub struct Target<'t, P: Platform + 'static> {
    /// The protocol that has the socket.
    pub rds: &'t mut Rds<'static>,
    /// The adapter of that protocol.
    pub adapter: &'t mut Adapter<'static, P>,
    /// The socket.
    pub handle: SocketHandle,
    /// The profile of the socket.
    pub profile: Profile,
    /// The call returned [`RdsError::Again`] before, and is repeated.
    pub repeats: bool,
}

/// Level of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// `SOL_SOCKET`.
    Socket,
    /// `SOL_RDS`.
    Rds,
}

impl Level {
    const fn number(self, profile: Profile) -> i32 {
        match (self, profile) {
            (Self::Rds, _) => profile.sol_rds(),
            (Self::Socket, Profile::Linux) => 1,
            (Self::Socket, Profile::Solaris) => 0xffff,
        }
    }
}

type Get = fn(&Rds<'_>, SocketHandle, Profile) -> Result<i32, RdsError>;
type Set<P> = unsafe fn(&mut Target<'_, P>, &[u8]) -> Answer<()>;

/// State that an option sets, exact where `getsockopt` rounds or does not exist.
pub struct Kept<P: Platform + 'static> {
    /// Reads the state of a socket.
    pub read: fn(&Rds<'_>, SocketHandle) -> Result<u64, RdsError>,
    /// Writes it to another socket.
    pub write: fn(&mut Target<'_, P>, u64) -> Result<(), RdsError>,
}

/// A socket option.
pub struct SocketOption<P: Platform + 'static> {
    /// Its name in the headers.
    pub name: &'static str,
    /// Its level.
    pub level: Level,
    /// Its numbers on Linux and Solaris. `None` where the system lacks it.
    pub numbers: [Option<i32>; 2],
    /// Bytes of its value: exactly for `get`, the least for `set`.
    pub size: usize,
    get: Option<Get>,
    set: Option<Set<P>>,
    /// State that a move to another HCA preserves. `None` for actions and constants.
    pub kept: Option<Kept<P>>,
}

impl<P: Platform + 'static> SocketOption<P> {
    /// All options, except information.
    pub const ALL: &'static [Self] = &[
        Self {
            get: Some(|_, _, _| Ok(0)),
            // Addresses can always be reused.
            set: Some(|_, value| int(value).map(drop)),
            ..Self::row("SO_REUSEADDR", Level::Socket, [Some(2), Some(4)], INT)
        },
        Self {
            get: Some(|_, _, profile| Ok(profile.socket_type())),
            ..Self::row("SO_TYPE", Level::Socket, [Some(3), Some(0x1008)], INT)
        },
        Self {
            get: Some(|_, _, _| Ok(0)),
            ..Self::row("SO_ERROR", Level::Socket, [Some(4), Some(0x1007)], INT)
        },
        Self {
            get: Some(|rds, handle, _| Ok(rds.sndbuf(handle)?.cast_signed())),
            set: Some(|to, value| Ok(to.rds.set_sndbuf(to.handle, int(value)?.cast_unsigned())?)),
            kept: Some(Kept {
                read: |rds, handle| Ok(rds.send_buffer(handle)? as u64),
                write: |to, value| to.rds.set_send_buffer(to.handle, value as usize),
            }),
            ..Self::row("SO_SNDBUF", Level::Socket, [Some(7), Some(0x1001)], INT)
        },
        Self {
            get: Some(|rds, handle, _| Ok(rds.rcvbuf(handle)?.cast_signed())),
            set: Some(|to, value| {
                Ok(to.rds.set_rcvbuf(to.adapter, to.handle, int(value)?.cast_unsigned())?)
            }),
            kept: Some(Kept {
                read: |rds, handle| Ok(rds.receive_buffer(handle)? as u64),
                write: |to, value| to.rds.set_receive_buffer(to.adapter, to.handle, value as usize),
            }),
            ..Self::row("SO_RCVBUF", Level::Socket, [Some(8), Some(0x1002)], INT)
        },
        Self {
            set: Some(cancel_sent_to),
            ..Self::row("RDS_CANCEL_SENT_TO", Level::Rds, [Some(1); 2], ADDRESS)
        },
        Self { set: Some(get_mr), ..Self::row("RDS_GET_MR", Level::Rds, [Some(2); 2], RdsGetMrArgs::LEN) },
        Self { set: Some(free_mr), ..Self::row("RDS_FREE_MR", Level::Rds, [Some(3); 2], RdsFreeMrArgs::LEN) },
        Self {
            get: Some(|rds, handle, _| Ok(rds.receive_errors(handle)?.into())),
            set: Some(|to, value| Ok(to.rds.set_receive_errors(to.handle, int(value)? != 0)?)),
            kept: Some(Kept {
                read: |rds, handle| Ok(rds.receive_errors(handle)?.into()),
                write: |to, value| to.rds.set_receive_errors(to.handle, value != 0),
            }),
            ..Self::row("RDS_RECVERR", Level::Rds, [Some(5); 2], INT)
        },
        Self {
            set: Some(|to, value| Ok(to.rds.set_congestion_monitor(to.handle, int(value)? != 0)?)),
            kept: Some(Kept {
                read: |rds, handle| Ok(rds.congestion_monitor(handle)?.into()),
                write: |to, value| to.rds.set_congestion_monitor(to.handle, value != 0),
            }),
            ..Self::row("RDS_CONG_MONITOR", Level::Rds, [Some(6); 2], INT)
        },
        Self {
            set: Some(get_mr_for_dest),
            ..Self::row("RDS_GET_MR_FOR_DEST", Level::Rds, [Some(7); 2], RdsGetMrForDestArgs::LEN)
        },
        Self {
            // Without a transport the value is -1.
            get: Some(|rds, handle, _| Ok(rds.transport(handle)?.map_or(-1, |chosen| chosen as i32))),
            set: Some(set_transport),
            kept: Some(Kept {
                read: |rds, handle| Ok(rds.transport(handle)?.map_or(0, |chosen| chosen as u64 + 1)),
                write: |to, value| match value.checked_sub(1) {
                    Some(number) => to.rds.set_transport(to.handle, transport_of(number as i32)?),
                    None => Ok(()),
                },
            }),
            ..Self::row("SO_RDS_TRANSPORT", Level::Rds, [Some(8); 2], INT)
        },
        Self {
            set: Some(|to, value| {
                let option = RxTraceOption::decode(value).map_err(|_| Failure::Fault)?;
                Ok(to.rds.set_rxpath_latency(to.handle, option)?)
            }),
            kept: Some(Kept {
                read: |rds, handle| Ok(u32::from_ne_bytes(rds.rxpath_latency_option(handle)?.encode()).into()),
                write: |to, value| {
                    let option = RxTraceOption::decode(&(value as u32).to_ne_bytes());
                    to.rds.set_rxpath_latency(to.handle, option.unwrap_or_default())
                },
            }),
            ..Self::row("SO_RDS_MSG_RXPATH_LATENCY", Level::Rds, [Some(10), None], RxTraceOption::LEN)
        },
    ];

    const fn row(name: &'static str, level: Level, numbers: [Option<i32>; 2], size: usize) -> Self {
        Self { name, level, numbers, size, get: None, set: None, kept: None }
    }

    /// Returns the option with this level and number.
    fn find(profile: Profile, level: i32, name: i32) -> Option<&'static Self> {
        let is_it =
            |option: &&Self| option.level.number(profile) == level && option.number(profile) == Some(name);
        Self::ALL.iter().find(is_it)
    }

    /// Returns the option's number on a system.
    #[must_use]
    pub const fn number(&self, profile: Profile) -> Option<i32> {
        let [linux, solaris] = self.numbers;
        match profile {
            Profile::Linux => linux,
            Profile::Solaris => solaris,
        }
    }

    /// Returns true if `setsockopt` has it.
    #[must_use]
    pub const fn is_settable(&self) -> bool {
        self.set.is_some()
    }

    /// Returns true if `getsockopt` has it.
    #[must_use]
    pub const fn is_gettable(&self) -> bool {
        self.get.is_some()
    }

    /// Copies the state of all options to a socket of the same profile.
    ///
    /// # Errors
    /// See the calls of [`Rds`] that set options.
    pub fn move_all((rds, handle): (&Rds<'_>, SocketHandle), to: &mut Target<'_, P>) -> Result<(), RdsError> {
        let mut kept = Self::ALL.iter().filter_map(|option| option.kept.as_ref());
        kept.try_for_each(|Kept { read, write }| write(to, read(rds, handle)?))
    }
}

fn int(value: &[u8]) -> Answer<i32> {
    let bytes = value.first_chunk().ok_or(RdsError::InvalidArgument)?;
    Ok(i32::from_ne_bytes(*bytes))
}

/// Returns the transport with this number.
///
/// # Errors
/// [`RdsError::NoTransport`]: Linux has it, this node does not; [`RdsError::InvalidArgument`]:
/// undefined.
fn transport_of(number: i32) -> Result<Transport, RdsError> {
    const OTHERS: [i32; 2] = [1, 2];
    let known = [Transport::InfiniBand, Transport::Loopback];
    match known.into_iter().find(|known| *known as i32 == number) {
        Some(found) => Ok(found),
        None if OTHERS.contains(&number) => Err(RdsError::NoTransport),
        None => Err(RdsError::InvalidArgument),
    }
}

fn set_transport<P: Platform + 'static>(to: &mut Target<'_, P>, value: &[u8]) -> Answer<()> {
    // Linux checks this first.
    if to.rds.transport(to.handle)?.is_some() {
        return Err(RdsError::NotSupported.into());
    }
    if value.len() != INT {
        return Err(RdsError::InvalidArgument.into());
    }
    Ok(to.rds.set_transport(to.handle, transport_of(int(value)?)?)?)
}

fn cancel_sent_to<P: Platform + 'static>(to: &mut Target<'_, P>, value: &[u8]) -> Answer<()> {
    Ok(to.rds.cancel_sent_to(to.adapter, to.handle, decode_address(to.profile, value)?)?)
}

/// On success access has ended, as with `RDS_RDMA_INVALIDATE` on Linux.
fn free_mr<P: Platform + 'static>(to: &mut Target<'_, P>, value: &[u8]) -> Answer<()> {
    let RdsFreeMrArgs { cookie, .. } = RdsFreeMrArgs::decode(value)?;
    if !to.repeats {
        to.rds.free_mr(to.adapter, to.handle, cookie)?;
    }
    Ok(to.rds.free_mr(to.adapter, to.handle, RdmaCookie(0))?)
}

/// # Safety
/// The memory that the value names belongs to the program.
unsafe fn get_mr<P: Platform + 'static>(to: &mut Target<'_, P>, value: &[u8]) -> Answer<()> {
    let args = RdsGetMrArgs::decode(value)?;
    // SAFETY: this function's contract.
    unsafe {
        let cookie = to.rds.get_mr(to.adapter, to.handle, lent(&args.vec)?, args.flags)?;
        store(args.cookie_addr, cookie.0)
    }
}

/// # Safety
/// As for [`get_mr`].
unsafe fn get_mr_for_dest<P: Platform + 'static>(to: &mut Target<'_, P>, value: &[u8]) -> Answer<()> {
    let RdsGetMrForDestArgs { dest, args } = RdsGetMrForDestArgs::decode(value)?;
    let peer = decode_address(to.profile, &dest)?;
    // SAFETY: this function's contract.
    unsafe {
        let memory = lent(&args.vec)?;
        let cookie = to.rds.get_mr_for_dest(to.adapter, to.handle, peer, memory, args.flags)?;
        store(args.cookie_addr, cookie.0)
    }
}

/// `setsockopt`.
///
/// # Safety
/// The memory that the structures name belongs to the program.
pub(crate) unsafe fn set<N: Node>(
    inner: &mut State<'_, N>,
    fd: i32,
    (level, name): (i32, i32),
    value: &[u8],
    repeats: bool,
) -> Answer<()> {
    let Socket { handle, profile, .. } = *inner.socket(fd)?;
    let found = SocketOption::<N::Platform>::find(profile, level, name);
    let set = found.and_then(|option| option.set).ok_or(Failure::NoOption)?;
    // SAFETY: this function's contract.
    unsafe { set(&mut Target { rds: inner.rds, adapter: inner.adapter, handle, profile, repeats }, value) }
}

/// Result of `getsockopt`: the call's value, and the option's length.
pub(crate) struct Got {
    pub(crate) value: i32,
    pub(crate) len: usize,
    /// The buffer was too short.
    pub(crate) is_cut: bool,
}

/// `getsockopt`; fills `room`.
pub(crate) fn get<N: Node>(
    inner: &mut State<'_, N>,
    fd: i32,
    level: i32,
    name: i32,
    room: &mut [u8],
) -> Answer<Got> {
    let Socket { handle, profile, .. } = *inner.socket(fd)?;
    let State { adapter, rds, .. } = inner;
    if level == profile.sol_rds() && (INFO..INFO + INFOS).contains(&name) {
        return match rds.info(adapter, name.cast_unsigned(), room) {
            Ok(written) => Ok(Got { value: written.element_size as i32, len: written.len, is_cut: false }),
            Err(InfoError::NoSpace { needed }) => Ok(Got { value: 0, len: needed, is_cut: true }),
            Err(InfoError::Unknown) => Err(Failure::NoOption),
        };
    }
    let option = SocketOption::<N::Platform>::find(profile, level, name).ok_or(Failure::NoOption)?;
    let get = option.get.ok_or(Failure::NoOption)?;
    let bytes = get(rds, handle, profile)?.to_ne_bytes();
    // Only options of the system may be cut to the buffer, as on Linux.
    if option.level == Level::Rds && room.len() < bytes.len() {
        return Err(RdsError::InvalidArgument.into());
    }
    let len = bytes.len().min(room.len());
    room[..len].copy_from_slice(&bytes[..len]);
    Ok(Got { value: 0, len, is_cut: false })
}

#[cfg(test)]
mod tests {
    use super::*;
    use harness::ModelPlatform;
    use harness::rds::Nodes;
    use std::vec::Vec;

    type Row = SocketOption<ModelPlatform>;

    const HEADERS: [&str; 3] = [
        include_str!("../../include/rds/common.h"),
        include_str!("../../include/rds/linux.h"),
        include_str!("../../include/rds/solaris.h"),
    ];

    /// A value of the option other than the default, as `setsockopt` takes it; `None` for actions.
    fn sample(name: &str) -> Option<i32> {
        match name {
            "SO_SNDBUF" => Some(50_000),
            "SO_RCVBUF" => Some(60_000),
            "RDS_RECVERR" | "RDS_CONG_MONITOR" => Some(1),
            "SO_RDS_TRANSPORT" => Some(3),
            "SO_RDS_MSG_RXPATH_LATENCY" => Some(i32::from_ne_bytes([2, 0, 2, 0])),
            "SO_REUSEADDR" | "RDS_CANCEL_SENT_TO" | "RDS_GET_MR" | "RDS_FREE_MR" | "RDS_GET_MR_FOR_DEST" => {
                None
            }
            other => panic!("{other} has no sample"),
        }
    }

    fn target<'t>(
        nodes: &'t mut Nodes,
        node: usize,
        (handle, profile): (SocketHandle, Profile),
    ) -> Target<'t, ModelPlatform> {
        Target {
            rds: &mut nodes.rds[node],
            adapter: &mut nodes.adapters[node],
            handle,
            profile,
            repeats: false,
        }
    }

    #[test]
    fn every_option_survives_a_move_and_reads_back() {
        for profile in [Profile::Linux, Profile::Solaris] {
            let mut nodes = Nodes::new(1, "none");
            let [old, new] = [0, 1].map(|node| {
                let handle = nodes.rds[node].socket().unwrap();
                nodes.rds[node].set_profile(handle, profile).unwrap();
                handle
            });
            let settable = |row: &&Row| row.number(profile).is_some() && row.is_settable();
            let state = |nodes: &Nodes, node: usize, handle| -> Vec<u64> {
                let kept = Row::ALL.iter().filter_map(|row| row.kept.as_ref());
                kept.map(|kept| (kept.read)(&nodes.rds[node], handle).unwrap()).collect()
            };
            let default = state(&nodes, 0, old);
            for row in Row::ALL.iter().filter(settable) {
                let Some(value) = sample(row.name) else {
                    assert!(row.kept.is_none(), "{}", row.name);
                    continue;
                };
                assert!(row.kept.is_some(), "{} would be lost", row.name);
                let bytes = value.to_ne_bytes();
                assert_eq!(row.size, bytes.len());
                let set = row.set.unwrap();
                // SAFETY: integers name no memory.
                let (short, whole) = unsafe {
                    let mut to = target(&mut nodes, 0, (old, profile));
                    (set(&mut to, &bytes[..3]), set(&mut to, &bytes))
                };
                assert!(short.is_err() && whole.is_ok(), "{}: {short:?} {whole:?}", row.name);
                let doubled = row.level == Level::Socket && profile == Profile::Linux;
                if let Some(get) = row.get {
                    assert_eq!(get(&nodes.rds[0], old, profile), Ok(value * if doubled { 2 } else { 1 }));
                }
            }
            let set = state(&nodes, 0, old);
            let unchanged = set.iter().zip(&default).filter(|(set, default)| set == default).count();
            assert_eq!(unchanged, if profile == Profile::Linux { 0 } else { 1 });
            let Nodes { rds, adapters, .. } = &mut nodes;
            let [from, to] = rds.get_disjoint_mut([0, 1]).unwrap();
            let mut to = Target { rds: to, adapter: &mut adapters[1], handle: new, profile, repeats: false };
            Row::move_all((from, old), &mut to).unwrap();
            assert_eq!(state(&nodes, 1, new), set);
            nodes.close();
        }
    }

    #[test]
    fn numbers_are_unique_and_those_of_the_headers() {
        let defined = |name: &str| -> Option<i32> {
            let lines = HEADERS.iter().flat_map(|header| header.lines());
            let mut values =
                lines.filter_map(|line| line.strip_prefix("#define ")?.strip_prefix(name)?.strip_prefix(' '));
            let value = values.next()?;
            let hex = value.strip_prefix("0x").map(|digits| i32::from_str_radix(digits, 16));
            hex.unwrap_or_else(|| value.parse()).ok()
        };
        let mut found = 0;
        for row in Row::ALL {
            for profile in [Profile::Linux, Profile::Solaris] {
                let Some(number) = row.number(profile) else { continue };
                let first = Row::find(profile, row.level.number(profile), number);
                assert_eq!(first.map(|row| row.name), Some(row.name), "another option has the number");
            }
            let ours = std::format!("RDS_{}", row.name);
            for (name, number) in [(row.name, row.numbers[0]), (ours.as_str(), row.numbers[1])] {
                if let Some(value) = defined(name) {
                    assert_eq!(Some(value), number, "{name}");
                    found += 1;
                }
            }
        }
        assert_eq!(found, 9, "options that the headers define");
    }

    #[test]
    fn manual_pages_and_readme_name_every_option() {
        let set = include_str!("../../man/man3/rds_setsockopt.3");
        let get = include_str!("../../man/man3/rds_getsockopt.3");
        let readme = include_str!("../../README.md");
        for row in Row::ALL {
            let bold = std::format!("\\fB{}\\fR", row.name);
            assert_eq!(set.contains(&bold), row.is_settable(), "{bold} in rds_setsockopt(3)");
            assert_eq!(get.contains(&bold), row.is_gettable(), "{bold} in rds_getsockopt(3)");
            assert!(readme.contains(&std::format!("`{}`", row.name)), "{} in the README", row.name);
        }
    }
}
