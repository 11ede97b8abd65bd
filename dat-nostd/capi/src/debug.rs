//! Why something failed, for people: DAT's codes say little.

/// Says why something failed, on standard error, if `DAT_DBG_TYPE` asks for it.
pub(crate) fn complain(what: &str) {
    let wanted = std::env::var("DAT_DBG_TYPE").is_ok_and(|bits| !bits.is_empty() && bits != "0");
    if wanted {
        eprintln!("libdat: {what}");
    }
}
