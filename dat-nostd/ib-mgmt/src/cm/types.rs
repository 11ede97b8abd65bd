//! Inputs and outputs of the communication manager.

use super::reason::RejReason;
use crate::mad::{Mad, MadAddress};
use crate::sa::PathRecord;
use ib_types::{Gid, Guid, Instant, Psn, QKey, QpNumber};

/// Settings of a communication manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmConfig {
    /// GUID of the own channel adapter.
    pub ca_guid: Guid,
    /// Makes the communication ids of this boot of the node differ from those of earlier boots.
    pub seed: u64,
    /// Delay of the own channel adapter's ACKs, an exponent; goes into the REQ's local ACK timeout.
    pub ca_ack_delay: u8,
    /// Largest time exponent that is accepted from a peer (response and service timeouts, packet
    /// life time).
    pub max_timeout: u8,
    /// Number of repetitions of a DREQ before the connection counts as lost.
    pub max_dreq_retries: u8,
    /// Time exponent of the MRA that is sent if a peer repeats a message before the owner has
    /// decided.
    pub service_timeout: u8,
    /// The hop limit of the GRH that every packet of this port needs; `None` for a port without
    /// this need. Replies to a request without a GRH get one. The connection itself follows the
    /// peer's request, because a QP that sends a GRH drops packets without one.
    pub route: Option<u8>,
    /// GID of the own port: REQs to a different GID are rejected. Zero accepts all.
    pub gid: Gid,
    /// Another GID of the own port, as an Ethernet port has one for each IP address; zero for none.
    pub other_gid: Gid,
    /// MTU code of the own port, 1 to 5: REQs with a larger path MTU are rejected.
    pub mtu: u8,
}

impl CmConfig {
    /// The usual settings: ACK delay 15, exponents up to 21 (8.6 s), five repetitions of a DREQ,
    /// 4.3 s of patience, any GID and MTU.
    pub const fn new(ca_guid: Guid, seed: u64) -> CmConfig {
        CmConfig {
            ca_guid,
            seed,
            ca_ack_delay: 15,
            max_timeout: 21,
            max_dreq_retries: 5,
            service_timeout: 20,
            route: None,
            gid: Gid::ZERO,
            other_gid: Gid::ZERO,
            mtu: 5,
        }
    }
}

/// Names a connection: slot and generation, so a stale one is an error and never another
/// connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ConnId {
    pub(super) slot: u16,
    pub(super) generation: u32,
}

impl ConnId {
    /// The slot's index, below the number of slots given to [`super::Cm::new`]: for tables beside.
    pub const fn slot(self) -> u16 {
        self.slot
    }
}

/// An active side's wishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectParams {
    /// Path to the peer; becomes the REQ's primary path.
    pub path: PathRecord,
    /// The requested service.
    pub service_id: u64,
    /// Own QP number.
    pub qpn: QpNumber,
    /// The PSN with which the peer shall begin; the own QP's first expected PSN.
    pub starting_psn: Psn,
    /// RDMA READs and atomics the own QP can serve at a time.
    pub responder_resources: u8,
    /// RDMA READs and atomics the own QP wants to have outstanding.
    pub initiator_depth: u8,
    /// Transport retry count of both QPs, 0 to 7.
    pub retry_count: u8,
    /// RNR retry count of the peer's QP, 0 to 7; 7 without limit.
    pub rnr_retry_count: u8,
    /// The own QP uses a shared receive queue.
    pub srq: bool,
    /// End-to-end flow control wanted.
    pub flow_control: bool,
    /// Time exponent within which the peer should answer, and the own side will.
    pub response_timeout: u8,
    /// Number of repetitions of each message, 0 to 15.
    pub max_cm_retries: u8,
    /// Time in nanoseconds at which the attempt fails even though repetitions are left.
    pub deadline: Option<Instant>,
}

impl ConnectParams {
    /// Values of RDMA-CM: response timeout 20 (4.3 s), 15 repetitions, retry counts 7; one RDMA
    /// READ in each direction.
    pub const fn new(path: PathRecord, service_id: u64, qpn: QpNumber, starting_psn: Psn) -> ConnectParams {
        ConnectParams {
            path,
            service_id,
            qpn,
            starting_psn,
            responder_resources: 1,
            initiator_depth: 1,
            retry_count: 7,
            rnr_retry_count: 7,
            srq: false,
            flow_control: true,
            response_timeout: 20,
            max_cm_retries: 15,
            deadline: None,
        }
    }
}

