//! Reasons why connections go down. The node counts each, and a connection stores its last.

use core::fmt;

use dat_nostd::{ConnectionEvent, DtoStatus};

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $counter:literal;)*) => {
        /// Reason why a connection went down, or an attempt was abandoned.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum DownReason {
            $($(#[$doc])* $name,)*
        }

        impl DownReason {
            /// All reasons, in the order of their numbers.
            pub const ALL: [Self; [$(stringify!($name)),*].len()] = [$(Self::$name),*];

            /// Returns a short description.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }

            /// Returns the name of its counter; shorter than the 32 bytes of `rds-info`.
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
    /// This side lacks memory or DAT objects. The first reason, so that its number is 0.
    NoResources = "no resources here", "down_no_resources";
    /// The peer disconnected, or its connection manager reported its departure.
    Disconnected = "the peer disconnected", "down_disconnected";
    /// The peer's RDS refused our request.
    PeerRejected = "the peer refused", "down_peer_rejected";
    /// The peer has no RDS, or its connection manager refused.
    NonPeerRejected = "no listener at the peer", "down_non_peer_rejected";
    /// The peer has no path or no address.
    Unreachable = "the peer is unreachable", "down_unreachable";
    /// The peer did not reply to our request in time.
    TimedOut = "the peer did not answer", "down_timed_out";
    /// The peer did not confirm our acceptance.
    AcceptFailed = "the peer did not confirm", "down_accept_failed";
    /// The queue pair or its path failed.
    Broken = "the queue pair failed", "down_broken";
    /// The peer's reply has an unsupported protocol version, or other addresses than the
    /// connection.
    BadReply = "invalid reply of the peer", "down_bad_reply";
    /// The peer requested a new connection while this one was up, because it has restarted.
    Replaced = "the peer reconnected", "down_replaced";
    /// Both sides connected simultaneously, and the peer's attempt wins.
    Raced = "the peer's attempt won", "down_raced";
    /// The peer no longer acknowledges packets.
    RetryExceeded = "packets were not acknowledged", "down_retry_exceeded";
    /// The peer had no receive posted for too long.
    ReceiverNotReady = "the peer posted no receive", "down_receiver_not_ready";
    /// The peer denied an RDMA operation of ours.
    RemoteAccess = "the peer denied an access", "down_remote_access";
    /// The peer failed to execute an RDMA operation of ours.
    RemoteOperation = "the peer failed to execute an operation", "down_remote_operation";
    /// Another error of a request.
    SendFailed = "a request failed", "down_send_failed";
    /// A receive failed: the message was longer than a frame, or the connection was broken.
    ReceiveFailed = "a receive failed", "down_receive_failed";
    /// A frame shorter than a header or longer than a frame.
    FrameLength = "wrong frame length", "down_frame_length";
    /// A header with a wrong checksum.
    BadChecksum = "wrong checksum", "down_bad_checksum";
    /// A message longer than this node accepts.
    MessageLength = "message too long", "down_message_length";
    /// A fragment whose length does not match its position in the message.
    FragmentLength = "wrong fragment length", "down_fragment_length";
    /// A fragment of another message than the unfinished one.
    FragmentMismatch = "a fragment of another message", "down_fragment_mismatch";
    /// An acknowledgement with a payload.
    AcknowledgementPayload = "an acknowledgement with payload", "down_ack_payload";
    /// The peer began a message and did not continue it.
    Stalled = "a message was not continued", "down_stalled";
    /// Idle, and another peer needed its entry.
    Idle = "idle", "down_idle";
    /// Broken by this side, to end an operation that uses memory.
    Local = "closed by this side", "down_local";
    /// The HCA was recovered after a failure.
    Recovered = "the HCA was recovered", "down_recovered";
}

impl DownReason {
    /// Number of reasons.
    pub const COUNT: usize = Self::ALL.len();

    /// Returns whether the reason is only a flush of requests or receives, without a cause.
    pub(crate) const fn is_flush(self) -> bool {
        matches!(self, Self::ReceiveFailed | Self::Broken)
    }

    /// Returns the reason of a DAT event, or `None` if the connection was established.
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

    /// Returns the reason of a failed request.
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
