//! Why a call failed, as the number that goes into `errno`.

use rds_nostd::cmsg::CmsgError;
use rds_nostd::{Profile, RdsError};

// Both systems number them alike.
const EINTR: i32 = 4;
const EFAULT: i32 = 14;
const ENOSPC: i32 = 28;

/// Why a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// What the protocol says.
    Rds(RdsError),
    /// A signal's handler ran while the call waited. `EINTR`.
    Interrupted,
    /// A null pointer where something is needed. `EFAULT`.
    Fault,
    /// The buffer is too short for what was asked for. `ENOSPC`.
    NoSpace,
    /// No such option. `ENOPROTOOPT`.
    NoOption,
}

/// A call's answer.
pub type Answer<T> = Result<T, Failure>;

impl Failure {
    /// `errno`, as the program's system numbers it.
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
