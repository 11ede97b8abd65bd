//! The matrix of cargo features: each crate without its features, with each alone, and with all.

use crate::setup;
use serde_json::Value;
use std::collections::BTreeSet;

/// Crates that exist only for bare metal, or are meant for it.
const BARE_METAL: [&str; 8] =
    ["ib-types", "mlx5-prm", "driver-mlx", "ib-mgmt", "ib-port", "dat-nostd", "rds-nostd", "unikernel"];

/// Returns the calls of cargo that check the matrix of all packages in the output of `cargo
/// metadata`.
pub(crate) fn calls(metadata: &Value) -> Vec<Vec<String>> {
    let packages = metadata["packages"].as_array().into_iter().flatten();
    packages
        .filter_map(|package| Some(of_package(package["name"].as_str()?, &package["features"])))
        .flatten()
        .collect()
}

/// Returns the calls for a package. A package without features needs none.
fn of_package(name: &str, features: &Value) -> Vec<Vec<String>> {
    let features = features.as_object().into_iter().flat_map(|features| features.keys());
    let features: Vec<&str> = features.map(String::as_str).filter(|name| *name != "default").collect();
    if features.is_empty() {
        return Vec::new();
    }
    let mut sets: BTreeSet<String> = features.iter().map(|name| (*name).to_owned()).collect();
    sets.extend([String::new(), features.join(",")]);
    let call = |set: String| {
        let mut words = vec!["check", "--quiet", "--package", name, "--no-default-features"];
        if !set.is_empty() {
            words.extend(["--features", &set]);
        }
        if BARE_METAL.contains(&name) {
            words.extend(["--target", setup::TARGETS[0]]);
        }
        words.into_iter().map(str::to_owned).collect()
    };
    sets.into_iter().map(call).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_feature_is_checked_alone_with_all_and_without() {
        let features = serde_json::json!({"a": [], "b": ["dep:x"], "default": ["a"]});
        let calls: Vec<String> = of_package("k", &features).iter().map(|call| call.join(" ")).collect();
        let call = |features: &str| format!("check --quiet --package k --no-default-features{features}");
        let expected = ["", " --features a", " --features a,b", " --features b"].map(call);
        assert_eq!(calls, expected);
        assert_eq!(of_package("k", &serde_json::json!({})), Vec::<Vec<String>>::new());
        let one = of_package("unikernel", &serde_json::json!({"dat": []}));
        assert!(
            one.len() == 2
                && one.iter().all(|call| call.ends_with(&["--target".into(), setup::TARGETS[0].into()]))
        );
    }
}
