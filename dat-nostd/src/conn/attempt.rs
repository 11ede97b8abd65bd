//! What the set-up of a connection is waiting for.

use driver_mlx::Instant;
use ib_port::ib_mgmt::cm::ConnId;

use crate::base::states::{ConnectionInput, EpEvent, Stage};
use crate::base::types::IaAddress;

/// Bit of the CM's owner cookie: a service point's slot, else an EP's.
pub(crate) const OWNER_PSP: u32 = 1 << 31;

/// What an active side asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) address: IaAddress,
    pub(crate) service_id: u64,
    /// The consumer's.
    pub(crate) deadline: Instant,
    /// Till then it is asked again when nobody listens.
    pub(crate) patience: Instant,
    /// Nothing is asked before.
    pub(crate) not_before: Instant,
    /// The path was resolved once more, because a peer rejected the first.
    pub(crate) another_path: bool,
}

/// How far an EP's connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attempt {
    /// None is under way.
    None,
    /// The port at the address, then the path to it, is being asked for.
    Resolving(Request),
    /// Active: REQ sent.
    Requested { conn: ConnId, request: Request },
    /// Passive: REP sent.
    Accepted { conn: ConnId },
    /// Connected.
    Up { conn: ConnId },
}

impl Attempt {
    /// Its column of the state tables.
    pub(crate) fn stage(&self) -> Stage {
        match self {
            Attempt::None => Stage::Idle,
            Attempt::Resolving(_) => Stage::Resolving,
            Attempt::Requested { .. } => Stage::Requested,
            Attempt::Accepted { .. } => Stage::Accepted,
            Attempt::Up { .. } => Stage::Up,
        }
    }

    pub(crate) fn conn(&self) -> Option<ConnId> {
        match *self {
            Attempt::None | Attempt::Resolving(_) => None,
            Attempt::Requested { conn, .. } | Attempt::Accepted { conn } | Attempt::Up { conn } => Some(conn),
        }
    }

    /// What an input makes of the attempt, and what follows for its endpoint; None if the input means nothing at this stage. `sent` is
    /// the connection of the REQ that a known path has put on its way.
    pub(crate) fn after(
        self,
        input: ConnectionInput,
        sent: Option<ConnId>,
    ) -> Option<(Attempt, Option<EpEvent>)> {
        let (stage, event) = input.at(self.stage())?;
        let next = match (stage, self) {
            (Stage::Requested, Attempt::Resolving(request)) => Attempt::Requested { conn: sent?, request },
            (Stage::Resolving, Attempt::Requested { request, .. }) => Attempt::Resolving(request),
            (Stage::Up, Attempt::Requested { conn, .. } | Attempt::Accepted { conn }) => Attempt::Up { conn },
            _ => Attempt::None,
        };
        Some((next, event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::states::STAGES;

    /// The attempt is always at the stage that the table names.
    #[test]
    fn attempts_follow_the_table() {
        let conn = ConnId::default();
        let request = Request {
            address: IaAddress::V4(core::net::Ipv4Addr::LOCALHOST),
            service_id: 1,
            deadline: Instant::from_nanos(2),
            patience: Instant::from_nanos(1),
            not_before: Instant::ORIGIN,
            another_path: false,
        };
        let at = |stage| match stage {
            Stage::Idle => Attempt::None,
            Stage::Resolving => Attempt::Resolving(request),
            Stage::Requested => Attempt::Requested { conn, request },
            Stage::Accepted => Attempt::Accepted { conn },
            Stage::Up => Attempt::Up { conn },
        };
        for stage in STAGES {
            for input in ConnectionInput::ALL {
                let after = at(stage).after(*input, Some(conn));
                let expected = input.at(stage);
                assert_eq!(
                    after.map(|(next, event)| (next.stage(), event)),
                    expected,
                    "{input:?} at {stage:?}"
                );
            }
        }
    }
}
