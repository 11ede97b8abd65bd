//! The state machines of endpoints, event dispatchers, shared receive queues and connection attempts, as tables.
//!
//! Every call and every event of the implementation asks here, so what a table says is what happens. DAT 1.2, endpoint state
//! diagram and the pages of the single calls; the choices where the specification is silent are commented.

use crate::base::event::ConnectionEvent;
use crate::base::ret::{DatReturn, ReturnType, Subtype};
use crate::base::types::EpState;

/// What a call does in a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Effect {
    /// What it is for.
    Run,
    /// Nothing, with success.
    Nothing,
    /// The operation completes as flushed.
    Flush,
    /// INVALID_STATE with the state's subtype.
    Refuse,
}

use Effect::{Flush as F, Nothing as N, Refuse as X, Run as R};

/// All endpoint states, in the order of the columns of [`EP_CALLS`] and [`EP_EVENTS`].
pub const EP_STATES: [EpState; 9] = [
    EpState::Unconnected,
    EpState::Reserved,
    EpState::PassiveConnectionPending,
    EpState::ActiveConnectionPending,
    EpState::TentativeConnectionPending,
    EpState::CompletionPending,
    EpState::Connected,
    EpState::DisconnectPending,
    EpState::Disconnected,
];

/// The column of a state.
const fn column(state: EpState) -> usize {
    match state {
        EpState::Unconnected => 0,
        EpState::Reserved => 1,
        EpState::PassiveConnectionPending => 2,
        EpState::ActiveConnectionPending => 3,
        EpState::TentativeConnectionPending => 4,
        EpState::CompletionPending => 5,
        EpState::Connected => 6,
        EpState::DisconnectPending => 7,
        EpState::Disconnected => 8,
    }
}

