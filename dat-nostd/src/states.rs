//! Which operation an endpoint takes in which state. DAT 1.2, endpoint state diagram; every call asks here.

use crate::ret::DatReturn;
use crate::types::EpState;

/// A call that acts on an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// `ep_connect`.
    Connect,
    /// Being given to `cr_accept`.
    Accept,
    /// `ep_disconnect`.
    Disconnect,
    /// `ep_reset`.
    Reset,
    /// `ep_free`.
    Free,
    /// `ep_post_recv`.
    PostRecv,
    /// Sends and RDMA.
    PostRequest,
}

/// What a legal call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// What it is for.
    Run,
    /// Nothing, with success.
    Nothing,
    /// The operation completes as flushed.
    Flush,
}

impl Operation {
    /// What the call does in this state, or INVALID_STATE with the state's subtype.
    #[inline(always)]
    pub(crate) const fn in_state(self, state: EpState) -> Result<Effect, DatReturn> {
        use EpState::*;
        match (self, state) {
            (Operation::PostRequest, Connected) => Ok(Effect::Run),
            (Operation::PostRequest | Operation::PostRecv, Disconnected) => Ok(Effect::Flush),
            // Queued until there is a connection, or flushed at its end.
            (Operation::PostRecv, _) => Ok(Effect::Run),
            (Operation::Connect | Operation::Accept, Unconnected) => Ok(Effect::Run),
            (
                Operation::Disconnect,
                ActiveConnectionPending | CompletionPending | Connected | DisconnectPending,
            ) => Ok(Effect::Run),
            (Operation::Disconnect, Disconnected) | (Operation::Reset, Unconnected) => Ok(Effect::Nothing),
            (Operation::Reset, Disconnected) => Ok(Effect::Run),
            (Operation::Free, Reserved | PassiveConnectionPending | TentativeConnectionPending) => {
                Err(state.invalid())
            }
            (Operation::Free, _) => Ok(Effect::Run),
            _ => Err(state.invalid()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ret::{ReturnType, Subtype};
    use EpState::*;

    const STATES: [(EpState, Subtype); 9] = [
        (Unconnected, Subtype::InvalidStateEpUnconnected),
        (Reserved, Subtype::InvalidStateEpReserved),
        (PassiveConnectionPending, Subtype::InvalidStateEpPassconnpending),
        (ActiveConnectionPending, Subtype::InvalidStateEpActconnpending),
        (TentativeConnectionPending, Subtype::InvalidStateEpTentconnpending),
        (CompletionPending, Subtype::InvalidStateEpComplpending),
        (Connected, Subtype::InvalidStateEpConnected),
        (DisconnectPending, Subtype::InvalidStateEpDiscpending),
        (Disconnected, Subtype::InvalidStateEpDisconnected),
    ];

    /// The specification's table: `r` runs, `n` nothing, `f` flushed, `x` INVALID_STATE, in the order of [`STATES`].
    const TABLE: [(Operation, &str); 7] = [
        (Operation::Connect, "rxxxxxxxx"),
        (Operation::Accept, "rxxxxxxxx"),
        (Operation::Disconnect, "xxxrxrrrn"),
        (Operation::Reset, "nxxxxxxxr"),
        (Operation::Free, "rxxrxrrrr"),
        (Operation::PostRecv, "rrrrrrrrf"),
        (Operation::PostRequest, "xxxxxxrxf"),
    ];

    #[test]
    fn every_operation_in_every_state() {
        for (operation, row) in TABLE {
            for ((state, subtype), cell) in STATES.into_iter().zip(row.chars()) {
                let expected = match cell {
                    'r' => Ok(Effect::Run),
                    'n' => Ok(Effect::Nothing),
                    'f' => Ok(Effect::Flush),
                    _ => Err(DatReturn::error(ReturnType::InvalidState, subtype)),
                };
                assert_eq!(operation.in_state(state), expected, "{operation:?} in {state:?}");
            }
        }
    }
}
