//! Layouts of `struct msghdr` on Linux and Solaris.

use rds_nostd::Profile;
use rds_nostd::cmsg::Abi;

/// Returns the profile of an address family, or `None` for other families.
pub(crate) fn profile_of(domain: i32) -> Option<Profile> {
    [Profile::Linux, Profile::Solaris].into_iter().find(|profile| profile.address_family() == domain)
}

/// The members of a `struct msghdr`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) name: u64,
    pub(crate) name_len: u32,
    pub(crate) iov: u64,
    pub(crate) iov_len: u64,
    pub(crate) control: u64,
    pub(crate) control_len: u64,
    pub(crate) flags: i32,
}

/// Offsets and sizes that differ between the systems, both with 64 bits.
struct Places {
    len: usize,
    iov_len_bytes: usize,
    control_len_bytes: usize,
    flags: usize,
}

const LINUX: Places = Places { len: 56, iov_len_bytes: 8, control_len_bytes: 8, flags: 48 };
const SOLARIS: Places = Places { len: 48, iov_len_bytes: 4, control_len_bytes: 4, flags: 44 };

/// Bytes of the longer layout.
pub(crate) const HEADER_LEN: usize = 56;
const NAME_LEN: usize = 8;
const IOV: usize = 16;
const IOV_LEN: usize = 24;
const CONTROL: usize = 32;
const CONTROL_LEN: usize = 40;

fn places(profile: Profile) -> &'static Places {
    match profile {
        Profile::Linux => &LINUX,
        Profile::Solaris => &SOLARIS,
    }
}

fn number(bytes: &[u8; HEADER_LEN], at: usize, len: usize) -> u64 {
    let mut word = [0; 8];
    for (to, from) in word.iter_mut().zip(bytes.iter().skip(at).take(len)) {
        *to = *from;
    }
    u64::from_le_bytes(word)
}

fn put(bytes: &mut [u8; HEADER_LEN], at: usize, len: usize, value: u64) {
    for (to, from) in bytes.iter_mut().skip(at).take(len).zip(value.to_le_bytes()) {
        *to = from;
    }
}

// `number` and `put` take the low bytes first.
const _: () = assert!(cfg!(target_endian = "little"));

impl Header {
    /// Bytes of the structure.
    pub(crate) fn len(profile: Profile) -> usize {
        places(profile).len
    }

    pub(crate) fn decode(profile: Profile, bytes: &[u8; HEADER_LEN]) -> Self {
        let places = places(profile);
        Self {
            name: number(bytes, 0, 8),
            name_len: number(bytes, NAME_LEN, 4) as u32,
            iov: number(bytes, IOV, 8),
            iov_len: number(bytes, IOV_LEN, places.iov_len_bytes),
            control: number(bytes, CONTROL, 8),
            control_len: number(bytes, CONTROL_LEN, places.control_len_bytes),
            flags: number(bytes, places.flags, 4) as i32,
        }
    }

    /// Writes the members that `recvmsg` changes.
    pub(crate) fn encode_results(&self, profile: Profile, bytes: &mut [u8; HEADER_LEN]) {
        let places = places(profile);
        put(bytes, NAME_LEN, 4, self.name_len.into());
        put(bytes, CONTROL_LEN, places.control_len_bytes, self.control_len);
        put(bytes, places.flags, 4, u64::from(self.flags.cast_unsigned()));
    }
}

/// Returns the layout of control messages.
pub(crate) fn abi_of(profile: Profile) -> Abi {
    Abi::of(profile)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_both_systems() {
        let header = Header { name_len: 16, control_len: 24, flags: 8, ..Header::default() };
        for (profile, control_len_bytes, flags_at) in [(Profile::Linux, 8, 48), (Profile::Solaris, 4, 44)] {
            let mut bytes = [0xff; HEADER_LEN];
            header.encode_results(profile, &mut bytes);
            assert_eq!(bytes[NAME_LEN..12], [16, 0, 0, 0]);
            assert_eq!(number(&bytes, CONTROL_LEN, control_len_bytes), 24);
            assert_eq!(bytes[flags_at], 8);
            assert_eq!(bytes[..NAME_LEN], [0xff; 8], "the rest is the program's");
            let read = Header::decode(profile, &bytes);
            assert_eq!((read.name_len, read.control_len, read.flags), (16, 24, 8));
            assert_eq!(read.iov_len == u64::MAX, profile == Profile::Linux);
        }
        assert_eq!((Header::len(Profile::Linux), Header::len(Profile::Solaris)), (56, 48));
    }

    #[test]
    fn families() {
        assert_eq!(profile_of(21), Some(Profile::Linux));
        assert_eq!(profile_of(30), Some(Profile::Solaris));
        assert_eq!(profile_of(2), None);
    }
}
