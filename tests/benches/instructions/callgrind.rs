//! Runs this program under callgrind, and reads what it counted.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// Instructions by function, of the functions that match `pattern`, what they call included. The program is started again with
/// the variable `child` set to `handles`.
pub fn count(child: &str, handles: usize, pattern: &str) -> Result<BTreeMap<String, u64>, String> {
    let program = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    let out =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("callgrind.{}.{handles}", std::process::id()));
    let status = Command::new("valgrind")
        .args(["--quiet", "--tool=callgrind", "--compress-strings=no", "--compress-pos=no"])
        // Tables for a thousand peers, which the compiler makes on the stack before it moves them.
        .arg("--main-stacksize=67108864")
        .arg(format!("--toggle-collect={pattern}"))
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(program)
        .env(child, handles.to_string())
        .status()
        .map_err(|error| format!("cannot start valgrind ({error}); on Debian: apt-get install valgrind"))?;
    if !status.success() {
        return Err(format!("the counted program failed: {status}"));
    }
    let text = std::fs::read_to_string(&out).map_err(|error| format!("callgrind left no result: {error}"))?;
    // A file of this process; if it stays, it stays in the target directory.
    let _ = std::fs::remove_file(&out);
    Ok(inclusive(&text))
}

/// Sums of the lines of each function and of its calls, by the last part of its name. Callgrind's format: a line `fn=…` begins
/// a function; cost lines are position and count; after a line `calls=…`, the next cost line is that of the call.
fn inclusive(text: &str) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    let mut function = String::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("fn=") {
            function = short(name);
        } else if line.starts_with(|first: char| first.is_ascii_digit())
            && let Some(count) = line.split_whitespace().nth(1).and_then(|count| count.parse::<u64>().ok())
        {
            *sums.entry(function.clone()).or_default() += count;
        }
    }
    sums
}

/// `instructions::dat::measured_x` without modules and hash.
fn short(name: &str) -> String {
    let parts = name.split("::").filter(|part| !(part.len() == 17 && part.starts_with('h')));
    parts.last().unwrap_or(name).trim_end_matches(|c: char| !c.is_alphanumeric()).to_owned()
}