macro_rules! rows {
    ($(#[$m:meta])* $name:ident $table:ident: [$cell:ty; $columns:literal];
     $($(#[$vm:meta])* $variant:ident [$($value:expr),*],)*) => {
        $(#[$m])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum $name { $($(#[$vm])* $variant,)* }

        impl $name {
            /// All rows.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];
        }

        #[doc = concat!("The table of [`", stringify!($name), "`]: a row for each, a column for each state.")]
        pub static $table: [[$cell; $columns]; $name::ALL.len()] = [$([$($value),*],)*];
    };
}

rows! {
    /// A call that acts on an endpoint.
    EpCall EP_CALLS: [Effect; 9];
    //                               UNC RES PAS ACT TEN CPE CON DPE DIS
    /// `ep_connect`.
    Connect                         [R,  X,  X,  X,  X,  X,  X,  X,  X],
    /// `ep_dup_connect`, the endpoint that is to be connected.
    DupConnect                      [R,  X,  X,  X,  X,  X,  X,  X,  X],
    /// `ep_dup_connect`, the endpoint whose connection is the pattern.
    DupSource                       [X,  X,  X,  X,  X,  X,  R,  X,  X],
    /// Being given to `rsp_create`.
    Reserve                         [R,  X,  X,  X,  X,  X,  X,  X,  X],
    /// Being given to `cr_accept`.
    Accept                          [R,  X,  X,  X,  X,  X,  X,  X,  X],
    /// Being a request's own endpoint in `cr_accept`, `cr_reject`, `cr_handoff`.
    Answer                          [X,  X,  R,  X,  R,  X,  X,  X,  X],
    /// `ep_disconnect`.
    Disconnect                      [X,  X,  X,  R,  X,  R,  R,  R,  N],
    /// `ep_reset`.
    Reset                           [N,  X,  X,  X,  X,  X,  X,  X,  R],
    /// `ep_free`.
    Free                            [R,  X,  X,  R,  X,  R,  R,  R,  R],
    /// `ep_post_recv`: queued until there is a connection, or flushed at its end.
    PostRecv                        [R,  R,  R,  R,  R,  R,  R,  R,  F],
    /// Sends, RDMA, atomics.
    PostRequest                     [X,  X,  X,  X,  X,  X,  R,  X,  F],
    /// `rmr_bind`.
    Bind                            [X,  X,  X,  X,  X,  X,  R,  X,  F],
    /// `ep_query`, `ep_get_status`, `ep_recv_query`, `ep_set_watermark`, consumer contexts.
    Query                           [R,  R,  R,  R,  R,  R,  R,  R,  R],
    /// `ep_modify` of the protection zone.
    ModifyPz                        [R,  X,  X,  X,  R,  X,  X,  X,  X],
    /// `ep_modify` of EVDs and attributes.
    ModifyAttributes                [R,  R,  R,  X,  R,  X,  X,  X,  X],
    /// `ep_modify` of transport and provider specific attributes.
    ModifySpecific                  [R,  X,  X,  X,  X,  X,  X,  X,  X],
}

impl EpCall {
    /// What the call does in this state, or INVALID_STATE with the state's subtype.
    #[inline]
    pub fn in_state(self, state: EpState) -> Result<Effect, DatReturn> {
        match EP_CALLS[self as usize][column(state)] {
            Effect::Refuse => Err(state.invalid()),
            effect => Ok(effect),
        }
    }
}

/// Where an event brings an endpoint, and which connection event the consumer gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    /// The state after the event.
    pub to: EpState,
    /// Queued on the connect EVD behind all completions: at the end of a connection only once everything is flushed.
    pub event: Option<ConnectionEvent>,
}

const fn to(to: EpState) -> Option<Transition> {
    Some(Transition { to, event: None })
}

const fn ends(event: ConnectionEvent) -> Option<Transition> {
    Some(Transition { to: EpState::Disconnected, event: Some(event) })
}

const UP: Option<Transition> =
    Some(Transition { to: EpState::Connected, event: Some(ConnectionEvent::Established) });
const GONE: Option<Transition> = ends(ConnectionEvent::Disconnected);
const BROKEN: Option<Transition> = ends(ConnectionEvent::Broken);
const LOST: Option<Transition> = ends(ConnectionEvent::AcceptCompletionError);
const PEER: Option<Transition> = ends(ConnectionEvent::PeerRejected);
const REFUSED: Option<Transition> = ends(ConnectionEvent::NonPeerRejected);
const NOWHERE: Option<Transition> = ends(ConnectionEvent::Unreachable);
const LATE: Option<Transition> = ends(ConnectionEvent::TimedOut);
const UNC: Option<Transition> = to(EpState::Unconnected);
const RES: Option<Transition> = to(EpState::Reserved);
const PAS: Option<Transition> = to(EpState::PassiveConnectionPending);
const ACT: Option<Transition> = to(EpState::ActiveConnectionPending);
const CPE: Option<Transition> = to(EpState::CompletionPending);
const DPE: Option<Transition> = to(EpState::DisconnectPending);
const O: Option<Transition> = None;

rows! {
    /// Something that moves an endpoint: a call that succeeds, or what the peer, a timer or the device does.
    EpEvent EP_EVENTS: [Option<Transition>; 9];
    //                  UNC  RES  PAS  ACT      TEN  CPE   CON     DPE     DIS
    /// `rsp_create`.
    Reserved           [RES, O,   O,   O,       O,   O,    O,      O,      O],
    /// `rsp_free`.
    Released           [O,   UNC, O,   O,       O,   O,    O,      O,      O],
    /// A request arrived at the reserved service point.
    RequestArrived     [O,   PAS, O,   O,       O,   O,    O,      O,      O],
    /// `cr_reject`, `cr_handoff`. An endpoint of the provider (TEN) ends with the request.
    RequestAnswered    [O,   O,   UNC, O,       O,   O,    O,      O,      O],
    /// `cr_accept`.
    Accepted           [CPE, O,   CPE, O,       CPE, O,    O,      O,      O],
    /// `ep_connect`, `ep_dup_connect`.
    Connecting         [ACT, O,   O,   O,       O,   O,    O,      O,      O],
    /// The set-up is finished: the peer accepted (active), or confirmed by RTU or its first data (passive).
    Established        [O,   O,   O,   UP,      O,   UP,   O,      O,      O],
    /// The remote consumer refused.
    PeerRejected       [O,   O,   O,   PEER,    O,   LOST, BROKEN, BROKEN, O],
    /// The remote machinery refused: no listener, no resources, stale, unusable answer.
    NonPeerRejected    [O,   O,   O,   REFUSED, O,   LOST, BROKEN, BROKEN, O],
    /// Address or path resolution failed, or nobody answers.
    Unreachable        [O,   O,   O,   NOWHERE, O,   LOST, BROKEN, BROKEN, O],
    /// The consumer's time-out passed.
    TimedOut           [O,   O,   O,   LATE,    O,   O,    O,      O,      O],
    /// The transport failed: a completion with an error, an event of the device, the hard watermark.
    Failed             [O,   O,   O,   REFUSED, O,   LOST, BROKEN, BROKEN, O],
    /// The device is gone.
    DeviceGone         [O,   O,   O,   NOWHERE, O,   LOST, BROKEN, BROKEN, O],
    /// The peer disconnected. While the confirmation is awaited this is the peer's giving up.
    PeerDisconnected   [O,   O,   O,   GONE,    O,   LOST, GONE,   GONE,   O],
    /// `ep_disconnect`, abrupt: what is outstanding is flushed first. A pending set-up is aborted with exactly one DISCONNECTED,
    /// on which the specification is silent.
    DisconnectAbrupt   [O,   O,   O,   GONE,    O,   GONE, DPE,    DPE,    O],
    /// `ep_disconnect`, graceful: requests are finished first.
    DisconnectGraceful [O,   O,   O,   GONE,    O,   GONE, DPE,    DPE,    O],
    /// A disconnect of our own has come to its end: everything outstanding is finished or flushed.
    Finished           [O,   O,   O,   O,       O,   O,    O,      GONE,   O],
    /// `ep_reset`.
    Reset              [UNC, O,   O,   O,       O,   O,    O,      O,      UNC],
}

impl EpEvent {
    /// Where the event brings an endpoint in this state; None if it means nothing there.
    pub fn in_state(self, state: EpState) -> Option<Transition> {
        EP_EVENTS[self as usize][column(state)]
    }
}

/// How an event dispatcher stands toward who waits. Enabling and disabling is independent of it, see [`triggers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EvdCondition {
    /// Nobody waits, and somebody may.
    Open,
    /// A wait is open.
    Waited,
    /// A wait is open, and `evd_set_unwaitable` has ended it: its next poll says so.
    Interrupted,
    /// Nobody may wait.
    Unwaitable,
    /// Events were lost: nothing can be taken any more.
    Overflowed,
}

/// All conditions, in the order of the columns of [`EVD_CALLS`].
pub const EVD_CONDITIONS: [EvdCondition; 5] = [
    EvdCondition::Open,
    EvdCondition::Waited,
    EvdCondition::Interrupted,
    EvdCondition::Unwaitable,
    EvdCondition::Overflowed,
];

rows! {
    /// A call that acts on an event dispatcher, other than those that are legal always: query, enable, disable, modify_cno,
    /// set_unwaitable, clear_unwaitable, post_se, and free and resize, which ask for other things.
    EvdCall EVD_CALLS: [Effect; 5];
    //               open waited interrupted unwaitable overflowed
    /// `evd_dequeue`.
    Dequeue         [R,   X,     X,          R,         X],
    /// `evd_wait`, its beginning.
    WaitBegin       [R,   X,     X,          X,         X],
    /// `evd_wait`, on the way.
    WaitPoll        [X,   R,     X,          X,         X],
    /// Giving up an `evd_wait`.
    WaitEnd         [X,   R,     R,          X,         X],
}

impl EvdCall {
    /// What the call does in this condition, or INVALID_STATE with the condition's subtype.
    pub fn in_condition(self, condition: EvdCondition) -> Result<Effect, DatReturn> {
        match EVD_CALLS[self as usize][condition as usize] {
            Effect::Refuse => Err(DatReturn::error(
                ReturnType::InvalidState,
                match condition {
                    EvdCondition::Open | EvdCondition::Waited => Subtype::InvalidStateEvdWaiter,
                    EvdCondition::Interrupted | EvdCondition::Unwaitable => {
                        Subtype::InvalidStateEvdUnwaitable
                    }
                    EvdCondition::Overflowed => Subtype::InvalidStateEvdInUse,
                },
            )),
            effect => Ok(effect),
        }
    }
}

/// Whether an arrival triggers the CNO: the dispatcher is enabled, and no waiter owns it.
#[must_use]
pub const fn triggers(enabled: bool, condition: EvdCondition) -> bool {
    enabled && !matches!(condition, EvdCondition::Waited)
}

/// `DAT_SRQ_STATE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SrqState {
    /// Buffers go in and out.
    Operational = 0,
    /// The device failed it.
    Error = 1,
}

/// All SRQ states, in the order of the columns of [`SRQ_CALLS`] and [`SRQ_EVENTS`].
pub const SRQ_STATES: [SrqState; 2] = [SrqState::Operational, SrqState::Error];

rows! {
    /// A call that acts on a shared receive queue.
    SrqCall SRQ_CALLS: [Effect; 2];
    //               operational error
    /// `srq_post_recv`: legal in every state; what an SRQ in error holds stays there.
    PostRecv        [R,          R],
    /// `srq_query`.
    Query           [R,          R],
    /// `srq_set_lw`.
    SetLowWatermark [R,          X],
    /// `srq_resize`.
    Resize          [R,          X],
    /// `srq_free`.
    Free            [R,          R],
    /// Being given to `ep_create_with_srq`.
    Attach          [R,          X],
}

impl SrqCall {
    /// What the call does in this state, or INVALID_STATE with the state's subtype.
    pub fn in_state(self, state: SrqState) -> Result<Effect, DatReturn> {
        match SRQ_CALLS[self as usize][state as usize] {
            Effect::Refuse => Err(DatReturn::error(
                ReturnType::InvalidState,
                match state {
                    SrqState::Operational => Subtype::InvalidStateSrqOperational,
                    SrqState::Error => Subtype::InvalidStateSrqError,
                },
            )),
            effect => Ok(effect),
        }
    }
}

/// Where an event brings a shared receive queue, and the reason of the asynchronous event.
pub type SrqTransition = Option<(SrqState, i32)>;

/// Reason of the event that free buffers fell below the low watermark (`DAT_SRQ_LOW_WATERMARK_EVENT`).
pub const SRQ_LOW_WATERMARK_EVENT: i32 = 2;
/// Reason of the event that an endpoint holds more buffers than its soft high watermark (`DAT_SRQ_SOFT_HIGH_WATERMARK_EVENT`).
pub const SRQ_SOFT_HIGH_WATERMARK_EVENT: i32 = 2;
/// Reason of the event that an object went to its error state (`…_TRANSFER_TO_ERROR`).
pub const TRANSFER_TO_ERROR: i32 = 0;

rows! {
    /// What the device tells of a shared receive queue.
    SrqEvent SRQ_EVENTS: [SrqTransition; 2];
    /// Fewer buffers than the armed low watermark.
    Low    [Some((SrqState::Operational, SRQ_LOW_WATERMARK_EVENT)), None],
    /// The queue failed.
    Failed [Some((SrqState::Error, TRANSFER_TO_ERROR)),             None],
}

impl SrqEvent {
    /// Where the event brings a queue in this state; None if it means nothing there.
    pub fn in_state(self, state: SrqState) -> SrqTransition {
        SRQ_EVENTS[self as usize][state as usize]
    }
}

/// How far the attempt to connect an endpoint has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Stage {
    /// None is under way.
    Idle,
    /// Active: address and path are being asked for.
    Resolving,
    /// Active: REQ sent.
    Requested,
    /// Passive: REP sent.
    Accepted,
    /// The connection stands.
    Up,
}

