//! What the set-up of a connection is waiting for.

use ib_port::ib_mgmt::cm::ConnId;

use crate::base::states;
use crate::base::types::IaAddress;

/// Bit of the CM's owner cookie: a service point's slot, else an EP's.
pub(crate) const OWNER_PSP: u32 = 1 << 31;

/// How far an EP's connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attempt {
    /// None is under way.
    None,
    /// The port at the address, then the path to it, is being asked for; the private data waits in the EP.
    Resolving { address: IaAddress, service_id: u64, deadline: u64, private_data_size: u8 },
    /// Active: REQ sent.
    Requested { conn: ConnId, deadline: u64 },
    /// Passive: REP sent.
    Accepted { conn: ConnId },
    /// Connected.
    Up { conn: ConnId },
}

impl Attempt {
    /// Its row of the state tables.
    pub(crate) fn stage(&self) -> states::Stage {
        match self {
            Attempt::None => states::Stage::Idle,
            Attempt::Resolving { .. } => states::Stage::Resolving,
            Attempt::Requested { .. } => states::Stage::Requested,
            Attempt::Accepted { .. } => states::Stage::Accepted,
            Attempt::Up { .. } => states::Stage::Up,
        }
    }

    pub(crate) fn conn(&self) -> Option<ConnId> {
        match *self {
            Attempt::None | Attempt::Resolving { .. } => None,
            Attempt::Requested { conn, .. } | Attempt::Accepted { conn } | Attempt::Up { conn } => Some(conn),
        }
    }
}
