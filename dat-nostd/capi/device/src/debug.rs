//! What a process's environment asks of the library.

/// Whether a variable is set, and not to nothing or 0.
pub fn wants(variable: &str) -> bool {
    std::env::var(variable).is_ok_and(|value| !value.is_empty() && value != "0")
}

/// Says why something failed, on standard error, if `DAT_DBG_TYPE` asks for it: codes say little.
pub fn complain(library: &str, what: &str) {
    if wants("DAT_DBG_TYPE") {
        eprintln!("{library}: {what}");
    }
}
