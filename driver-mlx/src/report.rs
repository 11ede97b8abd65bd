//! What there is to say after a failure: the device's own words, and what was done last.
//!
//! ```
//! use driver_mlx::report::Report;
//! # fn say<P: driver_mlx::Platform>(platform: &P, storage: &driver_mlx::HcaStorage<16>, error: driver_mlx::Error) -> String {
//! // After a failed bring-up, when the storage is free again:
//! Report::new(&error, platform.bar(), storage.history()).to_string()
//! # }
//! ```

use crate::error::Error;
use crate::hca::DeviceState;
use crate::platform::Bar;
pub use crate::trace::History;
use core::fmt;

/// An error with all that helps to find its cause: the driver's, or that of a layer above it.
#[derive(Clone, Copy, Debug)]
pub struct Report<'a, E = Error> {
    /// What failed; the driver's own says step, opcode, status and syndrome.
    pub error: &'a E,
    /// What the device says; `None` if it does not answer.
    pub device: Option<DeviceState>,
    /// What was done last.
    pub history: History<'a>,
}

impl<'a, E> Report<'a, E> {
    /// Reads the device's registers now.
    pub fn new(error: &'a E, bar: impl Bar, history: History<'a>) -> Self {
        Self { error, device: DeviceState::read(bar), history }
    }
}

impl<E: fmt::Display> fmt::Display for Report<'_, E> {
    /// Lines, the last without an end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "failed: {}", self.error)?;
        match self.device {
            Some(device) => write!(f, "{device}\n{}", device.health)?,
            None => f.write_str("device: all registers read as all ones: it is off the bus, or in reset")?,
        }
        for entry in self.history.iter() {
            write!(f, "\n{entry}")?;
        }
        Ok(())
    }
}
