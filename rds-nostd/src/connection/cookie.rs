//! Cookies of posts, which their completions return.

use crate::ids::ConnectionId;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CookieKind {
    Message = 1,
    Acknowledgement = 2,
    Receive = 3,
    Rdma = 4,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cookie {
    pub(crate) kind: CookieKind,
    pub(crate) connection: ConnectionId,
    pub(crate) epoch: u16,
    /// Low bits of the post's number for sends, the frame for receives. 24 bits.
    pub(crate) number: u32,
}

/// Bits of [`Cookie::number`].
const NUMBER: u32 = (1 << 24) - 1;

impl Cookie {
    #[inline]
    pub(crate) const fn encode(self) -> u64 {
        ((self.connection.bits() as u64) << 48)
            | ((self.epoch as u64) << 32)
            | ((self.kind as u64) << 24)
            | (self.number & NUMBER) as u64
    }

    /// Returns the cookie of post `number`. `base` has the same kind, connection and epoch, with
    /// number 0.
    #[inline]
    pub(crate) const fn numbered(base: u64, number: u64) -> u64 {
        base | (number & NUMBER as u64)
    }

    /// Returns the connection of a cookie.
    #[inline]
    pub(crate) const fn connection_of(cookie: u64) -> Option<ConnectionId> {
        ConnectionId::from_bits((cookie >> 48) as u16)
    }

    #[inline]
    pub(crate) const fn decode(bits: u64) -> Option<Self> {
        let kind = match (bits >> 24) as u8 {
            1 => CookieKind::Message,
            2 => CookieKind::Acknowledgement,
            3 => CookieKind::Receive,
            4 => CookieKind::Rdma,
            _ => return None,
        };
        let Some(connection) = Self::connection_of(bits) else { return None };
        Some(Self { kind, connection, epoch: (bits >> 32) as u16, number: bits as u32 & NUMBER })
    }

    /// Returns the complete number of the post, given the number of `posts` so far. The post is at
    /// most 2^24 behind.
    pub(crate) const fn post(self, posts: u64) -> u64 {
        let behind = (posts as u32).wrapping_sub(self.number) & NUMBER;
        posts.saturating_sub(behind as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn cookies_come_back(connection in 1u16.., epoch: u16, number in 0u32..=NUMBER, kind in 0usize..4) {
            let kind = [CookieKind::Message, CookieKind::Acknowledgement, CookieKind::Receive, CookieKind::Rdma][kind];
            let connection = ConnectionId::from_bits(connection).unwrap();
            let cookie = Cookie { kind, connection, epoch, number };
            prop_assert_eq!(Cookie::decode(cookie.encode()), Some(cookie));
        }

        #[test]
        fn posts_are_found_again(post: u32, later in 0u64..60_000) {
            let connection = ConnectionId::new(0);
            let cookie = Cookie { kind: CookieKind::Message, connection, epoch: 0, number: post & NUMBER };
            prop_assert_eq!(cookie.post(u64::from(post) + later), u64::from(post));
        }
    }
}
