//! Layouts of control messages on each system.

use crate::profile::Profile;

/// Layout of a `cmsghdr`, and the structures of a program's system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abi {
    pub(super) profile: Profile,
    /// Bytes of `cmsg_len`, which begins the header, and offset of `cmsg_level`. `cmsg_type`
    /// follows.
    pub(super) len_bytes: usize,
    pub(super) level_at: usize,
    /// Alignment of headers and payloads.
    align: usize,
    /// Bytes of `user_token`.
    pub(super) token_bytes: usize,
    /// Highest type of control message that the system defines.
    pub(super) last_type: i32,
}

/// Linux's highest type: `RDS_CMSG_ZCOPY_COMPLETION`.
const LAST_OF_LINUX: i32 = 13;
/// Highest type of illumos and rds(3SOCKET): `RDS_CMSG_CONG_UPDATE`.
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
    /// Linux with musl, 64 bits: `cmsg_len` has 32 bits, followed by padding.
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

    /// Returns the layout for programs of a profile.
    #[must_use]
    pub const fn of(profile: Profile) -> Self {
        profile.select(Self::LINUX, Self::SOLARIS)
    }

    /// Returns the profile, which selects the numbers of levels, families and errors.
    #[must_use]
    pub const fn profile(&self) -> Profile {
        self.profile
    }

    /// Returns `CMSG_LEN(0)`: bytes of a header and its padding.
    #[must_use]
    pub const fn header_len(&self) -> usize {
        self.level_at + 8
    }

    /// Returns `CMSG_LEN(payload)`: the value of `cmsg_len` for this payload.
    #[must_use]
    pub const fn cmsg_len(&self, payload: usize) -> usize {
        self.header_len() + payload
    }

    /// Returns `CMSG_SPACE(payload)`: bytes of the control message with its padding.
    #[must_use]
    pub const fn cmsg_space(&self, payload: usize) -> usize {
        self.cmsg_len(payload).next_multiple_of(self.align)
    }

    /// Returns the distance to the next header. Saturates.
    pub(super) const fn step(&self, cmsg_len: usize) -> usize {
        match cmsg_len.checked_next_multiple_of(self.align) {
            Some(step) => step,
            None => usize::MAX,
        }
    }

    /// Returns the bytes of a `struct rds_rdma_notify`.
    #[must_use]
    pub const fn notify_len(&self) -> usize {
        2 * self.token_bytes
    }
}
