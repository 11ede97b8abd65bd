//! Tables in Markdown files that tests compare with what they prove.

use std::path::Path;

/// The variable that makes a test write its table instead of comparing it.
const WRITE: &str = "README_WRITE";

/// Compares the table between `<!-- NAME: begin -->` and `<!-- NAME: end -->` in a Markdown file with `rows`, line for line. With
/// `README_WRITE=1` it writes the table instead.
///
/// # Panics
/// If they differ, or there is no such table.
pub fn judge(path: impl AsRef<Path>, name: &str, head: &[&str], rows: &[String]) {
    let path = path.as_ref();
    let text = std::fs::read_to_string(path).expect("a Markdown file");
    let (begin, end) = (format!("<!-- {name}: begin -->"), format!("<!-- {name}: end -->"));
    let from = text.find(&begin).expect("the table's beginning") + begin.len();
    let to = text.find(&end).expect("the table's end");
    if std::env::var_os(WRITE).is_some() {
        let rule = "---|".repeat(head.len());
        let table = format!("\n| {} |\n|{rule}\n{}\n", head.join(" | "), rows.join("\n"));
        std::fs::write(path, format!("{}{table}{}", &text[..from], &text[to..])).expect("written");
        return;
    }
    // Behind the head and the rule.
    let found: Vec<&str> =
        text[from..to].lines().filter(|line| line.starts_with('|')).skip(2).map(str::trim_end).collect();
    for line in &found {
        assert!(rows.iter().any(|row| row == line), "the README's row has no test: {line}");
    }
    for row in rows {
        assert!(
            found.contains(&row.as_str()),
            "a tested row is not in the README ({WRITE}=1 writes it): {row}"
        );
    }
    assert_eq!(found, rows, "the order of the rows");
}
