//! Emulated HCAs that stop with the tool.

use crate::error::Result;
use crate::process;
use hca_serve::{Options, Served};

/// Serves HCAs until the returned value is dropped or the tool exits, also by a signal. The sockets
/// are removed then and a capture is complete.
///
/// # Errors
/// As [`hca_serve::serve`].
pub fn serve(options: Options) -> Result<Served> {
    let served = hca_serve::serve(options)?;
    let handle = served.handle().clone();
    process::before_exit(move || drop(handle.stop()));
    Ok(served)
}
