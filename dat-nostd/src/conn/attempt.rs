//! What the set-up of a connection is waiting for.

use driver_mlx::Instant;
use ib_port::ib_mgmt::cm::ConnId;

use crate::base::states::{ConnectionInput, EpEvent, Stage};
use crate::base::types::IaAddress;

/// Bit of the CM's owner cookie: a service point's slot, else an EP's.
pub(crate) const OWNER_PSP: u32 = 1 << 31;

/// How far an EP's connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attempt {
    /// None is under way.
    None,
    /// The port at the address, then the path to it, is being asked for; the private data waits in the EP.
    Resolving { address: IaAddress, service_id: u64, deadline: Instant, private_data_size: u8 },
    /// Active: REQ sent.
    Requested { conn: ConnId, deadline: Instant },
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
            Attempt::Resolving { .. } => Stage::Resolving,
            Attempt::Requested { .. } => Stage::Requested,
            Attempt::Accepted { .. } => Stage::Accepted,
            Attempt::Up { .. } => Stage::Up,
        }
    }

    pub(crate) fn conn(&self) -> Option<ConnId> {
        match *self {
            Attempt::None | Attempt::Resolving { .. } => None,
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
            (Stage::Requested, Attempt::Resolving { deadline, .. }) => {
                Attempt::Requested { conn: sent?, deadline }
            }
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
        let address = IaAddress::V4(core::net::Ipv4Addr::LOCALHOST);
        let at = |stage| match stage {
            Stage::Idle => Attempt::None,
            Stage::Resolving => Attempt::Resolving {
                address,
                service_id: 1,
                deadline: Instant::from_nanos(2),
                private_data_size: 3,
            },
            Stage::Requested => Attempt::Requested { conn, deadline: Instant::from_nanos(2) },
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