/// A request for the queue pair of a datagram service (IBA volume 1, section 12.11).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResolveParams {
    /// Path to the port that has the service.
    pub path: PathRecord,
    /// The requested service.
    pub service_id: u64,
    /// Time exponent within which the peer should answer.
    pub response_timeout: u8,
    /// Number of repetitions of the request, 0 to 15.
    pub max_cm_retries: u8,
    /// Time in nanoseconds at which the attempt fails even though repetitions are left.
    pub deadline: Option<Instant>,
}

impl ResolveParams {
    /// Values of RDMA-CM: response timeout 20 (4.3 s), 15 repetitions.
    pub const fn new(path: PathRecord, service_id: u64) -> ResolveParams {
        ResolveParams { path, service_id, response_timeout: 20, max_cm_retries: 15, deadline: None }
    }
}

/// The reply about a datagram service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct DatagramService {
    /// Status, see [`super::message::sidr_status`]; the other fields are valid only if it is 0.
    pub status: u8,
    /// The service's QP number.
    pub qpn: QpNumber,
    /// The Q_Key that datagrams to it must carry.
    pub qkey: QKey,
}

impl DatagramService {
    /// The service is at this queue pair.
    pub const fn at(qpn: QpNumber, qkey: QKey) -> DatagramService {
        DatagramService { status: 0, qpn, qkey }
    }

    /// A refusal.
    pub const fn refused(status: u8) -> DatagramService {
        DatagramService { status, qpn: QpNumber::new(0), qkey: QKey::new(0) }
    }
}

/// A passive side's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcceptParams {
    /// Own QP number.
    pub qpn: QpNumber,
    /// The PSN with which the peer shall begin; the own QP's first expected PSN.
    pub starting_psn: Psn,
    /// RDMA READs and atomics the own QP will serve at a time; at most the REQ's initiator depth.
    pub responder_resources: u8,
    /// RDMA READs and atomics the own QP will have outstanding; at most the REQ's responder
    /// resources.
    pub initiator_depth: u8,
    /// Delay of the own ACKs, an exponent.
    pub target_ack_delay: u8,
    /// RNR retry count of the peer's QP, 0 to 7; 7 without limit.
    pub rnr_retry_count: u8,
    /// The own QP uses a shared receive queue.
    pub srq: bool,
    /// End-to-end flow control wanted.
    pub flow_control: bool,
}

impl AcceptParams {
    /// The usual: ACK delay 15, RNR retry without limit, one RDMA READ each way.
    pub const fn new(qpn: QpNumber, starting_psn: Psn) -> AcceptParams {
        AcceptParams {
            qpn,
            starting_psn,
            responder_resources: 1,
            initiator_depth: 1,
            target_ack_delay: 15,
            rnr_retry_count: 7,
            srq: false,
            flow_control: true,
        }
    }
}

/// Side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Role {
    /// Sent the REQ.
    #[default]
    Active,
    /// Received the REQ.
    Passive,
}

/// State of a connection (IBA volume 1, section 12.9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum State {
    /// No connection.
    #[default]
    Free = 0,
    /// Active: REQ sent, waiting for REP, MRA or REJ.
    ReqSent,
    /// Active: REP received, waiting for the owner to call `rtu`.
    RepRcvd,
    /// Passive: REQ received, waiting for the owner to accept or reject.
    ReqRcvd,
    /// Passive: REP sent, waiting for RTU.
    RepSent,
    /// Connected.
    Established,
    /// DREQ sent, waiting for DREP.
    DreqSent,
    /// Over; packets of it may still be about.
    TimeWait,
    /// Passive: REJ sent; kept a while for repetitions of the REQ.
    Rejected,
    /// Over; the last event or message has not been fetched yet.
    Done,
    /// Datagram service, active: SIDR_REQ sent, waiting for SIDR_REP.
    SidrReqSent,
    /// Datagram service, passive: SIDR_REQ received, waiting for the owner to answer.
    SidrReqRcvd,
    /// Datagram service, passive: SIDR_REP sent; kept a while for repetitions of the SIDR_REQ.
    SidrRepSent,
}

