//! Emulated HCAs that end with the tool.

use crate::error::Result;
use crate::process;
use hca_serve::{Options, Served};

/// Serves HCAs until the answer is dropped or the tool ends, by a signal too: then the sockets are gone and a capture is complete.
///
/// # Errors
/// As [`hca_serve::serve`].
pub fn serve(options: Options) -> Result<Served> {
    let served = hca_serve::serve(options)?;
    let handle = served.handle().clone();
    process::before_exit(move || drop(handle.stop()));
    Ok(served)
}
