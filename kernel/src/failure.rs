//! Why an application ended, in one line and an exit code.

use core::fmt::{self, Display, Write};

#[cfg(feature = "dat")]
use dat_nostd::OpenError;
use driver_mlx::Error;
use heapless::String;

use crate::memory::NoMemory;
use crate::{ExitCode, hca, options, println};

/// Why an application ended without success.
#[derive(Clone, Debug)]
pub enum Failure {
    /// The command line.
    Usage(options::Error<'static>),
    /// Memory.
    Memory(NoMemory),
    /// The HCA as a PCI function.
    Platform(hca::Error),
    /// The HCA did not come up.
    BringUp(Error),
    /// The adapter did not open, though its HCA came up.
    #[cfg(feature = "dat")]
    Open(OpenError),
    /// A driver call.
    Hca(Error),
    /// The HCA failed while in use.
    DeviceLost(Error),
    /// What the application has to say.
    App(String<320>),
}

impl Failure {
    /// With the application's own words; those beyond the room are lost.
    pub fn app(error: impl Display) -> Self {
        let mut text = String::new();
        let _ = write!(Cut(&mut text), "{error}");
        Self::App(text)
    }

    /// What the HCA has to do with it.
    pub(crate) const fn of_device(&self) -> Option<&Error> {
        match self {
            Self::BringUp(error) | Self::Hca(error) | Self::DeviceLost(error) => Some(error),
            _ => None,
        }
    }

    const fn exit_code(&self) -> ExitCode {
        match self {
            Self::Usage(_) => ExitCode::Usage,
            Self::Memory(_) => ExitCode::Machine,
            Self::Platform(_) => ExitCode::NoDevice,
            Self::DeviceLost(_) | Self::BringUp(Error::NotPresent) | Self::Hca(Error::NotPresent) => {
                ExitCode::DeviceLost
            }
            _ => ExitCode::Failed,
        }
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(error) => error.fmt(f),
            Self::Memory(error) => error.fmt(f),
            Self::Platform(error) => error.fmt(f),
            #[cfg(feature = "dat")]
            Self::Open(error) => error.fmt(f),
            Self::BringUp(error) | Self::Hca(error) | Self::DeviceLost(error) => write!(f, "HCA: {error}"),
            Self::App(text) => f.write_str(text),
        }
    }
}

impl core::error::Error for Failure {}

impl From<options::Error<'static>> for Failure {
    fn from(error: options::Error<'static>) -> Self {
        Self::Usage(error)
    }
}

impl From<NoMemory> for Failure {
    fn from(error: NoMemory) -> Self {
        Self::Memory(error)
    }
}

impl From<hca::Error> for Failure {
    fn from(error: hca::Error) -> Self {
        Self::Platform(error)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Hca(error)
    }
}

/// Takes what fits.
struct Cut<'a>(&'a mut String<320>);

impl Write for Cut<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            self.0.push(c).map_err(|_| fmt::Error)?;
        }
        Ok(())
    }
}

/// Says how it went, and gives the code to end with.
pub fn conclude(result: Result<(), Failure>) -> ExitCode {
    let code = match result {
        Ok(()) => ExitCode::Success,
        Err(failure) => {
            println!("error: {failure}");
            failure.exit_code()
        }
    };
    if code != ExitCode::Usage {
        println!("@done verified={}", code == ExitCode::Success);
    }
    code
}