/// The message whose answer did not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Stage {
    /// REQ: the peer does not answer at all.
    #[default]
    Req,
    /// REP: the peer asked, was answered, and fell silent.
    Rep,
    /// SIDR_REQ: the peer does not answer.
    Sidr,
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum DisconnectCause {
    /// The peer sent a DREQ.
    #[default]
    Peer,
    /// The own DREQ was answered.
    Local,
    /// The own DREQ was not answered.
    LocalUnanswered,
    /// The peer rejected the established connection, for instance because it never saw the RTU.
    Rejected(RejReason),
    /// The peer uses the QP number for another connection: it has forgotten this one.
    Stale,
}

/// Event of a connection. The owner's cookie is the one given to `connect`, `accept` or `listen`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CmEvent {
    /// Passive: a peer requests a connection. See `info`, `qp_attributes` and `private_data`; then
    /// `accept`, `reject` or `defer`.
    ConnectRequest {
        /// The connection.
        id: ConnId,
        /// The listener's cookie.
        listener: u32,
    },
    /// A peer requests a datagram service that has a listener. See `info` and `private_data`; then
    /// `answer_datagram`.
    DatagramRequest {
        /// The request.
        id: ConnId,
        /// The listener's cookie.
        listener: u32,
    },
    /// The answer to `resolve_datagram`; `private_data` holds what came with it. The id is void
    /// after the next event.
    DatagramReply {
        /// The question.
        id: ConnId,
        /// The owner's cookie.
        owner: u32,
        /// Where the service is, or why not.
        service: DatagramService,
    },
    /// Active: the peer accepted. Bring the QP to RTR and RTS by `qp_attributes`, then call `rtu`.
    Reply {
        /// The connection.
        id: ConnId,
        /// The owner's cookie.
        owner: u32,
    },
    /// Passive: the active side is ready. Bring the QP to RTS.
    Established {
        /// The connection.
        id: ConnId,
        /// The owner's cookie.
        owner: u32,
    },
    /// The attempt was rejected; `private_data` and `reject_info` hold what came with it.
    Rejected {
        /// The connection.
        id: ConnId,
        /// The owner's cookie.
        owner: u32,
        /// The peer's reason.
        reason: RejReason,
    },
    /// The attempt failed for want of an answer, or at its deadline.
    TimedOut {
        /// The connection.
        id: ConnId,
        /// The owner's cookie.
        owner: u32,
        /// The message without a reply.
        stage: Stage,
    },
    /// An established connection ended.
    Disconnected {
        /// The connection.
        id: ConnId,
        /// The owner's cookie.
        owner: u32,
        /// Why.
        cause: DisconnectCause,
    },
    /// TimeWait is over: the QP number and its PSNs may be used again. The last event of a
    /// connection that had one of the events before it. A connection whose slot a new one needed
    /// ends without this event ([`CmCounters::evicted`]).
    TimeWaitExit {
        /// The connection.
        id: ConnId,
        /// The owner's cookie.
        owner: u32,
    },
}

/// State and parameters of a connection and its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnInfo {
    /// The own side.
    pub role: Role,
    /// State.
    pub state: State,
    /// Service id of the REQ.
    pub service_id: u64,
    /// The path, seen from here.
    pub path: PathRecord,
    /// The peer's QP1.
    pub peer: MadAddress,
    /// The peer's channel adapter; 0 while unknown.
    pub remote_ca_guid: Guid,
    /// The peer's QP number; 0 while unknown.
    pub remote_qpn: QpNumber,
    /// RDMA READs and atomics the peer can serve.
    pub peer_responder_resources: u8,
    /// RDMA READs and atomics the peer wants to have outstanding.
    pub peer_initiator_depth: u8,
    /// The peer's QP uses a shared receive queue.
    pub peer_srq: bool,
    /// The peer wants end-to-end flow control.
    pub peer_flow_control: bool,
}

/// Attributes for the own QP. Valid on the active side from the reply on. On the passive side the
/// peer's part is valid from the request on, the rest from `accept` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpAttributes {
    /// The path, seen from here; its MTU is the connection's.
    pub path: PathRecord,
    /// RTR: the peer's QP number.
    pub remote_qpn: QpNumber,
    /// RTR: first PSN to expect, the own message's starting PSN.
    pub rq_psn: Psn,
    /// RTS: first PSN to send, the peer's message's starting PSN.
    pub sq_psn: Psn,
    /// RTR: RDMA READs and atomics to serve at a time.
    pub responder_resources: u8,
    /// RTS: RDMA READs and atomics to have outstanding.
    pub initiator_depth: u8,
    /// RTS: transport retry count.
    pub retry_count: u8,
    /// RTS: RNR retry count, which the peer chose.
    pub rnr_retry_count: u8,
    /// RTS: local ACK timeout exponent.
    pub ack_timeout: u8,
}