/// All stages, in the order of the columns of [`CONNECTION_EVENTS`].
pub const STAGES: [Stage; 5] = [Stage::Idle, Stage::Resolving, Stage::Requested, Stage::Accepted, Stage::Up];

/// What follows for the attempt, and for its endpoint.
pub type Step = Option<(Stage, Option<EpEvent>)>;

const ON: Step = Some((Stage::Requested, None));
const AGAIN: Step = Some((Stage::Resolving, None));
const fn gives(event: EpEvent) -> Step {
    Some((Stage::Idle, Some(event)))
}
const STANDS: Step = Some((Stage::Up, Some(EpEvent::Established)));
const NO_PATH: Step = gives(EpEvent::Unreachable);
const TOO_LATE: Step = gives(EpEvent::TimedOut);
const NO_ROOM: Step = gives(EpEvent::NonPeerRejected);
const NO: Step = gives(EpEvent::PeerRejected);
const FAILED: Step = gives(EpEvent::Failed);
const LEFT: Step = gives(EpEvent::PeerDisconnected);
const GIVEN_UP: Step = Some((Stage::Idle, None));
const I: Step = None;

rows! {
    /// What the port, its connection manager or a timer says of an attempt.
    ConnectionInput CONNECTION_EVENTS: [Step; 5];
    //                    idle resolving requested accepted up
    /// The path is known, and the REQ is on its way.
    PathKnown            [I,   ON,       I,        I,       I],
    /// There is no path.
    PathFailed           [I,   NO_PATH,  I,        I,       I],
    /// The connection manager has no room for the REQ.
    NoRoom               [I,   NO_ROOM,  I,        I,       I],
    /// The consumer's time-out passed.
    Deadline             [I,   TOO_LATE, TOO_LATE, I,       I],
    /// REP: the QP is ready, the RTU is on its way.
    Reply                [I,   I,        STANDS,   I,       I],
    /// REP that the QP cannot follow.
    UnusableReply        [I,   I,        NO_ROOM,  I,       I],
    /// REJ by the remote consumer.
    RejectedByConsumer   [I,   I,        NO,       FAILED,  FAILED],
    /// REJ because nobody listens, and there is patience left.
    NoService            [I,   I,        AGAIN,    I,       I],
    /// REJ by a port that may not be the one meant: the path is resolved once more.
    WrongPath            [I,   I,        AGAIN,    I,       I],
    /// REJ for any other reason.
    RejectedOtherwise    [I,   I,        NO_ROOM,  FAILED,  FAILED],
    /// All repetitions of the last message went without answer.
    Unanswered           [I,   I,        NO_PATH,  FAILED,  FAILED],
    /// RTU, or the first data: the QP is ready to send.
    Confirmed            [I,   I,        I,        STANDS,  I],
    /// DREQ, or the answer to ours.
    Disconnected         [I,   I,        LEFT,     LEFT,    LEFT],
    /// The connection ended otherwise: our DREQ unanswered, refused, stale.
    Lost                 [I,   I,        FAILED,   FAILED,  FAILED],
    /// The owner gives the attempt up: disconnect, free, close.
    Abandoned            [I,   GIVEN_UP, GIVEN_UP, GIVEN_UP, GIVEN_UP],
}

