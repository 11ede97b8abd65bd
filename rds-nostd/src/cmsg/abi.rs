//! Whose C it is.

use crate::profile::Profile;

/// Where the fields of a `cmsghdr` are, what follows it, and which structures a program was compiled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abi {
    pub(super) profile: Profile,
    /// Bytes of `cmsg_len`, which begins the header, and where `cmsg_level` is; `cmsg_type` follows it.
    pub(super) len_bytes: usize,
    pub(super) level_at: usize,
    /// Alignment of headers and of what follows them.
    align: usize,
    /// Bytes of `user_token`.
    pub(super) token_bytes: usize,
    /// The last type of control message that it knows.
    pub(super) last_type: i32,
}

/// Types end here in Linux: `RDS_CMSG_ZCOPY_COMPLETION`.
const LAST_OF_LINUX: i32 = 13;
/// Types end here in illumos and in rds(3SOCKET): `RDS_CMSG_CONG_UPDATE`.
const LAST_OF_SOLARIS: i32 = 5;

impl Abi {
    /// Linux with the GNU C library, 64 bits.
    pub const LINUX: Self = Self {
        profile: Profile::Linux,
        len_bytes: 8,
        level_at: 8,
        align: 8,
        token_bytes: 8,
        last_type: LAST_OF_LINUX,
    };
    /// Linux with musl, 64 bits: `cmsg_len` has 32 bits, and what is behind it means nothing.
    pub const LINUX_MUSL: Self = Self { len_bytes: 4, ..Self::LINUX };
    /// illumos on x86, `rdsv3`: tokens have 64 bits.
    pub const ILLUMOS: Self = Self {
        profile: Profile::Solaris,
        len_bytes: 4,
        level_at: 4,
        align: 4,
        token_bytes: 8,
        last_type: LAST_OF_SOLARIS,
    };
    /// rds(3SOCKET) on x86: tokens have 32 bits.
    pub const SOLARIS: Self = Self { token_bytes: 4, ..Self::ILLUMOS };

    /// What programs of a profile are written for.
    #[must_use]
    pub const fn of(profile: Profile) -> Self {
        match profile {
            Profile::Linux => Self::LINUX,
            Profile::Solaris => Self::SOLARIS,
        }
    }

    /// The profile of its sockets: numbers of levels, families and errors.
    #[must_use]
    pub const fn profile(&self) -> Profile {
        self.profile
    }

    /// Bytes of a header, and of what fills up to its payload: `CMSG_LEN(0)`.
    #[must_use]
    pub const fn header_len(&self) -> usize {
        self.level_at + 8
    }

    /// `CMSG_LEN`: what `cmsg_len` says of a payload of so many bytes.
    #[must_use]
    pub const fn cmsg_len(&self, payload: usize) -> usize {
        self.header_len() + payload
    }

    /// `CMSG_SPACE`: bytes that a payload of so many takes in a buffer.
    #[must_use]
    pub const fn cmsg_space(&self, payload: usize) -> usize {
        self.cmsg_len(payload).next_multiple_of(self.align)
    }

    /// How far the next header is from one that says this length. Saturates.
    pub(super) const fn step(&self, cmsg_len: usize) -> usize {
        match cmsg_len.checked_next_multiple_of(self.align) {
            Some(step) => step,
            None => usize::MAX,
        }
    }

    /// `struct rds_rdma_notify`.
    #[must_use]
    pub const fn notify_len(&self) -> usize {
        2 * self.token_bytes
    }
}
