//! The list of files with unsafe code in `SECURITY.md`.

use checks::graph::Graph;
use std::path::Path;

#[test]
fn security_page_lists_the_files_with_unsafe_code() {
    let graph = Graph::of_project().expect("the sources");
    let rows: Vec<String> = graph
        .unsafe_files()
        .iter()
        .map(|(directory, names)| format!("| `{}` | `{}` |", directory.display(), names.join("`, `")))
        .collect();
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.github/SECURITY.md");
    harness::readme::judge(page, "unsafe", &["directory", "files"], &rows);
}
