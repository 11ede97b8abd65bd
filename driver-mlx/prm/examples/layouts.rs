//! Prints every field of every layout, one line each: `struct.field bit_offset bit_width`.
//!
//! The names are those of Linux's `mlx5_ifc.h`, through embedded structures, so the list can be
//! compared with any other description of the same structures. Offsets count from the start of the
//! outermost structure. A byte string has the width of all its bytes, an open-ended array that of
//! one entry.
//!
//! ```text
//! $ cargo run -q -p mlx5-prm --example layouts | grep create_cq_in.cq_context.uar_page
//! create_cq_in.cq_context.uar_page 232 24
//! ```

use std::io::Write;

/// Every line, in the order of the layouts.
pub fn lines() -> Vec<String> {
    let mut lines = Vec::new();
    for layout in mlx5_prm::ALL {
        layout.visit(&mut |leaf| lines.push(format!("{} {} {}", leaf.path, leaf.bit_offset, leaf.bit_width)));
    }
    lines
}

fn main() -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    for line in lines() {
        match writeln!(out, "{line}") {
            // A reader that has seen enough (`head`) is not an error.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => return Ok(()),
            done => done?,
        }
    }
    Ok(())
}
