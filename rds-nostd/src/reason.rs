//! Why connections end. Every end has one of these reasons: the node counts each, and a connection remembers its last.

use core::fmt;

use dat_nostd::{ConnectionEvent, DtoStatus};

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $counter:literal;)*) => {
        /// Why a connection went down, or an attempt to make it was given up.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum DownReason {
            $($(#[$doc])* $name,)*
        }

        impl DownReason {
            /// All of them, in the order of their numbers.
            pub const ALL: [Self; [$(stringify!($name)),*].len()] = [$(Self::$name),*];

            /// In a few words.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }

            /// Name of the counter of connections that ended so; shorter than the 32 bytes that `rds-info` has for it.
            #[must_use]
            pub const fn counter_name(self) -> &'static str {
                match self {
                    $(Self::$name => $counter,)*
                }
            }
        }
    };
}

reasons! {
    /// This side lacks memory or DAT objects for it. The first, so that its number is 0.
    NoResources = "no resources here", "down_no_resources";
    /// The peer disconnected, or its connection manager told that it is gone.
    Disconnected = "the peer disconnected", "down_disconnected";
    /// The peer's RDS refused our request.
    PeerRejected = "the peer refused", "down_peer_rejected";
    /// The peer has no RDS, or its connection manager refused.
    NonPeerRejected = "nobody listens at the peer", "down_non_peer_rejected";
    /// There is no path to the peer, or nobody has its address.
    Unreachable = "the peer is unreachable", "down_unreachable";
    /// Nobody answered our request in time.
    TimedOut = "the peer did not answer", "down_timed_out";
    /// The peer did not confirm what we had accepted.
    AcceptFailed = "the peer did not confirm", "down_accept_failed";
    /// The queue pair or its path failed.
    Broken = "the queue pair failed", "down_broken";
    /// The peer's reply has a protocol version that we do not speak, or addresses that are not the connection's.
    BadReply = "the peer's reply does not fit", "down_bad_reply";
    /// The peer asked for a new connection while this one stood: it has begun anew.
    Replaced = "the peer connected anew", "down_replaced";
    /// Both sides asked at once, and the peer's attempt stands.
    Raced = "the peer's attempt stands", "down_raced";
    /// The peer does not acknowledge packets any more.
    RetryExceeded = "packets were not acknowledged", "down_retry_exceeded";
    /// The peer had no receive posted for too long.
    ReceiverNotReady = "the peer took no message", "down_receiver_not_ready";
    /// The peer denied an RDMA operation of ours.
    RemoteAccess = "the peer denied an access", "down_remote_access";
    /// The peer could not do an RDMA operation of ours.
    RemoteOperation = "the peer failed at an operation", "down_remote_operation";
    /// The HCA ended a request of ours in another error.
    SendFailed = "a request failed", "down_send_failed";
    /// The HCA ended a receive in error: the message was longer than a frame, or the connection was gone.
    ReceiveFailed = "a receive failed", "down_receive_failed";
    /// A frame shorter than a header or longer than a frame.
    FrameLength = "a frame of a wrong length", "down_frame_length";
    /// A header with a wrong checksum.
    BadChecksum = "a wrong checksum", "down_bad_checksum";
    /// A message longer than this node takes.
    MessageLength = "a message too long", "down_message_length";
    /// A fragment that is not as long as its place in the message wants it.
    FragmentLength = "a fragment of a wrong length", "down_fragment_length";
    /// A fragment that belongs to another message than the one begun.
    FragmentMismatch = "a fragment of another message", "down_fragment_mismatch";
    /// An acknowledgement with a payload.
    AcknowledgementPayload = "an acknowledgement with payload", "down_ack_payload";
    /// The peer began a message and did not go on with it.
    Stalled = "a message was not continued", "down_stalled";
    /// Nothing moved on it, and another peer needed its entry.
    Idle = "idle", "down_idle";
    /// This side ended it: memory of an operation under way was wanted back.
    Local = "ended on this side", "down_local";
    /// The HCA had failed, and was recovered.
    Recovered = "the HCA was recovered", "down_recovered";
}

impl DownReason {
    /// How many there are.
    pub const COUNT: usize = Self::ALL.len();

    /// Whether it is the peer's breach of the protocol.
    #[must_use]
    pub const fn is_violation(self) -> bool {
        matches!(
            self,
            Self::FrameLength
                | Self::MessageLength
                | Self::FragmentLength
                | Self::FragmentMismatch
                | Self::AcknowledgementPayload
        )
    }

    /// Whether it says only that requests or receives ended without being done.
    pub(crate) const fn is_flush(self) -> bool {
        matches!(self, Self::ReceiveFailed | Self::Broken)
    }

    /// By what DAT tells of a connection. None: it came up.
    pub(crate) const fn of_event(event: ConnectionEvent) -> Option<Self> {
        Some(match event {
            ConnectionEvent::Established => return None,
            ConnectionEvent::PeerRejected => Self::PeerRejected,
            ConnectionEvent::NonPeerRejected => Self::NonPeerRejected,
            ConnectionEvent::AcceptCompletionError => Self::AcceptFailed,
            ConnectionEvent::Disconnected => Self::Disconnected,
            ConnectionEvent::Broken => Self::Broken,
            ConnectionEvent::TimedOut => Self::TimedOut,
            ConnectionEvent::Unreachable => Self::Unreachable,
        })
    }

    /// By how a request of ours ended in failure.
    pub(crate) const fn of_request(status: DtoStatus) -> Self {
        match status {
            DtoStatus::ErrTransport => Self::RetryExceeded,
            DtoStatus::ErrReceiverNotReady => Self::ReceiverNotReady,
            DtoStatus::ErrRemoteAccess => Self::RemoteAccess,
            DtoStatus::ErrRemoteResponder => Self::RemoteOperation,
            DtoStatus::ErrFlushed => Self::Broken,
            _ => Self::SendFailed,
        }
    }
}

impl fmt::Display for DownReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_are_distinct_and_fit() {
        let names: HashSet<&str> = DownReason::ALL.into_iter().map(DownReason::counter_name).collect();
        assert_eq!(names.len(), DownReason::COUNT);
        assert!(names.iter().all(|name| name.len() < 32));
        for (number, reason) in DownReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, number);
        }
    }
}
