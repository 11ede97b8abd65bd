//! Licences of all dependencies.

use std::process::Command;

/// Licences that a dependency may have.
const ALLOWED: [&str; 10] = [
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "MIT",
    // alterable_logger and colored, unmodified, in the host tool.
    "MPL-2.0",
    "Unicode-3.0",
    "Zlib",
];

/// Returns whether an SPDX expression of `OR`, `AND` and one level of parentheses can be met by [`ALLOWED`].
fn is_met(expression: &str) -> bool {
    let bare = |text: &str| text.trim().trim_matches(['(', ')']).trim().to_owned();
    let any =
        |text: &str| text.replace('/', " OR ").split(" OR ").any(|one| ALLOWED.contains(&bare(one).as_str()));
    if expression.contains('(') {
        return expression.split(" AND ").all(any);
    }
    let all = |text: &str| text.split(" AND ").all(|one| ALLOWED.contains(&bare(one).as_str()));
    expression.replace('/', " OR ").split(" OR ").any(all)
}

#[test]
fn expressions_are_met_by_one_of_their_alternatives() {
    for (expression, met) in [
        ("MIT", true),
        ("GPL-3.0-only", false),
        ("GPL-2.0-only OR MIT", true),
        ("MIT AND GPL-2.0-only", false),
        ("MIT/Apache-2.0", true),
        ("(MIT OR GPL-2.0-only) AND Unicode-3.0", true),
        ("(MIT OR Apache-2.0) AND GPL-2.0-only", false),
    ] {
        assert_eq!(is_met(expression), met, "{expression}");
    }
}

#[test]
fn each_dependency_has_an_allowed_licence() {
    let output = Command::new("cargo")
        .args(["metadata", "--format-version", "1", "--locked"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo starts");
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    assert!(packages.len() > 50, "{} packages", packages.len());
    for package in packages {
        let licence = package["license"].as_str().unwrap_or("none");
        assert!(is_met(licence), "{} {}: {licence}", package["name"], package["version"]);
    }
}
