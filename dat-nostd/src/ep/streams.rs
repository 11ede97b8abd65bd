//! The EVDs of an endpoint, and what they must have room for.

use crate::base::attr::EpAttributes;
use crate::base::handle::EvdHandle;
use crate::base::types::CompletionFlags;
use crate::evd::Notification;

/// The EVDs of an EP's three streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Streams {
    pub(crate) recv: Option<EvdHandle>,
    pub(crate) request: Option<EvdHandle>,
    pub(crate) connect: Option<EvdHandle>,
}

/// How completions of a stream notify, by the EP's attribute.
pub(crate) fn notification(flags: CompletionFlags) -> Notification {
    if flags.contains(CompletionFlags::SOLICITED_WAIT) {
        Notification::Solicited
    } else if flags.contains(CompletionFlags::UNSIGNALLED) {
        Notification::Unsignalled
    } else {
        Notification::Threshold
    }
}

/// The same for requests, where SOLICITED_WAIT is about the peer.
pub(crate) fn request_notification(attributes: &EpAttributes) -> Notification {
    notification(attributes.request_completion_flags & !CompletionFlags::SOLICITED_WAIT)
}

/// Requests with our marker, and receives, that an EP with these attributes may have outstanding: none without an EVD for them.
pub(crate) fn reservations(attributes: &EpAttributes, streams: &Streams) -> (u32, u32) {
    let requests = match attributes.max_request_dtos {
        requests if requests > 0 && streams.request.is_some() => requests + 1,
        _ => 0,
    };
    // An EP on an SRQ takes what comes; its share of the CQ is what it asked for.
    let receives = if streams.recv.is_some() { attributes.max_recv_dtos } else { 0 };
    (requests, receives)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completions_reserved() {
        let evd = Some(EvdHandle::from_bits(1));
        let both = Streams { recv: evd, request: evd, connect: None };
        let mut attributes = EpAttributes::DEFAULT;
        assert_eq!(reservations(&attributes, &both), (17, 16));
        assert_eq!(reservations(&attributes, &Streams { recv: None, ..both }), (17, 0));
        assert_eq!(reservations(&attributes, &Streams { request: None, ..both }), (0, 16));
        attributes.max_request_dtos = 0;
        assert_eq!(reservations(&attributes, &both), (0, 16));
    }
}
