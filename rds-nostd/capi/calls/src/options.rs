//! `setsockopt` and `getsockopt`.

use crate::failure::{Answer, Failure};
use crate::memory::{lent, store};
use crate::node::{Node, Sockets, State};
use crate::socket::Socket;
use crate::wait::finish;
use rds_nostd::cmsg::{RdsFreeMrArgs, RdsGetMrArgs, RdsGetMrForDestArgs, RxTraceOption, decode_address};
use rds_nostd::{InfoError, Profile, RdsError, Transport};

const CANCEL_SENT_TO: i32 = 1;
const GET_MR: i32 = 2;
const FREE_MR: i32 = 3;
const RECVERR: i32 = 5;
const CONG_MONITOR: i32 = 6;
const GET_MR_FOR_DEST: i32 = 7;
const TRANSPORT: i32 = 8;
const MSG_RXPATH_LATENCY: i32 = 10;
/// Options of information begin here, and there are so many.
const INFO: i32 = 10000;
const INFOS: i32 = 18;

/// Options of any socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Common {
    ReuseAddress,
    Type,
    Error,
    SendBuffer,
    ReceiveBuffer,
}

/// Which option of any socket a number is.
fn common(profile: Profile, level: i32, name: i32) -> Option<Common> {
    let (sol_socket, names) = match profile {
        Profile::Linux => (1, [2, 3, 4, 7, 8]),
        Profile::Solaris => (0xffff, [4, 0x1008, 0x1007, 0x1001, 0x1002]),
    };
    let options =
        [Common::ReuseAddress, Common::Type, Common::Error, Common::SendBuffer, Common::ReceiveBuffer];
    let place = names.iter().position(|number| *number == name).filter(|_| level == sol_socket)?;
    options.get(place).copied()
}

fn int(value: &[u8]) -> Answer<i32> {
    let bytes = value.first_chunk().ok_or(RdsError::InvalidArgument)?;
    Ok(i32::from_ne_bytes(*bytes))
}

/// The transport with this number.
///
/// # Errors
/// [`RdsError::NoTransport`]: Linux has it, and this node has not; [`RdsError::InvalidArgument`]: there is none.
fn transport_of(number: i32) -> Result<Transport, RdsError> {
    const OTHERS: [i32; 2] = [1, 2];
    let known = [Transport::InfiniBand, Transport::Loopback];
    match known.into_iter().find(|known| *known as i32 == number) {
        Some(found) => Ok(found),
        None if OTHERS.contains(&number) => Err(RdsError::NoTransport),
        None => Err(RdsError::InvalidArgument),
    }
}

/// `setsockopt`.
///
/// # Safety
/// Memory that the structures name is the program's.
pub(crate) unsafe fn set<N: Node>(
    inner: &mut State<'_, N>,
    fd: i32,
    level: i32,
    name: i32,
    value: &[u8],
) -> Answer<()> {
    let Socket { handle, profile, .. } = *inner.socket(fd)?;
    if level == profile.sol_rds() && name == CANCEL_SENT_TO {
        let to = decode_address(profile, value)?;
        let State { adapter, rds, .. } = inner;
        return Ok(finish(rds, adapter, |rds, adapter| rds.cancel_sent_to(adapter, handle, to))?);
    }
    let State { adapter, rds, sockets, .. } = inner;
    if let Some(option) = common(profile, level, name) {
        let number = int(value)?;
        match option {
            Common::SendBuffer => rds.set_sndbuf(handle, number.cast_unsigned())?,
            Common::ReceiveBuffer => rds.set_rcvbuf(adapter, handle, number.cast_unsigned())?,
            // An address can be used again at once in any case.
            Common::ReuseAddress => {}
            Common::Type | Common::Error => return Err(Failure::NoOption),
        }
        return Ok(());
    }
    if level != profile.sol_rds() {
        return Err(Failure::NoOption);
    }
    match name {
        GET_MR => {
            let args = RdsGetMrArgs::decode(value)?;
            // SAFETY: this function's contract.
            unsafe {
                let cookie = rds.get_mr(adapter, handle, lent(&args.vec)?, args.flags)?;
                store(args.cookie_addr, cookie.0)?;
            }
        }
        GET_MR_FOR_DEST => {
            let RdsGetMrForDestArgs { dest, args } = RdsGetMrForDestArgs::decode(value)?;
            let to = decode_address(profile, &dest)?;
            // SAFETY: this function's contract.
            unsafe {
                let cookie = rds.get_mr_for_dest(adapter, handle, to, lent(&args.vec)?, args.flags)?;
                store(args.cookie_addr, cookie.0)?;
            }
        }
        FREE_MR => rds.free_mr(adapter, handle, RdsFreeMrArgs::decode(value)?.cookie)?,
        MSG_RXPATH_LATENCY if profile == Profile::Linux => {
            rds.set_rxpath_latency(handle, RxTraceOption::decode(value).map_err(|_| Failure::Fault)?)?;
        }
        RECVERR => rds.set_receive_errors(handle, int(value)? != 0)?,
        CONG_MONITOR => {
            let on = int(value)? != 0;
            rds.set_congestion_monitor(handle, on)?;
            sockets.get(fd).ok_or(RdsError::BadSocket)?.monitors_congestion = on;
        }
        TRANSPORT => {
            // Linux looks at this first.
            if rds.transport(handle)?.is_some() {
                return Err(RdsError::NotSupported.into());
            }
            if value.len() != size_of::<i32>() {
                return Err(RdsError::InvalidArgument.into());
            }
            rds.set_transport(handle, transport_of(int(value)?)?)?;
        }
        _ => return Err(Failure::NoOption),
    }
    Ok(())
}

/// What `getsockopt` gives: the call's value, and the option's length.
pub(crate) struct Got {
    pub(crate) value: i32,
    pub(crate) len: usize,
    /// The buffer was too short for it.
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
    let is_rds = level == profile.sol_rds();
    if is_rds && (INFO..INFO + INFOS).contains(&name) {
        return match rds.info(adapter, name.cast_unsigned(), room) {
            Ok(written) => Ok(Got { value: written.element_size as i32, len: written.len, is_cut: false }),
            Err(InfoError::NoSpace { needed }) => Ok(Got { value: 0, len: needed, is_cut: true }),
            Err(InfoError::Unknown) => Err(Failure::NoOption),
        };
    }
    let number = match common(profile, level, name) {
        Some(Common::SendBuffer) => rds.sndbuf(handle)?.cast_signed(),
        Some(Common::ReceiveBuffer) => rds.rcvbuf(handle)?.cast_signed(),
        Some(Common::Type) => profile.socket_type(),
        Some(Common::ReuseAddress | Common::Error) => 0,
        None if is_rds && name == RECVERR => rds.receive_errors(handle)?.into(),
        // None yet is -1.
        None if is_rds && name == TRANSPORT => rds.transport(handle)?.map_or(-1, |chosen| chosen as i32),
        None => return Err(Failure::NoOption),
    };
    let bytes = number.to_ne_bytes();
    // The system's options give what fits; the protocol's want room for all.
    if is_rds && room.len() < bytes.len() {
        return Err(RdsError::InvalidArgument.into());
    }
    let len = bytes.len().min(room.len());
    room[..len].copy_from_slice(&bytes[..len]);
    Ok(Got { value: 0, len, is_cut: false })
}
