//! What `rds-info` tells on Linux: all of it at a node's end, and on the console whenever `@info` comes, or what the options behind it
//! name (`@info -cn`).

use apps::rds::TableKind;
use rds_nostd::Rds;
use unikernel::adapter::Adapter;
use unikernel::println;

/// All of it.
pub fn list(rds: &Rds<'_>, adapter: &Adapter<'_>) {
    for kind in TableKind::ALL {
        println!("{}", rds.table(adapter, kind));
    }
}

/// Answers a line of the console, if it asks for something.
pub fn answer(line: &str, rds: &Rds<'_>, adapter: &Adapter<'_>) -> bool {
    let Some(options) = line.strip_prefix("@info").filter(|rest| rest.is_empty() || rest.starts_with(' '))
    else {
        return false;
    };
    match TableKind::of_options(options) {
        Some(kinds) => kinds.for_each(|kind| println!("{}", rds.table(adapter, kind))),
        None => println!("console input: @info takes options of rds-info: -c -k -n -r -s -t -I"),
    }
    true
}
