//! Why a level of the self-test was not passed.

use core::fmt;
use dat_nostd::{ConnectionEvent, DatReturn};
use driver_mlx::Error;
use rds_nostd::RdsError;

/// What a level's failure was.
#[derive(Clone, Copy, Debug)]
pub enum Stage {
    /// The driver's word.
    Hca(Error),
    /// DAT's.
    Dat(DatReturn),
    /// RDS's.
    Rds(RdsError),
    /// DAT could not connect the card to itself.
    NotConnected(ConnectionEvent),
    /// What was not as it has to be.
    Wrong(&'static str),
    /// What is not there.
    Missing(&'static str),
}

impl From<Error> for Stage {
    fn from(error: Error) -> Self {
        Self::Hca(error)
    }
}

impl From<DatReturn> for Stage {
    fn from(error: DatReturn) -> Self {
        Self::Dat(error)
    }
}

impl From<RdsError> for Stage {
    fn from(error: RdsError) -> Self {
        Self::Rds(error)
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hca(error) => error.fmt(f),
            Self::Dat(error) => write!(f, "DAT: {error}"),
            Self::Rds(error) => write!(f, "RDS: {error}"),
            Self::NotConnected(event) => write!(f, "DAT: the card does not connect to itself: {event:?}"),
            Self::Wrong(what) | Self::Missing(what) => f.write_str(what),
        }
    }
}
