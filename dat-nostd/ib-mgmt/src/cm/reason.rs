//! Why a REJ was sent.

/// Reason of a REJ (section 12.6.7.2). Any number can be held.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RejReason(pub u16);

macro_rules! reasons {
    ($($(#[$meta:meta])* $name:ident = $value:literal, $text:literal;)*) => {
        impl RejReason {
            $($(#[$meta])* pub const $name: RejReason = RejReason($value);)*

            /// The standard's wording; `"unknown reason"` for a number it does not define.
            pub const fn name(self) -> &'static str {
                match self.0 {
                    $($value => $text,)*
                    _ => "unknown reason",
                }
            }
        }
    };
}

reasons! {
    /// No QP available.
    NO_QP = 1, "no QP available";
    /// No EE context available.
    NO_EEC = 2, "no EEC available";
    /// No resources available.
    NO_RESOURCES = 3, "no resources available";
    /// Timeout.
    TIMEOUT = 4, "timeout";
    /// Unsupported request.
    UNSUPPORTED = 5, "unsupported request";
    /// Invalid communication id.
    INVALID_COMM_ID = 6, "invalid communication ID";
    /// Invalid communication instance.
    INVALID_COMM_INSTANCE = 7, "invalid communication instance";
    /// Invalid service id.
    INVALID_SERVICE_ID = 8, "invalid service ID";
    /// Invalid transport service type.
    INVALID_TRANSPORT_TYPE = 9, "invalid transport service type";
    /// Stale connection.
    STALE_CONNECTION = 10, "stale connection";
    /// RDC does not exist.
    RDC_NOT_EXIST = 11, "RDC does not exist";
    /// Primary remote port GID rejected.
    INVALID_GID = 12, "primary remote port GID rejected";
    /// Primary remote port LID rejected.
    INVALID_LID = 13, "primary remote port LID rejected";
    /// Invalid primary SL.
    INVALID_SL = 14, "invalid primary SL";
    /// Invalid primary traffic class.
    INVALID_TRAFFIC_CLASS = 15, "invalid primary traffic class";
    /// Invalid primary hop limit.
    INVALID_HOP_LIMIT = 16, "invalid primary hop limit";
    /// Invalid primary packet rate.
    INVALID_PACKET_RATE = 17, "invalid primary packet rate";
    /// Alternate remote port GID rejected.
    INVALID_ALT_GID = 18, "alternate remote port GID rejected";
    /// Alternate remote port LID rejected.
    INVALID_ALT_LID = 19, "alternate remote port LID rejected";
    /// Invalid alternate SL.
    INVALID_ALT_SL = 20, "invalid alternate SL";
    /// Invalid alternate traffic class.
    INVALID_ALT_TRAFFIC_CLASS = 21, "invalid alternate traffic class";
    /// Invalid alternate hop limit.
    INVALID_ALT_HOP_LIMIT = 22, "invalid alternate hop limit";
    /// Invalid alternate packet rate.
    INVALID_ALT_PACKET_RATE = 23, "invalid alternate packet rate";
    /// CM redirection.
    CM_REDIRECT = 24, "CM redirection";
    /// Port redirection.
    PORT_REDIRECT = 25, "port redirection";
    /// Invalid path MTU.
    INVALID_MTU = 26, "invalid path MTU";
    /// Insufficient responder resources.
    INSUFFICIENT_RESPONDER_RESOURCES = 27, "insufficient responder resources";
    /// Rejected by the consumer.
    CONSUMER_DEFINED = 28, "consumer reject";
    /// RNR retry count reject.
    INVALID_RNR_RETRY = 29, "RNR retry count reject";
    /// Duplicate local communication id.
    DUPLICATE_LOCAL_COMM_ID = 30, "duplicate local communication ID";
    /// Invalid class version.
    INVALID_CLASS_VERSION = 31, "invalid class version";
    /// Invalid primary flow label.
    INVALID_FLOW_LABEL = 32, "invalid primary flow label";
    /// Invalid alternate flow label.
    INVALID_ALT_FLOW_LABEL = 33, "invalid alternate flow label";
    /// Vendor option is not supported.
    VENDOR_OPTION_NOT_SUPPORTED = 35, "vendor option is not supported";
}

/// Meaning of a reason for the active side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RejClass {
    /// The service rejected the request.
    Consumer,
    /// The service has no listener.
    NoService,
    /// The peer has no free resources; a later attempt may succeed.
    Resources,
    /// The peer timed out, or withdrew.
    Timeout,
    /// The peer believes an older connection of this queue pair or communication id to exist:
    /// another queue pair may do.
    Stale,
    /// The peer has no such connection (any longer).
    Unknown,
    /// A path parameter does not suit the peer: GID, LID, service level, rate, MTU and the like.
    Path,
    /// A connection parameter does not suit the peer: transport, responder resources, retry counts,
    /// versions.
    Parameter,
    /// The service is at the port or communication manager in the additional information. Not
    /// followed.
    Redirect,
    /// A number that the standard does not define.
    Undefined,
}

impl RejReason {
    /// The class of the reason; every number has one.
    pub const fn class(self) -> RejClass {
        match self {
            RejReason::CONSUMER_DEFINED => RejClass::Consumer,
            RejReason::INVALID_SERVICE_ID => RejClass::NoService,
            RejReason::NO_QP | RejReason::NO_EEC | RejReason::NO_RESOURCES => RejClass::Resources,
            RejReason::TIMEOUT => RejClass::Timeout,
            RejReason::STALE_CONNECTION | RejReason::DUPLICATE_LOCAL_COMM_ID => RejClass::Stale,
            RejReason::INVALID_COMM_ID | RejReason::INVALID_COMM_INSTANCE => RejClass::Unknown,
            RejReason::CM_REDIRECT | RejReason::PORT_REDIRECT => RejClass::Redirect,
            RejReason::UNSUPPORTED
            | RejReason::INVALID_TRANSPORT_TYPE
            | RejReason::RDC_NOT_EXIST
            | RejReason::INSUFFICIENT_RESPONDER_RESOURCES
            | RejReason::INVALID_RNR_RETRY
            | RejReason::INVALID_CLASS_VERSION
            | RejReason::VENDOR_OPTION_NOT_SUPPORTED => RejClass::Parameter,
            RejReason(12..=23) | RejReason::INVALID_MTU | RejReason(32..=33) => RejClass::Path,
            _ => RejClass::Undefined,
        }
    }
}

impl core::fmt::Debug for RejReason {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} ({})", self.0, self.name())
    }
}

impl core::fmt::Display for RejReason {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        assert_eq!(RejReason(28).to_string(), "consumer reject");
        assert_eq!(RejReason(10), RejReason::STALE_CONNECTION);
        assert_eq!(RejReason(999).name(), "unknown reason");
        assert_eq!(format!("{:?}", RejReason(4)), "4 (timeout)");
    }

    #[test]
    fn every_reason_has_a_class_and_a_name_together() {
        for number in 0..=40 {
            let reason = RejReason(number);
            let defined = reason.class() != RejClass::Undefined;
            assert_eq!(defined, reason.name() != "unknown reason", "{number}");
            assert_eq!(defined, matches!(number, 1..=33 | 35), "{number}");
        }
        assert_eq!(RejReason::INVALID_MTU.class(), RejClass::Path);
        assert_eq!(RejReason(65535).class(), RejClass::Undefined);
    }
}