/// A MAD to send from QP1 with the general services Q_Key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Where to.
    pub dest: MadAddress,
    /// What.
    pub mad: Mad,
}

/// Why a call was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CmError {
    /// The id names no connection (any more).
    InvalidId,
    /// The connection is in a state in which the call makes no sense.
    WrongState(State),
    /// All slots are taken.
    NoResources,
    /// Private data or additional information exceeds the message's room.
    TooLong,
    /// A parameter is outside its field: an exponent above 31, a count above its width, an MTU code
    /// outside 1 to 5.
    InvalidParameter,
}

impl core::fmt::Display for CmError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            CmError::InvalidId => f.write_str("no such connection"),
            CmError::WrongState(state) => write!(f, "not possible in connection state {state:?}"),
            CmError::NoResources => f.write_str("no free connection slot"),
            CmError::TooLong => f.write_str("private data exceeds the message's room"),
            CmError::InvalidParameter => f.write_str("connection parameter out of range"),
        }
    }
}

impl core::error::Error for CmError {}

impl From<super::message::TooLong> for CmError {
    fn from(_: super::message::TooLong) -> CmError {
        CmError::TooLong
    }
}

/// Why a service id cannot be listened to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenError {
    /// A listener for this service id exists already.
    InUse,
    /// The table is full.
    Full,
}

impl core::fmt::Display for ListenError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            ListenError::InUse => "service id in use",
            ListenError::Full => "no free listener slot",
        })
    }
}

impl core::error::Error for ListenError {}

/// A service id with a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listener {
    pub(super) used: bool,
    /// Takes SIDR_REQs, not REQs.
    pub(super) datagram: bool,
    pub(super) service_id: u64,
    pub(super) owner: u32,
    pub(super) backlog: u16,
}

impl Listener {
    /// A free entry; all bytes zero.
    pub const EMPTY: Listener =
        Listener { used: false, datagram: false, service_id: 0, owner: 0, backlog: 0 };
}

/// Event counters, for reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct CmCounters {
    /// MADs taken in.
    pub received: u64,
    /// MADs handed out.
    pub sent: u64,
    /// REQ, REP and DREQ repeated because no reply arrived.
    pub retries: u64,
    /// Repetitions of the peer's messages, answered as the first time or ignored.
    pub duplicates: u64,
    /// Attempts of the own side that became connections.
    pub active_established: u64,
    /// Attempts of peers that became connections.
    pub passive_established: u64,
    /// Attempts that the peer rejected.
    pub rejected_by_peer: u64,
    /// Attempts that the own side rejected or abandoned.
    pub rejected_by_us: u64,
    /// Attempts that ended for want of an answer.
    pub timeouts: u64,
    /// Connections that ended.
    pub disconnects: u64,
    /// REQs refused because all slots, or the listener's backlog, were taken.
    pub no_resources: u64,
    /// Ended connections whose slot a new one took before TimeWait was over.
    pub evicted: u64,
    /// REQs refused because their destination GID or MTU is not the port's.
    pub wrong_path: u64,
    /// REQs for service ids without a listener.
    pub no_listener: u64,
    /// REQs and REPs that showed an older connection to be stale.
    pub stale: u64,
    /// Messages for communication ids that do not exist (any longer).
    pub unknown_id: u64,
    /// Messages that are invalid in the connection's state.
    pub unexpected: u64,
    /// Questions of the own side for datagram services that were answered.
    pub datagram_replies: u64,
    /// Questions of peers for datagram services that the owner answered.
    pub datagram_answers: u64,
    /// Messages with a field that cannot be right, unknown attributes and foreign class versions
    /// included.
    pub malformed: u64,
    /// MADs of other classes or methods.
    pub foreign: u64,
    /// Requests that the peer withdrew before the owner saw them.
    pub withdrawn: u64,
    /// Short answers dropped because too many waited to be sent; the peer repeats its message.
    pub replies_dropped: u64,
}