impl ConnectionInput {
    /// What follows at this stage; None if the input means nothing there.
    pub fn at(self, stage: Stage) -> Step {
        CONNECTION_EVENTS[self as usize][stage as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_in_order() {
        for (index, state) in EP_STATES.into_iter().enumerate() {
            assert_eq!(column(state), index);
        }
        for (index, condition) in EVD_CONDITIONS.into_iter().enumerate() {
            assert_eq!(condition as usize, index);
        }
        for (index, stage) in STAGES.into_iter().enumerate() {
            assert_eq!(stage as usize, index);
        }
    }

    /// An endpoint that is let go of takes no event, and every end has exactly one connection event.
    #[test]
    fn ends_are_ends() {
        for event in EpEvent::ALL {
            for state in EP_STATES {
                let Some(transition) = event.in_state(state) else { continue };
                let ended = transition.to == EpState::Disconnected;
                let up = transition.to == EpState::Connected;
                assert_eq!(transition.event.is_some(), ended || up, "{event:?} in {state:?}");
                assert_eq!(transition.event == Some(ConnectionEvent::Established), up, "{event:?}");
                if state == EpState::Disconnected {
                    assert_eq!(*event, EpEvent::Reset);
                }
            }
        }
    }

    /// What a stage gives moves the endpoint that is in it.
    #[test]
    fn every_step_moves_its_endpoint() {
        for input in ConnectionInput::ALL {
            for (stage, states) in [
                (Stage::Resolving, &[EpState::ActiveConnectionPending][..]),
                (Stage::Requested, &[EpState::ActiveConnectionPending]),
                (Stage::Accepted, &[EpState::CompletionPending]),
                (Stage::Up, &[EpState::Connected, EpState::DisconnectPending]),
            ] {
                let Some((_, Some(event))) = input.at(stage) else { continue };
                for state in states {
                    assert!(
                        event.in_state(*state).is_some(),
                        "{input:?} at {stage:?}: {event:?} in {state:?}"
                    );
                }
            }
        }
    }
}
