//! Errors of calls, as `errno` numbers them.

use rds_nostd::cmsg::CmsgError;
use rds_nostd::{Profile, RdsError};

// Both systems use these numbers.
const EINTR: i32 = 4;
const EFAULT: i32 = 14;
const ENOSPC: i32 = 28;

/// Error of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Error of the protocol.
    Rds(RdsError),
    /// A signal's handler ran while the call waited. `EINTR`.
    Interrupted,
    /// A null pointer where data is required. `EFAULT`.
    Fault,
    /// The buffer is too short for the result. `ENOSPC`.
    NoSpace,
    /// No such option. `ENOPROTOOPT`.
    NoOption,
}

/// Result of a call.
pub type Answer<T> = Result<T, Failure>;

impl Failure {
    /// Returns the error's number on the program's system.
    #[must_use]
    pub fn errno(self, profile: Profile) -> i32 {
        match self {
            Self::Rds(error) => error.errno_for(profile),
            Self::Interrupted => EINTR,
            Self::Fault => EFAULT,
            Self::NoSpace => ENOSPC,
            Self::NoOption => RdsError::NoTransport.errno_for(profile),
        }
    }
}

impl From<RdsError> for Failure {
    fn from(error: RdsError) -> Self {
        Self::Rds(error)
    }
}

impl From<CmsgError> for Failure {
    fn from(error: CmsgError) -> Self {
        Self::Rds(error.into())
    }
}
